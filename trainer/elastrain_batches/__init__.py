"""A guest beside the core: the batch of a job with ``spec.batch``, chosen by its ranks while they train."""
