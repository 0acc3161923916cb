"""The shared types of elastrain: the custom resource, the etcd records, the agent protocol and all shared names.

The CRD, the records in etcd, labels and environment variables all derive from this package. It imports neither torch,
kopf nor any client.
"""
