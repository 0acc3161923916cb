"""``elastrain verify``: executes the runs that :mod:`elastrain.verify` plans, in local mode, and prints the answer."""
