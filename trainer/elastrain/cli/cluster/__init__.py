"""The command line on a cluster: what ``elastrain`` does with :mod:`elastrain.client`, in words and tables."""
