"""Prometheus metrics of the operator and of the jobs that it serves. docs/metrics.md lists them."""
