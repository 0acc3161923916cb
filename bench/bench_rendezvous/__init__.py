"""Parts of ``bench/rendezvous.py``: thousands of simulated members, a real etcd, and torch's rendezvous beside them.

``http2`` is a connection to etcd, ``link`` one that many members share, ``member`` one member, ``scenario`` the events
of a run and their cost, ``meter`` reads etcd's counters, ``torch_peer`` is torch's handler, ``report`` has figures and
tables.
"""
