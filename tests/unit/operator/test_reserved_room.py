"""Room of pods that Kueue has admitted and no node has yet: the allocator does not share it out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from conditions import until
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import (
    Claims,
    Held,
    Job,
    Node,
    NodeRules,
    Policy,
    Snapshot,
    Worker,
    WorkerShape,
)
from elastrain_operator.cluster import capacity as capacity_module
from elastrain_operator.cluster.capacity import Capacity
from elastrain_operator.facts import Pod
from elastrain_operator.kueue.admission import decide
from elastrain_operator.kueue.jobs import KueuePass
from elastrain_operator.kueue.workload import Flavor, Holder, Memory, Queue, Request, View, Workload
from elastrain_resource.job import JobSpec

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
A100 = dataclasses.replace(ONE, place=NodeRules((("pool", "a100"),)))


def node(name: str, free: int, pool: str = "") -> Node:
    return Node(name, {GPU: free, "pods": 100}, {"pool": pool})


def job(most: int, on: tuple[str, ...] = (), spares: int = 0, least: int = 1) -> Job:
    """Its last ``spares`` workers are warm spares."""
    places = enumerate(on)
    workers = tuple(Worker(f"w{n}", at, ONE.demand, True, spare=n >= len(on) - spares) for n, at in places)
    return Job("j", "ns", "j", least, most, ONE, workers=workers, size=len(on) - spares, trains=bool(on), spares=spares)


def size(
    nodes: list[Node], shared: Job, reserved: Mapping[WorkerShape, int], leaving: tuple[Held, ...] = ()
) -> int | None:
    seen = Snapshot(tuple(nodes), (shared,), leaving, tuple(reserved.items()))
    return allocate(seen, Policy(hysteresis=0), NOW).shares["j"].size


def test_a_job_grows_only_into_room_that_no_admitted_pod_needs() -> None:
    assert size([node("n", 8)], job(8), {ONE: 3}) == 5
    assert size([node("n", 2)], job(8, least=2), {ONE: 1}) == 0, "a minimum does not take it either"


def test_admitted_pods_reserve_room_only_on_nodes_of_their_flavor() -> None:
    nodes = [node("n", 4), node("a", 4, "a100")]
    assert size(nodes, job(8), {A100: 3}) == 5
    assert size(nodes[:1], job(8), {A100: 3}) == 4


def test_admitted_pods_come_first_where_workers_leave() -> None:
    leaving = (Held("n", ONE.demand), Held("n", ONE.demand))
    assert size([node("n", 4)], job(8), {ONE: 2}, leaving) == 0, "the free half is theirs"
    assert size([node("n", 3)], job(8), {ONE: 2}, leaving) == 0, "and the room that becomes free"


def test_workers_stay_if_admitted_pods_find_no_room_and_spares_leave() -> None:
    assert size([node("n", 3)], job(3, on=("n",) * 3), {ONE: 1}) == 3
    seen = Snapshot((node("n", 3),), (job(2, on=("n",) * 3, spares=1),), (), ((ONE, 1),))
    share = allocate(seen, Policy(hysteresis=0), NOW).shares["j"]
    assert (share.size, share.spares, share.release) == (2, 0, {"w2"})


@examples(100)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 12), st.integers(1, 12), st.integers(0, 4))
def test_jobs_and_admitted_pods_never_have_more_than_the_nodes(
    free: list[int], reserved: int, most: int, held: int
) -> None:
    nodes = [node(f"n{n}", room) for n, room in enumerate(free)]
    on = tuple(n.name for n in nodes for _ in range(n.room[GPU]))[:held]
    got = size(nodes, job(most, on), {ONE: reserved}) or 0
    placed = min(reserved, sum(free) - len(on))
    assert got + placed <= max(sum(free), 1), "no room is given twice"
    assert got >= min(len(on), most), "no worker leaves for them"


# ---- what Kueue has admitted ----------------------------------------------------------------------------------------
CONTAINER = {"name": "trainer", "image": "t", "command": ["t"], "resources": {"limits": {GPU: 1}}}
SPEC = JobSpec.model_validate(
    {"minReplicas": 2, "maxReplicas": 5, "template": {"spec": {"containers": [CONTAINER], "nodeSelector": {"a": "b"}}}}
)
REQUEST = Request("job-1", "lq", minimum=2, wanted=5, shape="s")
BASE = Workload("job-1", "b", 0, "lq", 2, 100, shape="s", reserved=True, admitted=True, flavors=("a",))
EXTRA = dataclasses.replace(BASE, name="job-1-1", uid="e", index=1, count=1, priority=99)


def unbound(*workloads: Workload, pods: tuple[Holder, ...] = (), **more: object) -> Mapping[WorkerShape, int] | None:
    flavors = {"a": Flavor((("pool", "a100"),))}
    view = View(workloads=workloads, queue=Queue("cq"), flavors=flavors, priority=100)
    view = dataclasses.replace(view, **more)
    request = dataclasses.replace(REQUEST, ended="Succeeded") if more.get("workloads") == () else REQUEST
    return KueuePass(request, view, decide(request, view, pods, Memory(), NOW), None).unbound(SPEC)


def test_admitted_workers_are_counted_until_they_are_on_a_node() -> None:
    made = unbound(BASE, EXTRA)
    assert made is not None
    [(kind, count)] = made.items()
    assert (count, kind.place.selector) == (3, (("a", "b"), ("pool", "a100")))
    assert dict(kind.demand)[GPU] == 1
    on, pending = Holder("p0", "job-1"), Holder("p1", "job-1", bound=False)
    assert list((unbound(BASE, EXTRA, pods=(on, pending)) or {}).values()) == [2]
    waits = dataclasses.replace(EXTRA, reserved=False, admitted=False, flavors=())
    assert unbound(BASE, waits, pods=(on, dataclasses.replace(on, name="p1"))) == {}


def test_nothing_is_known_of_admitted_workers_while_kueue_is_unknown_and_none_is_left_after_the_end() -> None:
    assert unbound(BASE, EXTRA, problem="no answer") is None
    assert unbound(workloads=()) == {}


class Cluster:
    problem, denied = None, False

    def nodes(self, now: datetime) -> tuple[Node, ...]:
        return (node("n", 8),)

    def next_change(self, now: datetime) -> None:
        return None

    def quotas(self, namespace):
        return ()

    def priority(self, name: str) -> int:
        return 0

    def preempts(self, name: str) -> bool:
        return True


def test_a_reservation_ends_when_its_pods_are_bound_or_its_job_leaves_kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_module, "COALESCE", 0.001)
    monkeypatch.setattr(capacity_module, "REST", 0.001)

    async def main() -> None:
        shared = Capacity(Policy(hysteresis=0), lambda _uid: None)
        task = asyncio.create_task(shared.run(Cluster()))

        async def grows_to(workers: int) -> None:
            await until(lambda: shared.share_of("j").size == workers, f"{workers} workers")

        shared.reserve("q", {ONE: 3})
        shared.claim("j", Claims(job(8)))
        await grows_to(5)
        pod = Pod("q-0", "u", 0, NOW, node="n", demand=ONE.demand)
        shared.pod_seen("q", pod, "u")
        shared.reserve("q", {ONE: 1})
        await grows_to(6)
        shared.reserve("q", None)
        shared.reserve("q", {})
        await grows_to(7)
        shared.reserve("q", {ONE: 2})
        await grows_to(5)
        shared.forget("q")
        shared.pod_seen("q", None, "u")
        await grows_to(8)
        task.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_no_pod_of_a_queued_job_is_created_for_which_another_one_s_would_be_evicted(monkeypatch: pytest.MonkeyPatch):
    """Eight places, five of them held by a job of lower priority."""
    monkeypatch.setattr(capacity_module, "COALESCE", 0.001)
    monkeypatch.setattr(capacity_module, "REST", 0.001)
    monkeypatch.setattr(Cluster, "priority", lambda _, name: 9 if name == "high" else 0)

    async def main() -> None:
        woken: list[str] = []
        shared = Capacity(Policy(hysteresis=0), woken.append)
        task = asyncio.create_task(shared.run(Cluster()))
        shared.claim("j", Claims(job(5, ("n",) * 5, least=5)))
        await until(lambda: shared.share_of("j").size == 5, "its minimum")
        assert shared.reserve("q", {ONE: 4}, "high") == 4, "it is not known yet which of them have room"
        assert shared.reserve("q", {ONE: 4}) == 0, "without a higher priority no worker is evicted"
        await until(lambda: "q" in woken, "the next allocation")
        assert shared.reserve("q", {ONE: 4}, "high") == 1
        task.cancel()

    asyncio.run(asyncio.wait_for(main(), 20))
