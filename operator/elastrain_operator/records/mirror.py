"""The operator's side of etcd: one watch over all jobs keeps their records; the only writer of ``target``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog

from elastrain.api.keys import ROOT, JobKeys
from elastrain.api.records import Issued, Progress, Target
from elastrain.etcd import Batch, EtcdDenied, EtcdError, KeyValue, Put, Sift, Watch, WatchState, WritesRefused
from elastrain.jobstate import JobState
from elastrain_operator.facts import Coordination, Outage
from elastrain_operator.metrics.process import ETCD_DATA_LOSSES, ETCD_OUTAGES, RECORDS_REFUSED
from elastrain_operator.records.intake import Intake
from elastrain_operator.waiting import until

LINGER = 5.0
"""Seconds for which the mirror still counts after etcd was last heard: a reconnect is no outage."""

log = structlog.get_logger(__name__)


class Etcd(Protocol):
    """What the operator uses of :class:`elastrain.etcd.EtcdClient`, or of a fenced one (``fencing.py``)."""

    def put_all(self, records: Mapping[str, bytes]) -> object: ...

    def delete_prefix_if(self, prefix: str, key: str, value: bytes) -> bool: ...

    def end_lease(self, lease: int) -> None: ...

    def watch_prefix(
        self,
        prefix: str,
        on_events: Callable[[Batch], None],
        on_state: Callable[[WatchState], None] | None = None,
        sift: Sift | None = None,
    ) -> Watch: ...


class Mirror:
    """All jobs' records as etcd last reported them. Lives in one event loop; the watch's thread only posts to it."""

    def __init__(
        self,
        etcd: Etcd,
        cluster: str,
        on_change: Callable[[JobKeys | None], None],
        on_steps: Callable[[JobKeys], None] | None = None,
        on_refused: Callable[[JobKeys], None] = lambda _: None,
    ) -> None:
        """``on_change`` is called in the event loop with the job whose records changed, or None: all may have.

        ``cluster``: identifies this cluster in the records ``owner``.

        ``on_steps`` is called instead where a job has only made steps, which all jobs do all the time, or a record is
        as this operator has just written it; absent: so is ``on_change``. ``on_refused``: with a job whose records are
        not kept from now on, since they are too many.
        """
        self._etcd = etcd
        self._cluster = cluster
        self._on_change = on_change
        self._on_steps = on_steps or on_change
        self._on_refused = on_refused
        self._intake = Intake()
        self._refused: dict[JobKeys, str] = {}
        self._dropped = 0
        self._jobs: dict[JobKeys, JobState] = {}
        self._echoes: dict[str, bytes] = {}  # targets that this operator wrote, until the watch shows them
        self._outage: Outage | None = Outage()
        self._refusal: Outage | None = None
        self._revision = 0
        self._losing = False  # changes are left to take of those by which etcd has lost data
        self.losses = 0
        """How often etcd has lost data since the start: it had a lower revision than before."""
        self._listed = asyncio.Event()
        self._lapse: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None

    # ---- life ------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to watch; returns at once."""
        loop = asyncio.get_running_loop()

        def post(call: Callable[..., None], value: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call, value)

        def put(batch: Batch) -> None:
            if self._intake.put(batch):
                post(self._drain, None)

        def sift(kv: KeyValue) -> KeyValue | None:
            kept = self._intake.sift(kv)
            if kept is None and self._intake.tell():
                post(self._drain, None)
            return kept

        self._watch = self._etcd.watch_prefix(ROOT, put, lambda state: post(self.heard, state), sift)

    async def wait_listed(self, seconds: float) -> bool:
        """Whether the first full list has come within so many seconds."""
        return await until(self._listed, seconds)

    async def close(self) -> None:
        if self._lapse:
            self._lapse.cancel()
        if self._watch:
            await asyncio.to_thread(self._watch.close)

    # ---- reading ---------------------------------------------------------------------------------------------------
    @property
    def outage(self) -> Outage | None:
        """Why the mirror cannot be believed; None: it can."""
        return None if self._listed.is_set() and self._outage is None else self._outage or Outage()

    @property
    def refusal(self) -> Outage | None:
        """Why etcd refuses all writes, though its records can be believed; None: it accepts them."""
        return self._refusal

    def of(self, keys: JobKeys) -> Coordination | None:
        """The records of a job; None if plans cannot rely on them: see :meth:`outage_of`."""
        if self.outage_of(keys):
            return None
        state = self._state(keys)
        return Coordination(
            target=state.target,
            members=tuple(state.members[member].record for member in sorted(state.members)),
            generation=state.generation,
            progress=state.progress,
            highest=state.highest_number,
            earlier=state.members_of,
            leases={member: registered.lease for member, registered in state.members.items()},
        )

    def outage_of(self, keys: JobKeys) -> Outage | None:
        """Why plans cannot rely on the records of a job, or publish what they want; None: they can. A member whose
        record cannot be read is known, too: it exists."""
        if unusable := self.outage or self.refusal:
            return unusable
        if keys in self._refused:
            return Outage("RecordsUnreadable", f"the job's records in etcd are not read, because {self._refused[keys]}")
        state = self._state(keys)
        unread = sorted(key.removeprefix(keys.prefix) for key in state.unreadable if _is_planned_by(keys, key))
        if unread:
            what = ", ".join(unread[:3]) + (f" and {len(unread) - 3} more" if len(unread) > 3 else "")
            text = f"the job's records {what} in etcd cannot be read: damaged, or of a newer version"
            return Outage("RecordsUnreadable", f"{text} of elastrain; upgrade the operator")
        if state.generation is not None and state.generation.roster is not None:
            return Outage(message="some members of the newest generation are not known yet")
        return None

    def issued(self, keys: JobKeys) -> Issued | None:
        """What the job's workers were last given to log in with; None: nothing, or nothing that can be read."""
        return self._state(keys).issued

    def is_unread(self, keys: JobKeys) -> bool:
        """Whether the job has such a record that cannot be read: damaged, or of a newer version."""
        return keys.issued in self._state(keys).unreadable

    def jobs(self) -> list[JobKeys]:
        """Jobs that have records written by this cluster's operator."""
        return [keys for keys in self._jobs if self.is_ours(keys)]

    def is_ours(self, keys: JobKeys) -> bool:
        """Whether a job has records written by this cluster's operator."""
        return self._state(keys).owner == self._cluster.encode()

    def _state(self, keys: JobKeys) -> JobState:
        return self._jobs.get(keys) or JobState(keys)

    # ---- writing ---------------------------------------------------------------------------------------------------
    async def put_target(self, keys: JobKeys, target: Target) -> None:
        """Publish what the operator wants. Raises ``EtcdError``.

        Always with the claim: a write that arrives after the job's records were deleted is found by it and swept.
        """
        value = target.encode()
        if not target.leaving:  # who is asked to leave may go once that can be read: this echo does not wait
            self._echoes[keys.target] = value
        await asyncio.to_thread(self._etcd.put_all, {keys.owner: self._cluster.encode(), keys.target: value})

    async def claim(self, keys: JobKeys) -> None:
        """Say that the job is this cluster's, before anything else is made for it in etcd, and whenever the record is
        gone or has another name of this cluster. Only for jobs of this API server. Raises ``EtcdError``."""
        if not self.is_ours(keys):
            await asyncio.to_thread(self._etcd.put_all, {keys.owner: self._cluster.encode()})

    async def adopt(self, keys: JobKeys) -> None:
        """Correct the owner of a job's records, if there are any: a former name of this cluster, or none after etcd has
        lost its data. The job exists in this API server, and UIDs are unique. Raises ``EtcdError``."""
        if self.outage is None and not self._state(keys).is_empty:
            await self.claim(keys)

    async def end_leases(self, leases: Iterable[int]) -> None:
        """End the leases of members whose processes have ended. Raises ``EtcdError`` at the first that fails."""

        def end() -> None:
            for lease in leases:
                self._etcd.end_lease(lease)

        await asyncio.to_thread(end)

    async def put_issued(self, keys: JobKeys, issued: Issued) -> None:
        """Record what the job's workers were given to log in with. Raises ``EtcdError``."""
        await asyncio.to_thread(self._etcd.put_all, {keys.issued: issued.encode()})

    async def delete_records(self, keys: JobKeys) -> None:
        """Delete all records of a job that is gone, if it is this cluster's. Raises ``EtcdError``."""
        await asyncio.to_thread(self._etcd.delete_prefix_if, keys.prefix, keys.owner, self._cluster.encode())

    # ---- what the watch says ---------------------------------------------------------------------------------------
    def _drain(self, _: object = None) -> None:
        """Take a portion; the next one follows after as much time, in which other work is done."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.take(self._intake.take())
        refused, dropped = self._intake.refused, self._intake.dropped
        for keys in self._refused.keys() ^ refused.keys():
            if keys in refused:
                log.warning("records of a job are refused", prefix=keys.prefix, why=refused[keys])
                RECORDS_REFUSED.labels("job").inc()
                self._on_refused(keys)
            self._on_change(keys)
        RECORDS_REFUSED.labels("record").inc(dropped - self._dropped)
        self._refused, self._dropped = refused, dropped
        if self._intake.more:
            loop.call_later(loop.time() - began, self._drain)

    def take(self, batch: Batch) -> None:
        """Changes from the watch, in order."""
        lost = self._note_revision(batch)
        self._losing = self._losing or lost
        changed: set[JobKeys] = set()
        stepped: set[JobKeys] = set()
        for event in batch.events:
            key, kv = (event.kv.key, event.kv) if isinstance(event, Put) else (event.key, None)
            keys = JobKeys.of(key)
            if keys is None or (kv is not None and keys in self._intake.refused and key != keys.owner):
                continue  # the job was refused for the records before this one
            state = self._jobs[keys] = self._state(keys)
            before = state.progress
            state.put(key, kv)
            if key in state.unreadable:
                self._intake.unreadable(keys)
            (stepped if self._can_wait(state, key, kv, before) else changed).add(keys)
            if state.is_empty and not self._losing:  # else it keeps the last number
                del self._jobs[keys]
        self._losing = self._losing and self._intake.more
        if lost or (batch.snapshot and not self._listed.is_set()):
            self._listed.set()
            self._on_change(None)
        for keys in changed:
            self._on_change(keys)
        for keys in stepped - changed:
            self._on_steps(keys)

    def _note_revision(self, batch: Batch) -> bool:
        """Whether etcd has lost data since the last batch: all of it, or its newest after the restore of a snapshot."""
        lost = batch.has_lost(self._revision)
        if lost:
            log.warning("etcd has lost data", revision=batch.revision, before=self._revision)
            self._echoes.clear()
            self.losses += 1
            ETCD_DATA_LOSSES.inc()
        self._revision = batch.revision
        return lost

    def _can_wait(self, state: JobState, key: str, kv: KeyValue | None, before: Progress | None) -> bool:
        """Whether the change of ``key`` is mere steps since ``before``, or a record that this operator has written."""
        keys = state.keys
        if key == keys.target:
            expected = self._echoes.pop(key, None)
            return kv is not None and kv.value == expected
        return (key == keys.owner and kv is not None) or (key == keys.progress and _only_steps(before, state.progress))

    def heard(self, state: WatchState) -> None:
        """The watch was connected, or lost etcd."""
        if state.connected:
            if self._lapse:
                self._lapse.cancel()
                self._lapse = None
            if self._outage:
                log.info("etcd connected")
            self._outage = None
            self._on_change(None)
        elif self._lapse is None:
            log.warning("etcd lost", error=str(state.error))
            self._lapse = asyncio.get_running_loop().call_later(LINGER, self._lapsed, state.error)

    def writes(self, refusal: WritesRefused | None) -> None:
        """Whether etcd accepts writes, by the last trial."""
        before, self._refusal = self._refusal, None
        if refusal is not None:
            text = f"etcd refuses all writes: alarm {refusal.alarm} ({refusal.detail})"
            self._refusal = Outage("EtcdRefusesWrites", text)
        if self._refusal != before:
            if self._refusal:
                log.error("etcd refuses all writes", error=str(refusal))
            else:
                log.info("etcd accepts writes again")
            self._on_change(None)

    def _lapsed(self, error: EtcdError | None) -> None:
        reason = "EtcdDenied" if isinstance(error, EtcdDenied) else "EtcdUnavailable"
        ETCD_OUTAGES.inc()
        self._outage = Outage(reason, str(error or "etcd is silent"))
        self._lapse = None
        self._on_change(None)


def _is_planned_by(keys: JobKeys, key: str) -> bool:
    """Whether plans need the record under ``key``."""
    return key in {keys.target, keys.generation, keys.progress} or key.startswith(keys.rosters)


_LASTING = Progress.model_fields.keys() - {"step", "epoch", "samples", "loss", "step_seconds", "batch"}
"""Fields of a progress record that do not change with every step."""


def _only_steps(before: Progress | None, after: Progress | None) -> bool:
    """Whether two records of progress differ only in what changes with every step."""
    if before is None or after is None:
        return False
    return all(getattr(before, name) == getattr(after, name) for name in _LASTING)
