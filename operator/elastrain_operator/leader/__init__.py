"""One of several replicas leads: the decision, the Lease, the fence in etcd, the life of the process."""
