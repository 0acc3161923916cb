"""Replicas are compared while they train: parameters, buffers and optimizer state of ranks that hold the same part."""
