"""The commands ``elastrain`` and ``kubectl etj``, on a cluster or on this machine."""
