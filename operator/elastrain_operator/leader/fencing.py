"""etcd as a leader writes to it: each write is refused by etcd itself once another operator has claimed the fence.

An operator may be stopped between asking whether it leads and sending a write (SIGSTOP, a frozen VM, a slow network),
so that no clock of its own can protect others from that write. The *fence* can: a key that each new leader writes
before it writes anything else, and whose ``mod_revision`` every write is conditional on.

To claim it, an operator reads the fence, *then* proves that it leads by renewing its Lease, *then* writes the fence on
the condition that it is as read. Of two that do so the later one wins whatever happens: an older leader that reads the
newer one's fence fails to prove, and one that has read it before fails to write it. (The Lease's own count of
transitions would not do as a token: it restarts when the Lease is deleted.)
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import quote

import structlog

from elastrain.api.keys import ROOT
from elastrain.etcd import Batch, EtcdClient, EtcdError, Transaction, Watch, WatchState
from elastrain_operator.config import LeaseName
from elastrain_operator.kube.client import NotLeading, Writable

log = structlog.get_logger(__name__)


def fence_key(cluster: str, lease: LeaseName) -> str:
    """Where the operators of one Lease meet. Below the root that the etcd user may write to, and no job's: no
    namespace begins with a dot."""
    return f"{ROOT}.operator/{quote(cluster, safe='')}/{quote(str(lease), safe='')}"


class FencedEtcd:
    """The part of ``EtcdClient`` that the mirror uses. Blocking and thread-safe, like the client."""

    def __init__(self, etcd: EtcdClient, key: str, identity: str, tenure: Writable, prove: Callable[[], None]) -> None:
        """``prove`` returns if this operator held the Lease at a moment after it was called; else it raises
        :class:`NotLeading`, or ``ApiError`` if it could not find out."""
        self._etcd = etcd
        self._key = key
        self._identity = identity
        self._tenure = tenure
        self._prove = prove
        self._claiming = threading.Lock()
        self._token: int | None = None

    def put_all(self, records: Mapping[str, bytes]) -> None:
        """Write as the leader, all records or none.

        Raises ``EtcdError``, :class:`NotLeading`, and ``ApiError`` (see :meth:`claim`).
        """
        what = f"write {', '.join(records)}"
        for _ in range(2):
            token = self.claim()
            transaction = Transaction(unchanged=((self._key, token),), puts=tuple(records.items()))
            timeout = min(self._etcd.timeout, self._tenure.seconds_left(what))
            if self._etcd.commit(transaction, what, timeout=timeout):
                return
            self._forget(token)  # another operator leads, or etcd has lost its data: a new claim shows which
        raise EtcdError(what, f"the fence {self._key} changes all the time: do two operators use it with two Leases?")

    def delete_prefix(self, prefix: str) -> int:
        """Delete the records of a job that is gone. Not fenced: no later leader needs them."""
        self._tenure.seconds_left(f"delete {prefix}*")
        return self._etcd.delete_prefix(prefix)

    def watch_prefix(
        self, prefix: str, on_events: Callable[[Batch], None], on_state: Callable[[WatchState], None] | None = None
    ) -> Watch:
        return self._etcd.watch_prefix(prefix, on_events, on_state)

    def claim(self) -> int:
        """Make sure that older leaders' writes are refused from now on; returns the fence's token.

        Raises ``EtcdError``, :class:`NotLeading`, and ``ApiError`` where the API server cannot be asked who leads.
        """
        with self._claiming:
            if self._token is None:
                self._token = self._claim()
            return self._token

    def _claim(self) -> int:
        before = self._etcd.get(self._key)
        self._prove()
        # Of a text of its own, so that this very claim is recognised if its answer is lost.
        mine = json.dumps({"holder": self._identity, "claim": uuid.uuid4().hex}).encode()
        self._tenure.seconds_left("claim the fence")
        won, held = self._etcd.compare_and_swap(
            self._key, mine, expected_mod_revision=before.mod_revision if before else 0
        )
        if not won or held is None:
            raise NotLeading("claim the fence")  # another replica claimed it in between
        log.info("fence claimed", key=self._key, revision=held.mod_revision)
        return held.mod_revision

    def _forget(self, token: int) -> None:
        with self._claiming:
            if self._token == token:
                self._token = None
