"""``elastrain verify``: executes the runs that :mod:`elastrain_verify` plans, in local mode, and prints the answer."""
