"""The Kubernetes API: login, calls on raw objects, Leases."""
