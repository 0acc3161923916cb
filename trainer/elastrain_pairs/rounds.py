"""Runs the measurement of pairs: a job's pre-flight checks find each other through etcd and measure in rounds.

Each check writes its own record under its lease. The oldest check without a group forms one of all waiting checks, once
enough are present. It leads the group: it chooses the pairs of each round, and in the end names the faulty nodes. So
each check writes once per round at most, and no key has two writers. A late result is unknown, and an unknown result
keeps no worker from training.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from elastrain.api.base import Unreadable
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Target
from elastrain.etcd import EtcdClient, EtcdError, KeyValue, Lease
from elastrain_pairs import decide
from elastrain_pairs.records import Group, Participant, Report

LEASE_SECONDS = 10
GROUP_SECONDS = 600
"""Seconds to keep a group's record; longer than a group can last."""
TRIAL_SECONDS = 60.0
"""Seconds of one trial. Connecting and summing have their own bounds in it; importing torch has none."""
ROUND_SECONDS = 75.0
"""Seconds after which a round continues without missing reports: more than a trial plus a dead check's lease."""
FORM_SECONDS = 30.0
"""Seconds beyond the wait for other checks, until the oldest has formed the group."""


R = TypeVar("R", Participant, Group)


class Trial(Protocol):
    """Measures one pair: results by name, as ``trial.py`` prints them. Raises ``RuntimeError`` with the reason."""

    def __call__(self, host: str, port: int, rank: int, address: str) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for this node."""

    sick: str = ""
    """Why the node is blamed, as a sentence; empty: it is not."""
    unknown: str = ""
    """Why the result is unknown; empty: the node was measured, by this or another of its workers."""
    reports: tuple[tuple[str, Report], ...] = ()
    """The partners' nodes and the report of each pair."""


@dataclass(frozen=True, slots=True)
class _View:
    """All records of one revision."""

    participants: tuple[Participant, ...]
    """Participants whose checks still run, oldest first."""
    groups: tuple[tuple[str, Group], ...]
    """Leader's id and record, oldest first."""

    def group_of(self, participant_id: str) -> tuple[str, Group] | None:
        return next(((i, h) for i, h in self.groups if participant_id in h.participants), None)


@dataclass
class Check:
    """The part of one check. :meth:`run` blocks until a verdict."""

    client: EtcdClient
    keys: JobKeys
    me: Participant
    wait: float
    """Seconds to wait for other workers' checks."""
    trial: Trial
    period: float = 1.0
    """Seconds between two reads of the records."""
    _began: float = field(default_factory=time.monotonic)
    _measured: tuple[str, ...] = ()
    """Ids of the measured participants, if this check leads."""
    _round_until: float = 0.0
    _own: Lease | None = None
    _group_lease: int = 0
    _nodes: dict[str, str] = field(default_factory=dict)
    """Names of all participants ever seen: a partner may have gone when its name is needed."""

    def run(self) -> Verdict:
        """Take part until the group is over. Bounded by the wait and four rounds; an outage of etcd ends it at once."""
        try:
            lease = self.client.lease(LEASE_SECONDS)
        except EtcdError as error:
            return Verdict(unknown=str(error))
        self._own = lease
        try:
            self._publish()
            return self._until_over()
        except EtcdError as error:
            return self._unknown(str(error))
        finally:
            lease.close()

    def _until_over(self) -> Verdict:
        bound = self.wait + FORM_SECONDS + decide.MOST_ROUNDS * ROUND_SECONDS
        while time.monotonic() - self._began < bound:
            view = self._read()
            self._nodes |= {c.id: c.node or c.worker for c in view.participants}
            verdict = self._step(view)
            if verdict is not None:
                return verdict
            # All checks read all records: the more checks, the longer the period.
            time.sleep(self.period * max(1.0, len(view.participants) / 100))
        return self._unknown(f"the measurements were not over within {bound:.0f} s")

    def _step(self, view: _View) -> Verdict | None:
        mine = view.group_of(self.me.id)
        waited = time.monotonic() - self._began
        if mine is None:
            ungrouped = [c for c in view.participants if view.group_of(c.id) is None]
            if ungrouped and ungrouped[0].id == self.me.id and self._is_complete(ungrouped, view, waited):
                self._form(ungrouped[: decide.MOST_PARTICIPANTS])
            elif waited > self.wait + FORM_SECONDS:
                return self._unknown(f"no group formed within {waited:.0f} s")
            return None
        leader, group = mine
        if group.done:
            return self._verdict(group)
        if leader not in {c.id for c in view.participants}:
            return self._unknown("the check that led the measurements has gone")
        self._measure(group, view)
        if leader == self.me.id:
            self._lead(group, view)
        return None

    # ---- as one of a pair --------------------------------------------------------------------------------------------
    def _measure(self, group: Group, view: _View) -> None:
        """Measure the pair of the newest round, once."""
        number = len(group.rounds) - 1
        pair = next((p for p in group.rounds[-1] if self.me.id in p), None) if group.rounds else None
        if pair is None or any(r.round == number for r in self.me.reports):
            return
        host = next((c for c in view.participants if c.id == pair[0]), None)
        partner = pair[1] if pair[0] == self.me.id else pair[0]
        if host is None:
            report = Report(round=number, partner=partner, ok=False, why="the partner is gone")
        else:
            try:
                figures = self.trial(host.address, host.port, pair.index(self.me.id), self.me.address)
                report = Report(round=number, partner=partner, ok=True, **figures)
            except RuntimeError as error:
                report = Report(round=number, partner=partner, ok=False, why=str(error))
        self.me = self.me.model_copy(update={"reports": (*self.me.reports, report)})
        self._publish()

    # ---- as the leader -----------------------------------------------------------------------------------------------
    def _is_complete(self, ungrouped: list[Participant], view: _View, waited: float) -> bool:
        held = self.client.get(self.keys.target)
        target = Target.decode(held.value) if held else None
        members, _ = self.client.get_prefix(self.keys.members)
        ids = (kv.key.removeprefix(self.keys.members) for kv in members)  # a record may be of a newer version
        workers = {Member.unknown(member_id).worker for member_id in ids} - {c.worker for c in ungrouped}
        workers |= {c.worker for c in view.participants if view.group_of(c.id) is not None}
        desired = target.desired if target else None
        return decide.is_complete(len(ungrouped), len(workers), desired, waited, self.wait)

    def _form(self, participants: list[Participant]) -> None:
        self._measured = tuple(c.id for c in decide.representatives(participants))
        self._group_lease = self.client.lease_grant(GROUP_SECONDS)
        self._write(Group(participants=tuple(c.id for c in participants)))

    def _lead(self, group: Group, view: _View) -> None:
        """Start the next round when this one is over; write the verdict after the last."""
        there = {c.id: c for c in view.participants if c.id in self._measured} | {self.me.id: self.me}
        last = len(group.rounds) - 1
        if group.rounds and not decide.is_over(group.rounds[-1], last, there) and time.monotonic() < self._round_until:
            return
        outcomes = decide.judge(group.rounds, there)
        pairs = decide.next_round(self._measured, group.rounds, outcomes, there)
        if pairs:
            self._round_until = time.monotonic() + ROUND_SECONDS
            self._write(group.model_copy(update={"rounds": (*group.rounds, pairs)}))
        else:
            self._write(group.model_copy(update={"done": True, "sick": decide.blame(outcomes, there)}))

    def _write(self, group: Group) -> None:
        self.client.put(self.keys.pairs_group(self.me.id), group.encode(), lease=self._group_lease)

    def _publish(self) -> None:
        assert self._own is not None
        self._own.set(self.keys.pairs_participant(self.me.id), self.me.encode())

    # ---- records -----------------------------------------------------------------------------------------------------
    def _read(self) -> _View:
        found, _ = self.client.get_prefix(self.keys.pairs)
        found.sort(key=lambda kv: kv.create_revision)
        participants, groups = self.keys.pairs_participant(""), self.keys.pairs_group("")
        return _View(
            tuple(c for kv in found if kv.key.startswith(participants) and (c := _decoded(Participant, kv))),
            tuple(
                (kv.key.removeprefix(groups), h)
                for kv in found
                if kv.key.startswith(groups) and (h := _decoded(Group, kv))
            ),
        )

    def _verdict(self, group: Group) -> Verdict:
        blamed = (s for s in group.sick if s.id == self.me.id or (s.node and s.node == self.me.node))
        message = next((s.message for s in blamed), "")
        if not message and not group.rounds:
            return self._unknown("no other node was checked at the same time")
        if not message and self.me.reports and not any(r.ok for r in self.me.reports):
            return self._unknown(
                f"none of {len(self.me.reports)} pairs completed a sum, and no partner is known to be healthy"
            )
        return Verdict(sick=message, reports=self._reports())

    def _unknown(self, why: str) -> Verdict:
        return Verdict(unknown=why, reports=self._reports())

    def _reports(self) -> tuple[tuple[str, Report], ...]:
        return tuple((self._nodes.get(r.partner, r.partner), r) for r in self.me.reports)


def _decoded(kind: type[R], kv: KeyValue) -> R | None:
    """None for an unreadable record, which a newer version may have written."""
    try:
        return kind.decode(kv.value)
    except Unreadable:
        return None


def by_process(backend: str) -> Trial:
    """Runs a trial in its own process (:mod:`elastrain_pairs.trial`) over ``backend``: gloo or nccl."""

    def trial(host: str, port: int, rank: int, address: str) -> dict[str, float]:
        command = [sys.executable, "-m", "elastrain_pairs.trial", host, str(port), str(rank), address, backend]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no sum within {TRIAL_SECONDS:.0f} s") from None
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures

    return trial
