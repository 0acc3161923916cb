"""Leader election among replicas: the decision, the Lease, the fence in etcd, the life of the process."""
