"""Processes of etcd's pod: the password of root, the gateway before etcd, and etcd's alarms."""
