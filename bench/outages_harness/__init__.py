"""Parts of ``bench/outages.py``: who is taken away, what trains meanwhile, and how it is judged."""
