"""The words of elastrain as types: the custom resource, the etcd records, the agent protocol and every shared name.

This is the single source of the CRD, of what is written to etcd and of labels and environment variables. It imports
neither torch, kopf nor any client.
"""
