"""Fenced writes to etcd: etcd refuses a leader's writes once another operator has claimed the fence.

An operator may be stopped between the check that it leads and the sending of a write (SIGSTOP, a frozen VM, a slow
network), so its own clock cannot prevent a late write. The *fence* can: a key that each new leader writes before any
other write, and whose content, a text that is never used again, is a condition of every write. (Its revision would not
do: after the restore of a snapshot etcd gives the same revisions once more.)

To claim it, an operator reads the fence, *then* proves that it leads by renewing its Lease, *then* writes the fence if
that is unchanged. Of two operators the later leader always wins: an older leader that reads the newer one's fence fails
the proof, and one that has read the fence earlier fails to write it. (The Lease's own count of transitions is unsuited
as a token: it restarts when the Lease is deleted.)

A snapshot that is restored may hold an older leader's claim, and no condition on old data can tell then from now. So
the leader claims the fence anew as soon as its watch shows that etcd has lost data; until then, a write that the older
leader had sent before passes.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import quote

import structlog

from elastrain.api.keys import ROOT
from elastrain.etcd import Batch, EtcdClient, EtcdError, Range, Sift, Transaction, Watch, WatchState
from elastrain_operator.config import LeaseName
from elastrain_operator.kube.client import ApiError, NotLeading, Tenure

log = structlog.get_logger(__name__)


def fence_key(cluster: str, lease: LeaseName) -> str:
    """The fence's key, common to the operators of one Lease. It is below the root that the etcd user may write to, and
    belongs to no job: no namespace starts with a dot."""
    return f"{ROOT}.operator/{quote(cluster, safe='')}/{quote(str(lease), safe='')}"


class FencedEtcd:
    """The part of ``EtcdClient`` that the mirror uses. Blocking and thread-safe, like the client."""

    def __init__(self, etcd: EtcdClient, key: str, identity: str, tenure: Tenure, prove: Callable[[], None]) -> None:
        """``prove`` returns if this operator held the Lease at some time after the call; else it raises
        :class:`NotLeading`, or ``ApiError`` without an answer."""
        self._etcd = etcd
        self._key = key
        self._identity = identity
        self._tenure = tenure
        self._prove = prove
        self._claiming = threading.Lock()
        self._token: bytes | None = None

    def put_all(self, records: Mapping[str, bytes]) -> None:
        """Write as the leader, all records or none.

        Raises ``EtcdError``, :class:`NotLeading`, and ``ApiError`` (see :meth:`claim`).
        """
        what = f"write {', '.join(records)}"
        for _ in range(2):
            token = self.claim()
            transaction = Transaction(unchanged=(), holding=((self._key, token),), puts=tuple(records.items()))
            timeout = min(self._etcd.timeout, self._tenure.seconds_left(what))
            if self._etcd.commit(transaction, what, timeout=timeout):
                return
            self._forget(token)  # another operator leads, or etcd has lost its data: a new claim decides
        raise EtcdError(what, f"the fence {self._key} changes all the time: do two operators use it with two Leases?")

    def delete_prefix_if(self, prefix: str, key: str, value: bytes) -> bool:
        """Delete all keys with ``prefix`` as the leader, if ``key`` holds ``value``; returns whether it did.

        Raises as :meth:`put_all`.
        """
        what = f"delete {prefix}*"
        for _ in range(2):
            token = self.claim()
            held = self._etcd.get(key)
            if held is None or held.value != value:
                return False
            transaction = Transaction(
                unchanged=(), holding=((self._key, token), (key, value)), puts=(), deleted=Range.prefix(prefix)
            )
            if self._etcd.commit(transaction, what, timeout=min(self._etcd.timeout, self._tenure.seconds_left(what))):
                return True
            self._forget(token)
        raise EtcdError(what, f"the fence {self._key} or {key} changes all the time")

    def end_lease(self, lease: int) -> None:
        """End a lease as the leader. etcd allows no condition for it, and it needs none: the proof that its holder has
        ended stays true, also if another operator leads meanwhile. Raises as :meth:`put_all`."""
        self.claim()
        self._tenure.seconds_left("end a lease")
        self._etcd.end_lease(lease)

    def watch_prefix(
        self,
        prefix: str,
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None] | None = None,
        sift: Sift | None = None,
    ) -> Watch:
        """As ``EtcdClient.watch_prefix``; the watch's thread also claims the fence again where etcd has lost data."""
        newest = 0

        def take(batch: Batch) -> None:
            nonlocal newest
            lost, newest = batch.has_lost(newest), batch.revision
            on_events(batch)
            if lost or (batch.snapshot and self._token is None):
                self._claim_anew()

        return self._etcd.watch_prefix(prefix, take, on_state, sift)

    def _claim_anew(self) -> None:
        with self._claiming:
            self._token = None
        try:
            self.claim()
        except (ApiError, EtcdError) as error:
            log.warning("fence not claimed yet", error=str(error))  # by the next write, or after the next list

    def claim(self) -> bytes:
        """Have etcd refuse older leaders' writes from now on; returns the fence's token.

        Raises ``EtcdError``, :class:`NotLeading`, and ``ApiError`` if the API server does not answer.
        """
        with self._claiming:
            if self._token is None:
                self._token = self._claim()
            return self._token

    def _claim(self) -> bytes:
        before = self._etcd.get(self._key)
        self._prove()
        mine = json.dumps({"holder": self._identity, "claim": uuid.uuid4().hex}).encode()
        self._tenure.seconds_left("claim the fence")
        won, held = self._etcd.compare_and_swap(
            self._key, mine, expected_mod_revision=before.mod_revision if before else 0
        )
        if not won or held is None:
            raise NotLeading("claim the fence")  # another replica has claimed it since
        log.info("fence claimed", key=self._key, revision=held.mod_revision)
        return mine

    def _forget(self, token: bytes) -> None:
        with self._claiming:
            if self._token == token:
                self._token = None
