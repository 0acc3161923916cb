"""One copy of the model over all ranks (``shards: all``): its placement changes with the number of ranks."""
