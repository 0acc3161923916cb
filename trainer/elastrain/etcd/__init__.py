"""etcd v3 for agents and the operator: bounded calls, leases that survive outages, and watches without end.

Thread-safe and without asyncio: an asyncio program runs calls in a thread and forwards callbacks to its loop. The
errors are :class:`EtcdUnavailable` (retry), :class:`EtcdDenied` (do not retry) and their base :class:`EtcdError`.
"""

from elastrain.etcd.client import EtcdClient
from elastrain.etcd.config import EtcdConfig
from elastrain.etcd.errors import EtcdDenied, EtcdError, EtcdUnavailable, LeaseLost, WritesRefused
from elastrain.etcd.kv import KeyValue
from elastrain.etcd.lease import Lease, LeaseCallbacks
from elastrain.etcd.txn import Range, Transaction
from elastrain.etcd.watch import Batch, Delete, Event, Put, Sift, Watch, WatchState

__all__ = [
    "Batch",
    "Delete",
    "EtcdClient",
    "EtcdConfig",
    "EtcdDenied",
    "EtcdError",
    "EtcdUnavailable",
    "Event",
    "KeyValue",
    "Lease",
    "LeaseCallbacks",
    "LeaseLost",
    "Put",
    "Range",
    "Sift",
    "Transaction",
    "Watch",
    "WatchState",
    "WritesRefused",
]
