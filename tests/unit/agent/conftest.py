"""A core with its history, driven by short calls."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

import builders
from elastrain.agent.core.events import (
    Effect,
    Event,
    JobSnapshot,
    RankExited,
    RankHungUp,
    RankSaid,
    Registered,
    Send,
    Tick,
)
from elastrain.agent.core.machine import Core
from elastrain.api.messages import Adopted, AgentMessage, Broken, Finished, Hello, Left, Ready
from elastrain.api.records import Generation, Member, Phase, Target


def member(worker: str, phase: Phase = Phase.READY, **fields) -> Member:
    return Member(id=f"{worker}.x", worker=worker, address="10.0.0.1", phase=phase, store_port=1, **fields)


def generation(number: int, *workers: str, slots: int = 1, reason: str = "Grow") -> Generation:
    return builders.generation(number, *(f"{w}.x" for w in workers), slots=slots, reason=reason, leader="a.x")


class Story:
    """Worker ``a`` and its core. Every call returns the effects that it caused; ``log`` keeps all of them."""

    def __init__(self, nproc: int = 1) -> None:
        self.now = 100.0
        self.core = Core(builders.settings(nproc=nproc))
        self.log: list[Effect] = []
        self._ids = itertools.chain(["a.x"], (f"a.x{i}" for i in itertools.count(2)))
        self.target = Target(min=1, max=4, desired=2)
        self.others: tuple[Member, ...] = ()
        self.ended: dict[int, str] = {}
        self.generation: Generation | None = None
        self.finished, self.diverged = False, ""

    def event(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.log += effects
        return effects

    def later(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.event(Tick())

    def registered(self) -> list[Effect]:
        return self.event(Registered(next(self._ids)))

    def seen(self) -> list[Effect]:
        members = {m.id: m for m in self.others}
        if self.core.member_id:
            members[self.core.member_id] = member("a").model_copy(update={"id": self.core.member_id})
        return self.event(
            JobSnapshot(self.target, self.generation, dict(self.ended), self.finished, self.diverged, members=members)
        )

    def sees(self, generation: Generation | None = None, **fields) -> list[Effect]:
        """etcd now contains ``generation``, if given, and ``fields``."""
        self.generation = generation or self.generation
        for name, value in fields.items():
            setattr(self, name, value)
        return self.seen()

    def says(self, message, rank: int = 0) -> list[Effect]:
        return self.event(RankSaid(self.core.incarnation, rank, message))

    def started(self) -> Story:
        self.registered()
        self.seen()
        return self

    def ready(self) -> Story:
        self.started()
        for rank in range(self.core.settings.nproc):
            self.says(Hello(local_rank=rank, pid=1000 + rank), rank)
            self.says(Ready(store_port=4000), rank)
        return self

    def hears_the_end_of(self, *numbers: int, why: str = "worker b is gone") -> list[Effect]:
        """The leader has ended these generations."""
        self.ended.update(dict.fromkeys(numbers, why))
        return self.seen()

    def training_in(self, generation: Generation) -> Story:
        """All ranks are ready and have adopted ``generation``."""
        self.ready()
        self.sees(generation)
        for rank in range(self.core.settings.nproc):
            self.adopts(generation.number, rank=rank)
        return self

    def adopts(self, number: int, step: int = 10, rank: int = 0) -> list[Effect]:
        return self.says(Adopted(generation=number, step=step), rank)

    def breaks(self, number: int, step: int = 10, rank: int = 0) -> list[Effect]:
        return self.says(Broken(generation=number, step=step, error="connection reset"), rank)

    def leaves(self, step: int = 10, rank: int = 0) -> list[Effect]:
        return self.says(Left(step=step), rank) + self.exits(rank=rank)

    def finishes(self, step: int = 50, rank: int = 0) -> list[Effect]:
        return self.says(Finished(step=step), rank)

    def exits(self, code: int = 0, signal: int = 0, rank: int = 0, log: str = "") -> list[Effect]:
        self.event(RankHungUp(self.core.incarnation, rank))
        before = len(self.log)
        self.event(RankExited(self.core.incarnation, rank, code, signal, log))
        return self.log[before:]


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def new_story():
    return Story


@pytest.fixture
def make_generation():
    return generation


@pytest.fixture
def sent():
    def sent(effects: Iterable[Effect], kind: type[AgentMessage]) -> list[AgentMessage]:
        return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]

    return sent


@pytest.fixture
def make_member():
    return member
