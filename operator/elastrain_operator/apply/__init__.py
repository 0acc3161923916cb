"""Executes plans: the only writers of pods, status, events, etcd records and credentials."""
