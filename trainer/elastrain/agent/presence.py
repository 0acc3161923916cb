"""The agent's membership: registration, changes of the job for the core, published records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import structlog

from elastrain.agent.core import endings
from elastrain.agent.core.events import CloseJob, JobSnapshot, Publish, PublishProgress
from elastrain.agent.core.vouching import LeaseSeen
from elastrain.agent.settings import Settings
from elastrain.api.keys import JobKeys
from elastrain.api.names import DIVERGED
from elastrain.api.records import Termination, roster
from elastrain.api.settings import ALL
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdError, EtcdUnavailable
from elastrain.rendezvous.membership import Membership
from elastrain.rendezvous.view import View

ETCD_SECONDS = 60.0
"""Seconds that a starting agent tries to reach etcd."""
REGISTER_SECONDS = 10.0
FLUSH_SECONDS = 30.0
"""Seconds that the last worker tries to record the end of the job in etcd."""
LAST_WORDS_SECONDS = 2.0
"""Seconds that any other worker tries to write the last progress of its rank 0."""

log = structlog.get_logger()


class Presence:
    """An agent's membership, from before its registration until its leave. For the agent's main thread."""

    def __init__(self, settings: Settings, etcd: EtcdConfig, on_change: Callable[[], None]) -> None:
        """``on_change`` announces changes for :meth:`look`, from a thread of the membership."""
        self._settings = settings
        self._client = EtcdClient(etcd)
        self._on_change = on_change
        self._membership: Membership | None = None
        self._view: View | None = None
        self._reachable = True
        self._unwritten = False
        """Progress was published, but etcd may not have it yet."""

    @property
    def id(self) -> str:
        """The member's current id; empty before the registration. For any thread."""
        return self._membership.id if self._membership else ""

    @property
    def reachable(self) -> bool:
        """Whether this is a member and etcd answers."""
        return self._membership is not None and self._membership.reachable

    def register(self, asked_to_stop: Callable[[], bool]) -> Termination | None:
        """Become a member; returns the ending if that is impossible. Bounded by ``ETCD_SECONDS``.

        ``asked_to_stop`` is called between two attempts, and waits a moment for a signal.
        """
        end = time.monotonic() + ETCD_SECONDS
        while True:
            membership = self._new_membership()
            try:
                membership.start(REGISTER_SECONDS)
            except EtcdUnavailable as error:
                log.warning("etcd does not answer, retrying", error=str(error))
                if time.monotonic() >= end:
                    return endings.infrastructure("EtcdUnavailable", f"{error}; tried for {ETCD_SECONDS:g} s")
            except EtcdError as error:
                return endings.infrastructure("EtcdDenied", str(error))
            else:
                self._membership = membership
                log.info("registered", id=membership.id)
                return None
            if asked_to_stop():
                return endings.drained(0, "asked to stop before etcd could be reached")

    def reincarnate(self, *, restarts: bool) -> str:
        """Register as a new member; returns its id. ``restarts``: its ranks start again."""
        count = self._registered.record.restarts + restarts
        return self._registered.reincarnate(restarts=count, health="", health_message="", health_rank=None).id

    @property
    def lease(self) -> LeaseSeen:
        """This member's lease now."""
        confirmed, lease_id = self._registered.lease
        return LeaseSeen(confirmed, lease_id)

    def look(self) -> Iterator[JobSnapshot]:
        """The changes since the last call, for the core; they are logged."""
        membership = self._membership
        if membership is None:
            return
        if membership.reachable != self._reachable:
            self._reachable = membership.reachable
            if self._reachable:
                log.info("etcd is back")
            else:
                log.warning("etcd is away; training continues", error=str(membership.outage))
        view = membership.view
        if view is self._view or not view.revision:  # revision 0: etcd has not been read yet
            return
        log_changes(self._view, view)
        self._view = view
        yield snapshot(view)

    def publish(self, record: Publish) -> None:
        """Write the member's record."""
        member = self._registered
        if not record.later:
            log.info("member", id=member.id, phase=record.phase, generation=record.generation, step=record.step)
        if record.health != member.record.health:
            log.warning("health", health=record.health or "ok", why=record.health_message)
        member.update(**asdict(record))

    def publish_of_job(self, effect: PublishProgress | CloseJob) -> None:
        """Publish the progress of training, or record that ranks have diverged. Blocks for the latter and for the final
        record, at most ``FLUSH_SECONDS``."""
        if isinstance(effect, CloseJob):
            self._close_job(effect.why)
            return
        self._registered.publish(effect.progress)
        self._unwritten = True
        if effect.progress.finished:
            self._flush(self._registered, FLUSH_SECONDS)

    def leave(self) -> None:
        """Leave the job. Without effect before :meth:`register` and when repeated."""
        if self._membership is None:
            return
        if self._unwritten:  # progress is written once a second; the last record would be lost
            self._flush(self._membership, LAST_WORDS_SECONDS)
        self._membership.leave()

    def close(self) -> None:
        """Leave at once and close the connection."""
        if self._membership is not None:
            self._membership.leave()
        self._client.close()

    # ---- inside ----------------------------------------------------------------------------------------------------
    @property
    def _registered(self) -> Membership:
        assert self._membership is not None
        return self._membership

    def _close_job(self, why: str) -> None:
        try:
            self._registered.close_job(DIVERGED, why, FLUSH_SECONDS)
        except EtcdError as error:
            log.error("the end of the job was not recorded", why=why, error=str(error))

    def _flush(self, membership: Membership, seconds: float) -> None:
        self._unwritten = False
        try:
            if not membership.flush(seconds):
                log.error("the last progress was not written: etcd does not answer", seconds=seconds)
        except EtcdError as error:
            log.error("the last progress was not written", error=str(error))

    def _new_membership(self) -> Membership:
        settings = self._settings
        return Membership(
            self._client,
            JobKeys(settings.namespace, settings.job, settings.job_uid),
            worker=settings.worker,
            address=settings.address,
            node=settings.node,
            pod=settings.pod,
            slots=settings.nproc,
            group=settings.group,
            place=settings.place,
            group_size=settings.group_size,
            one_copy=settings.ranks.shards == ALL,
            lease_ttl=settings.lease_ttl,
            on_change=self._on_change,
        )


def snapshot(view: View) -> JobSnapshot:
    """The part of a membership's view that the core needs. Pure."""
    return JobSnapshot(
        target=view.target,
        members={m.id: m.record for m in view.alive.values()} if view.complete else None,
        generation=roster.seen_by(view.generation, view.self_id) if view.generation else None,
        ended=view.notified,
        finished=view.finished,
        diverged=view.closed.message if view.closed and view.closed.reason == DIVERGED else "",
        step=view.step,
        training=view.training,
        loop=view.loop,
        saved_step=view.saved_step,
    )


def log_changes(before: View | None, view: View) -> None:
    """Log each new generation, each end of a generation, and the end of the job once."""
    known = before.generation.number if before and before.generation else 0
    g = view.generation
    if g is not None and g.number > known:
        workers = [m.worker for m in g.members] if g.roster is None else g.size
        log.info("generation", number=g.number, reason=g.reason, workers=workers, world_size=g.world_size)
    for number in view.notified.keys() - (before.notified.keys() if before else set()):
        log.warning("generation ended", number=number, reason=view.notified[number])
    if view.ended and not (before and before.ended):
        closed = view.closed
        why = (
            f"closed by {closed.member}: {closed.reason} {closed.message}".rstrip()
            if closed
            else "training is complete"
        )
        log.info("the job has ended", reason=why)
