"""Throughput of ranks of unequal speed (``bench/shares.py``)."""
