"""Properties of all decisions about Workloads: random histories of admissions, evictions, losses and killed operators.

The messages of the assertions are the promises.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.kueue.admission import decide
from elastrain_operator.kueue.workload import (
    AHEAD,
    Activate,
    Change,
    Create,
    Decision,
    Delete,
    Finish,
    Flavor,
    Holder,
    Memory,
    Queue,
    Ready,
    Release,
    Request,
    View,
    Workload,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FLAVOR = "plain"
STEPS = (
    "pass", "pass", "pass", "killed pass", "admit", "evict", "evict", "ready", "leave", "die", "suspend", "size",
    "delete", "relabel", "wait",
)  # fmt: skip


class World:
    """One job, its pods, and a Kueue that admits and evicts at random. The runtime obeys the job's share."""

    def __init__(self, minimum: int, wanted: int, pods: int, strict: bool) -> None:
        self.request = Request("job-1", "lq", minimum, wanted, pods=pods, shape="a")
        self.queue = Queue("cq", strict)
        self.workloads: dict[str, Workload] = {}
        self.pods: dict[str, Holder] = {}
        self.memory, self.now, self.serial = Memory(), NOW, 0
        self.grow()

    def grow(self) -> None:
        """Kueue admits everything, and all pods become ready."""
        for _ in range(5):
            self.step("pass", 0)
            for n in range(len(self.workloads)):
                self.step("admit", n)
            for n in range(len(self.pods)):
                self.step("ready", n)

    def decided(self) -> Decision:
        holders, view = tuple(self.pods.values()), self.view()
        made = decide(self.request, view, holders, self.memory, self.now)
        self.check(made)
        return made

    def view(self) -> View:
        return View("", tuple(self.workloads.values()), self.queue, {FLAVOR: Flavor((("pool", "a"),))}, 100)

    def check(self, made: Decision) -> None:
        held = {p.workload for p in self.pods.values()}
        for write in made.writes:
            if isinstance(write, (Delete, Release)):
                assert write.name not in held, "quota goes back only when the last pod is gone"
            if isinstance(write, Create):
                assert write.name not in self.workloads, "a replica never has two Workloads"
        created = [w for w in made.writes if isinstance(w, Create)]
        assert len({w.name for w in created}) == len(created), "a replica never has two Workloads"
        deleted = {w.name for w in made.writes if isinstance(w, Delete)}
        extras = [w for w in self.workloads.values() if w.index and not w.reserved and w.name not in deleted]
        waiting = [w for w in extras if not self.on(w.name)]
        assert len(waiting) + sum(w.index > 0 for w in created) <= AHEAD or not created, "few extras wait"
        for seat in made.charges:
            assert self.workloads[seat.workload].runs, "a pod is created only in an admitted Workload"
        for name in {s.workload for s in made.charges}:
            total = sum(p.workload == name for p in self.pods.values()) + sum(s.workload == name for s in made.charges)
            assert total <= self.workloads[name].count, "a Workload never has more pods than it was admitted for"
        assert (made.share.size or 0) * self.request.pods <= sum(w.count for w in self.workloads.values() if w.runs)

    def on(self, workload: str) -> bool:
        return any(p.workload == workload for p in self.pods.values())

    def execute(self, made: Decision, most: int) -> None:
        """The loop: pods first, then ``most`` of the writes."""
        self.request = dataclasses.replace(self.request, size=made.share.size or 0)
        vacant = (made.share.size or 0) * self.request.pods - len(self.pods)
        for seat in made.charges[: max(vacant, 0)]:
            self.serial += 1
            self.pods[f"p{self.serial}"] = Holder(f"p{self.serial}", seat.workload)
        self.memory = made.memory
        for write in made.writes[:most]:
            self.write(write)

    def write(self, write: object) -> None:
        known = self.workloads
        match write:
            case Create(name=name, index=index, count=count, priority=priority):
                self.serial += 1
                known[name] = Workload(name, str(self.serial), index, self.request.queue, count, priority, shape="a")
            case Delete(name=name):
                del known[name]
            case Release(name=name):
                known[name] = dataclasses.replace(known[name], reserved=False, admitted=False, flavors=(), ready=False)
            case Activate(name=name, active=active):
                evicted = known[name].evicted or ("" if active else "Deactivated")
                known[name] = dataclasses.replace(known[name], active=active, suspended=not active, evicted=evicted)
            case Change(name=name, queue=queue, priority=priority):
                given = {"queue": queue, "priority": priority}
                known[name] = dataclasses.replace(known[name], **{k: v for k, v in given.items() if v is not None})
            case Ready(name=name, ready=ready):
                known[name] = dataclasses.replace(known[name], ready=ready)
            case Finish(name=name):
                known[name] = dataclasses.replace(known[name], finished=True)

    def step(self, what: str, draw: int) -> None:
        known, pods = sorted(self.workloads), sorted(self.pods)
        some = self.workloads[known[draw % len(known)]] if known else None
        if what in ("pass", "killed pass"):
            made = self.decided()
            self.execute(made, len(made.writes) if what == "pass" else draw % (len(made.writes) + 1))
        elif what == "admit" and some and some.active and not some.reserved and not some.finished:
            changed = {"reserved": True, "admitted": True, "flavors": (FLAVOR,), "evicted": ""}
            self.workloads[some.name] = dataclasses.replace(some, **changed)
        elif what == "evict" and some and some.reserved:
            self.workloads[some.name] = dataclasses.replace(some, evicted="Preempted")
        elif what == "delete" and some and not self.on(some.name):
            del self.workloads[some.name]
        elif what == "ready" and pods:
            self.pods[pods[draw % len(pods)]] = dataclasses.replace(self.pods[pods[draw % len(pods)]], ready=True)
        elif what == "leave":
            leaving = sorted(self.decided().share.release & self.pods.keys())
            for name in leaving[: 1 + draw % 2]:
                del self.pods[name]
        elif what == "die" and pods:
            del self.pods[pods[draw % len(pods)]]
        elif what == "suspend":
            self.request = dataclasses.replace(self.request, suspend=not self.request.suspend)
        elif what == "size":
            self.request = dataclasses.replace(self.request, wanted=self.request.minimum + draw % 6)
        elif what == "relabel":
            self.request = dataclasses.replace(self.request, queue=("lq", "other", "")[draw % 3])
        elif what == "wait":
            self.now += timedelta(seconds=draw % 60)


@examples(150)
@given(
    st.integers(1, 3),
    st.integers(0, 4),
    st.integers(1, 2),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99)), max_size=60),
)
def test_promises_hold_in_any_history(
    minimum: int, more: int, pods: int, strict: bool, steps: list[tuple[str, int]]
) -> None:
    world = World(minimum, minimum + more, pods, strict)
    for what, draw in steps:
        world.step(what, draw)
        world.decided()


@examples(50)
@given(
    st.integers(1, 3), st.integers(0, 4), st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99)), max_size=40)
)
def test_a_job_reaches_all_that_it_asks_for_after_any_history_if_the_quota_is_free(
    minimum: int, more: int, steps: list[tuple[str, int]]
) -> None:
    world = World(minimum, minimum + more, 1, strict=False)
    for what, draw in steps:
        world.step(what, draw)
    world.request = dataclasses.replace(world.request, suspend=False, queue="lq", wanted=minimum + more)
    for _ in range(60):
        world.step("pass", 0)
        for _ in range(len(world.pods)):
            world.step("leave", 1)
        for n in range(len(world.workloads)):
            world.step("admit", n)
        for n in range(len(world.pods)):
            world.step("ready", n)
        world.now += timedelta(seconds=60)
    assert len(world.pods) == minimum + more, "idle quota is used"
    assert all(w.runs and w.ready for w in world.workloads.values())
