"""What Prometheus reads: figures of the operator itself and of the jobs that it serves. All are in docs/metrics.md."""
