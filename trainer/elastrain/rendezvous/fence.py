"""Ends the membership of a worker whose processes have ended, so that survivors need not wait for its lease.

Only for the one that started the worker, after it has seen the end of all its processes: the local runner by its own
children, the operator by the kubelet's report. A closed port or a reset connection is no such proof.
"""

from __future__ import annotations

import contextlib

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient, Range
from elastrain.etcd.errors import LeaseLost


def fence(client: EtcdClient, keys: JobKeys, worker: str) -> int:
    """Revoke the leases of the members of ``worker``, and with them its keys, the leader's included.

    Returns the number of members that were left. Raises ``EtcdError``.
    """
    found, _ = client.list_ranges([Range.prefix(f"{keys.members}{worker}.")])
    for lease in {kv.lease for kv in found if kv.lease}:
        with contextlib.suppress(LeaseLost):  # it has expired meanwhile
            client.lease_revoke(lease)
    return len(found)
