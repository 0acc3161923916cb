"""A job in memory, for tests of decisions: what etcd would hold, and how members behave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

import builders
from elastrain.api.records import Generation, Member, Phase, Target
from elastrain.api.records.roster import KEPT
from elastrain.jobstate import RegisteredMember
from elastrain.rendezvous.decide import Action, Condemn, DecisionState, Propose, Timing, decide, remember
from elastrain.rendezvous.view import View


@dataclass
class Job:
    """Members are named by their worker; the leader's memory is followed, as every member's would be the same."""

    target: Target | None = field(default_factory=lambda: Target(min=1, max=8, desired=8))
    timing: Timing = field(default_factory=Timing)
    now: float = 1000.0
    step: int = 0
    group_size: int = 1
    one_copy: bool = False
    finished: bool = False
    members: dict[str, RegisteredMember] = field(default_factory=dict)
    gone: dict[str, RegisteredMember] = field(default_factory=dict)
    notified: dict[int, str] = field(default_factory=dict)
    generations: list[Generation] = field(default_factory=list)
    memory: DecisionState = field(default_factory=DecisionState)
    revision: int = 1

    # ---- what happens ----------------------------------------------------------------------------------------------
    def join(self, *workers: str, ready: bool = True, slots: int = 1, incarnation: int = 0, **fields: int) -> None:
        """With ``group_size`` > 1, ``a0`` and ``a1`` are the places 0 and 1 of one group, unless ``fields`` differ."""
        for worker in workers:
            self.revision += 1
            if self.group_size > 1:
                own = {"group": ord(worker[0]), "place": int(worker[1]), "group_size": self.group_size, **fields}
            else:
                own = {"one_copy": self.one_copy, **fields}
            member = f"{worker}.{incarnation or self.revision}"
            record = Member.model_validate({"id": member, "worker": worker, "address": worker, "slots": slots, **own})
            self.members[record.id] = RegisteredMember(record, self.revision)
            if ready:
                self.set(worker, phase=Phase.READY, store_port=1)

    def seen(self, worker: str) -> RegisteredMember:
        return next(m for m in reversed(self.members.values()) if m.record.worker == worker)

    def set(self, worker: str, **changes: object) -> None:
        seen = self.seen(worker)
        self.revision += 1
        self.members[seen.id] = replace(seen, record=Member.model_validate({**seen.record.model_dump(), **changes}))

    def ready(self, *workers: str) -> None:
        for worker in workers:
            self.set(worker, phase=Phase.READY, store_port=1)

    def die(self, *workers: str) -> None:
        """Their keys vanish."""
        for worker in workers:
            self.revision += 1
            seen = self.members.pop(self.seen(worker).id)
            self.gone[seen.id] = seen

    def fail(self, *workers: str) -> None:
        """They see the generation that they are in fail."""
        for worker in workers:
            seen = self.seen(worker)
            self.set(worker, broken=self.view().adopted_by(seen))

    def adopt(self) -> None:
        """All members of the newest generation switch to it; of an empty one, everybody stops.

        Agents say so where they hold rank 0 or have stopped for it; the others' word comes when they change otherwise.
        """
        if not self.generations:
            return
        newest = self.generations[-1]
        view = self.view()
        first = newest.first
        for seen in list(self.members.values()):
            stopped = newest.member(seen.id) is None and view.adopted_by(seen)
            if stopped or (first is not None and seen.id == first.id):
                self.set(seen.record.worker, generation=newest.number)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    # ---- what is decided -------------------------------------------------------------------------------------------
    @property
    def base(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    def view(self, self_id: str = "") -> View:
        view = View(
            self_id="",
            target=self.target,
            members=tuple(self.members.values()),
            generation=self.base,
            generation_mod_revision=len(self.generations),
            generations=tuple(self.generations[-KEPT:]),
            gone=tuple(self.gone.values()),
            notified=self.notified,
            finished=self.finished,
            step=self.step,
        )
        leader = next(iter(view.alive), None)  # the eldest: as good as any
        return replace(view, self_id=self_id or leader or "", leader=leader)

    def decide(self) -> Action:
        """What the leader decides now."""
        view = self.view()
        self.memory = remember(self.memory, view, self.now, self.timing)
        return decide(view, self.memory, self.now, self.timing)

    def run(self) -> Action:
        """Decide, and write what is proposed."""
        action = self.decide()
        if isinstance(action, Propose):
            assert action.expected_mod_revision == len(self.generations)
            self.generations.append(action.generation)
            self.notified.update(dict.fromkeys(action.generation.ended, action.generation.why))
        elif isinstance(action, Condemn):
            self.notified.update(dict.fromkeys(action.numbers, action.why))
        return action

    def workers(self) -> list[str]:
        """Workers of the newest generation, in rank order."""
        return [m.worker for m in self.base.members] if self.base else []

    def train(self, *workers: str) -> None:
        """Form the first generation of these and adopt it."""
        self.join(*workers)
        self.run()
        self.pass_time(self.timing.settle)
        self.run()
        assert self.workers() == list(workers)
        self.adopt()
        self.run()


@pytest.fixture
def make_job() -> Callable[..., Job]:
    return Job


@pytest.fixture
def job() -> Job:
    """An empty job: 1 to 8 members, 8 wanted."""
    return Job()


@pytest.fixture
def make_generation() -> Callable[[int], Generation]:
    """A generation of so many members."""

    return lambda size: builders.generation(3, *(f"w{i}.x" for i in range(size)))
