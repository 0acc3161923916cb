"""What ``bench/rendezvous.py`` is made of: thousands of simulated members, a real etcd, and torch's rendezvous beside.

``http2`` is a connection to etcd, ``link`` one that many members share, ``member`` one of them, ``scenario`` what
happens to them and what it cost, ``meter`` reads etcd's counters, ``torch_peer`` is torch's handler, ``results`` the
figures as types, ``report`` as tables.
"""
