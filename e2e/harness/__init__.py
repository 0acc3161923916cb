"""What the e2e tests drive the cluster with: kubectl, helm, docker and the elastrain command, nothing else."""
