"""A job's template and defaults become the manifest of a worker's pod. Pure."""
