"""One task per job: observe, plan, apply, wait; and one for all jobs that shares out the cluster."""
