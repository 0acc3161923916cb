"""Pods, nodes, jobs and etcd records become frozen values. The only parsers of raw objects."""
