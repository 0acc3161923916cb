"""Carries the measurement of pairs out: checks of a job's workers find each other through etcd and measure in rounds.

Every check writes a record of its own, under its lease. The oldest one that is in no heat yet forms one, of all who are
there, when nobody else is to be waited for; it says who meets whom in each round, and at the end who is sick. So each
check writes once per round at most, and no two write the same key. Whatever does not come about in time is unknown, and
unknown keeps nobody from training.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pydantic import ValidationError

from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Target
from elastrain.etcd import EtcdClient, EtcdError, KeyValue, Lease
from elastrain.nodecheck import decide
from elastrain.nodecheck.records import Contestant, Heat, Report

LEASE_SECONDS = 10
HEAT_SECONDS = 600
"""How long a heat's record is kept: longer than it can last."""
MATCH_SECONDS = 60.0
"""Bound of one match: connecting and summing have bounds of their own in it, importing torch has not."""
ROUND_SECONDS = 75.0
"""After which a round goes on without those who have not reported: more than a match and the lease of one who died."""
FORM_SECONDS = 30.0
"""Beyond the wait for others, until the oldest has formed the heat."""


R = TypeVar("R", Contestant, Heat)


class Play(Protocol):
    """Measures one pair: figures by name, as ``match.py`` prints them. Raises ``RuntimeError`` with the reason."""

    def __call__(self, host: str, port: int, rank: int, address: str) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the measurements say about this node."""

    sick: str = ""
    """Why it is blamed, in words; empty: it is not."""
    unknown: str = ""
    """Why nothing is known; empty: it was measured, or another worker of its node was."""
    reports: tuple[tuple[str, Report], ...] = ()
    """The partners' nodes and how it went with each."""


@dataclass(frozen=True, slots=True)
class _View:
    """All records of one revision."""

    contestants: tuple[Contestant, ...]
    """Oldest first; those whose checks still run."""
    heats: tuple[tuple[str, Heat], ...]
    """Leader's id and record, oldest first."""

    def heat_of(self, contestant_id: str) -> tuple[str, Heat] | None:
        return next(((i, h) for i, h in self.heats if contestant_id in h.contestants), None)


@dataclass
class Check:
    """One check's part. :meth:`run` blocks until there is a verdict."""

    client: EtcdClient
    keys: JobKeys
    me: Contestant
    wait: float
    """Seconds to wait for other workers' checks."""
    play: Play
    period: float = 1.0
    """Seconds between two looks at the records."""
    _began: float = field(default_factory=time.monotonic)
    _seats: tuple[str, ...] = ()
    """Ids of those who are measured, where this check leads."""
    _round_until: float = 0.0
    _own: Lease | None = None
    _heat_lease: int = 0
    _nodes: dict[str, str] = field(default_factory=dict)
    """Of all contestants ever seen: a partner may have gone when its name is wanted."""

    def run(self) -> Verdict:
        """Take part until the heat is over. Bounded by the wait and four rounds; an outage of etcd ends it at once."""
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
            self._nodes |= {c.id: c.node or c.worker for c in view.contestants}
            verdict = self._step(view)
            if verdict is not None:
                return verdict
            # Everybody reads everybody's record: the more there are, the less often.
            time.sleep(self.period * max(1.0, len(view.contestants) / 100))
        return self._unknown(f"the measurements were not over within {bound:.0f} s")

    def _step(self, view: _View) -> Verdict | None:
        mine = view.heat_of(self.me.id)
        waited = time.monotonic() - self._began
        if mine is None:
            unseated = [c for c in view.contestants if view.heat_of(c.id) is None]
            if unseated and unseated[0].id == self.me.id and self._is_complete(unseated, view, waited):
                self._form(unseated[: decide.MOST_SEATS])
            elif waited > self.wait + FORM_SECONDS:
                return self._unknown(f"no heat was formed within {waited:.0f} s")
            return None
        leader, heat = mine
        if heat.done:
            return self._verdict(heat)
        if leader not in {c.id for c in view.contestants}:
            return self._unknown("the check that led the measurements has gone")
        self._play(heat, view)
        if leader == self.me.id:
            self._lead(heat, view)
        return None

    # ---- as one of a pair ------------------------------------------------------------------------------------------
    def _play(self, heat: Heat, view: _View) -> None:
        """Meet the partner of the newest round, unless that has been done."""
        number = len(heat.rounds) - 1
        pair = next((p for p in heat.rounds[-1] if self.me.id in p), None) if heat.rounds else None
        if pair is None or any(r.round == number for r in self.me.reports):
            return
        host = next((c for c in view.contestants if c.id == pair[0]), None)
        partner = pair[1] if pair[0] == self.me.id else pair[0]
        if host is None:
            report = Report(round=number, partner=partner, ok=False, why="the partner has gone")
        else:
            try:
                figures = self.play(host.address, host.port, pair.index(self.me.id), self.me.address)
                report = Report(round=number, partner=partner, ok=True, **figures)
            except RuntimeError as error:
                report = Report(round=number, partner=partner, ok=False, why=str(error))
        self.me = self.me.model_copy(update={"reports": (*self.me.reports, report)})
        self._publish()

    # ---- as the leader ---------------------------------------------------------------------------------------------
    def _is_complete(self, unseated: list[Contestant], view: _View, waited: float) -> bool:
        held = self.client.get(self.keys.target)
        target = Target.decode(held.value) if held else None
        members, _ = self.client.get_prefix(self.keys.members)
        workers = {Member.decode(kv.value).worker for kv in members} - {c.worker for c in unseated}
        workers |= {c.worker for c in view.contestants if view.heat_of(c.id) is not None}
        desired = target.desired if target else None
        return decide.is_complete(len(unseated), len(workers), desired, waited, self.wait)

    def _form(self, contestants: list[Contestant]) -> None:
        self._seats = tuple(c.id for c in decide.seats(contestants))
        self._heat_lease = self.client.lease_grant(HEAT_SECONDS)
        self._write(Heat(contestants=tuple(c.id for c in contestants)))

    def _lead(self, heat: Heat, view: _View) -> None:
        """The next round when this one is over, and the verdict after the last."""
        there = {c.id: c for c in view.contestants if c.id in self._seats} | {self.me.id: self.me}
        last = len(heat.rounds) - 1
        if heat.rounds and not decide.is_over(heat.rounds[-1], last, there) and time.monotonic() < self._round_until:
            return
        outcomes = decide.judge(heat.rounds, there)
        pairs = decide.next_round(self._seats, heat.rounds, outcomes, there)
        if pairs:
            self._round_until = time.monotonic() + ROUND_SECONDS
            self._write(heat.model_copy(update={"rounds": (*heat.rounds, pairs)}))
        else:
            self._write(heat.model_copy(update={"done": True, "sick": decide.blame(outcomes, there)}))

    def _write(self, heat: Heat) -> None:
        self.client.put(self.keys.pairs_heat(self.me.id), heat.encode(), lease=self._heat_lease)

    def _publish(self) -> None:
        assert self._own is not None
        self._own.set(self.keys.pairs_contestant(self.me.id), self.me.encode())

    # ---- records ---------------------------------------------------------------------------------------------------
    def _read(self) -> _View:
        found, _ = self.client.get_prefix(self.keys.pairs)
        found.sort(key=lambda kv: kv.create_revision)
        contestants, heats = self.keys.pairs_contestant(""), self.keys.pairs_heat("")
        return _View(
            tuple(c for kv in found if kv.key.startswith(contestants) and (c := _decoded(Contestant, kv))),
            tuple(
                (kv.key.removeprefix(heats), h)
                for kv in found
                if kv.key.startswith(heats) and (h := _decoded(Heat, kv))
            ),
        )

    def _verdict(self, heat: Heat) -> Verdict:
        blamed = (s for s in heat.sick if s.id == self.me.id or (s.node and s.node == self.me.node))
        words = next((s.words for s in blamed), "")
        if not words and not heat.rounds:
            return self._unknown("no other node was checked at the same time")
        if not words and self.me.reports and not any(r.ok for r in self.me.reports):
            return self._unknown(f"none of {len(self.me.reports)} pairs did a sum, and no partner is known to be well")
        return Verdict(sick=words, reports=self._reports())

    def _unknown(self, why: str) -> Verdict:
        return Verdict(unknown=why, reports=self._reports())

    def _reports(self) -> tuple[tuple[str, Report], ...]:
        return tuple((self._nodes.get(r.partner, r.partner), r) for r in self.me.reports)


def _decoded(kind: type[R], kv: KeyValue) -> R | None:
    """None for a record that cannot be read, as if it were not there: a newer version may have written it."""
    try:
        return kind.decode(kv.value)
    except ValidationError:
        return None


def by_process(backend: str) -> Play:
    """Plays a match in a process of its own (:mod:`elastrain.nodecheck.trial`) over ``backend``: gloo or nccl."""

    def play(host: str, port: int, rank: int, address: str) -> dict[str, float]:
        command = [sys.executable, "-m", "elastrain.nodecheck.trial", host, str(port), str(rank), address, backend]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MATCH_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no sum within {MATCH_SECONDS:.0f} s") from None
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
        figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return figures

    return play
