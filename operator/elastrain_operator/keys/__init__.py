"""Keys of the chart's etcd: created and replaced in Secrets, and known to nothing else."""
