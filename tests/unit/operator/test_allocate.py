"""Sharing the cluster out: one example per rule. test_allocate_properties.py has the general properties."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.match import lets_go, selects, takes
from elastrain_operator.allocation.snapshot import (
    Held,
    Job,
    Node,
    NodeRules,
    Policy,
    Requirement,
    Share,
    Snapshot,
    Taint,
    Toleration,
    Worker,
    WorkerShape,
)
from elastrain_resource.sizing.speedup import Measured

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def gpus(n: int) -> tuple[tuple[str, int], ...]:
    return ((GPU, n), ("pods", 1)) if n else (("pods", 1),)


def node(name: str, free: int = 8, **fields) -> Node:
    return Node(name, {GPU: free, "pods": 100}, **fields)


def job(name: str, least: int = 1, most: int = 4, on: tuple[str, ...] = (), per: int = 1, **fields) -> Job:
    """A job that trains with one worker on each node named in ``on``."""
    kind = WorkerShape(gpus(per), fields.pop("place", NodeRules()))
    workers = tuple(Worker(f"{name}-{i}", n, gpus(per), trains=True) for i, n in enumerate(on))
    fields = {"namespace": "ns", "size": len(on), "trains": bool(on), **fields}
    return Job(uid=name, name=name, min=least, cap=most, kind=kind, workers=workers, **fields)


def shares(nodes, *jobs: Job, policy: Policy | None = None, leaving=()) -> dict[str, Share]:
    return dict(allocate(Snapshot(tuple(nodes), jobs, tuple(leaving)), policy or Policy(), NOW).shares)


def sizes(nodes, *jobs: Job, **more) -> dict[str, int | None]:
    return {name: share.size for name, share in shares(nodes, *jobs, **more).items()}


# ---- one job --------------------------------------------------------------------------------------------------------
def test_elastic_job_starts_with_all_that_it_may_have_if_there_is_room():
    assert sizes([node("n")], job("a", 1, 4)) == {"a": 4}


def test_elastic_job_starts_with_the_workers_that_fit_and_reports_what_the_next_one_needs():
    got = shares([node("n", 10)], replace(job("a", 1, 4, per=4), nproc=4))["a"]
    assert (got.size, got.reason) == (2, "NoRoom")
    assert got.message == f"not grown: 2 {GPU} idle, 4 needed for the next worker (nprocPerNode 4)"


def test_fragmented_room_is_reported():
    got = shares([node("n", 3), node("m", 3)], job("a", 1, 4, on=("x",), per=4))["a"]
    assert got.message == f"not grown: 6 {GPU} idle, at most 3 on one node, 4 needed for the next worker"


def test_cpu_only_job_is_placed_by_its_requests():
    cpu = WorkerShape((("cpu", 3000), ("memory", 2**30), ("pods", 1)))
    four_cores = Node("n", {"cpu": 4000, "memory": 2**34, "pods": 10})
    got = shares([four_cores, replace(four_cores, name="m")], replace(job("a", 1, 8), kind=cpu))["a"]
    assert got.size == 2
    assert got.message == "not grown: 2 cpu idle, 3 needed for the next worker"


def test_another_scarce_resource_is_reported_if_accelerators_are_free():
    kind = WorkerShape((("cpu", 4000), (GPU, 1), ("pods", 1)))
    n = Node("n", {"cpu": 1000, GPU: 8, "pods": 10})
    got = shares([n], replace(job("a", 1, 8, on=("n",)), kind=kind))["a"]
    assert "cpu is short" in got.message


# ---- which nodes ----------------------------------------------------------------------------------------------------
def test_only_nodes_that_take_the_worker_count():
    pool = NodeRules(selector=(("pool", "a100"),))
    nodes = [node("n"), node("m", 2, labels={"pool": "a100"}), node("c", labels={"pool": "a100"}, cordoned=True)]
    assert sizes(nodes, job("a", 1, 8, place=pool)) == {"a": 2}


def test_excluded_nodes_get_no_new_workers():
    assert sizes([node("sick"), node("n", 2)], job("a", 1, 8, place=NodeRules(avoid=("sick",)))) == {"a": 2}


def test_it_is_reported_if_no_node_accepts_the_worker():
    got = shares([node("n")], job("a", place=NodeRules(selector=(("pool", "h200"),))))["a"]
    assert got.size == 0
    assert "no ready, uncordoned node with pool=h200 matches" in got.message


@pytest.mark.parametrize(
    ("tolerations", "welcome"),
    [
        ((), False),
        ((Toleration(GPU, "Exists"),), True),
        ((Toleration(GPU, "Equal", "yes", "NoSchedule"),), True),
        ((Toleration(GPU, "Equal", "no"),), False),
        ((Toleration(GPU, "Exists", effect="NoExecute"),), False),
        ((Toleration(operator="Exists"),), True),
    ],
)
def test_tainted_node_takes_only_workers_that_tolerate_it(tolerations, welcome):
    tainted = node("n", taints=(Taint(GPU, "yes", "NoSchedule"), Taint("soft", effect="PreferNoSchedule")))
    assert takes(tainted, NodeRules(tolerations=tolerations)) is welcome
    assert lets_go(tainted, NodeRules(tolerations=tolerations)) is not welcome


@pytest.mark.parametrize(
    ("operator", "values", "holds"),
    [
        ("In", ("8",), True),
        ("NotIn", ("8",), False),
        ("Exists", (), True),
        ("DoesNotExist", (), False),
        ("Gt", ("7",), True),
        ("Lt", ("8",), False),
        ("Gt", ("many",), False),
        ("SilentAgents", (), False),
    ],
)
def test_required_affinity_is_that_of_kubernetes(operator, values, holds):
    eight, asked = Node("n", {}, {"gpus": "8"}), (Requirement("gpus", operator, values),)
    assert selects(NodeRules(terms=(asked,)), eight) is holds
    assert selects(NodeRules(terms=(asked, (Requirement("gpus", "Exists"),))), eight)
    assert selects(NodeRules(terms=((), asked)), eight) is holds, "an empty term selects nothing"


@pytest.mark.parametrize(
    ("operator", "name", "holds"), [("In", "n", True), ("In", "m", False), ("NotIn", "n", False), ("NotIn", "m", True)]
)
def test_required_field_is_the_node_s_name_and_not_its_label(operator, name, holds):
    place = NodeRules(terms=((Requirement("metadata.name", operator, (name,), of_field=True),),))
    assert selects(place, Node("n", {}, {"metadata.name": "m"})) is holds


def test_unready_node_gets_no_workers_but_keeps_its_own():
    silent = node("n", ready=False, taints=(Taint("node.kubernetes.io/not-ready", effect="NoExecute"),))
    assert not takes(silent, NodeRules())
    assert not lets_go(silent, NodeRules())
    got = shares([silent, node("m")], job("a", 1, 2, on=("n", "m")))["a"]
    assert (got.size, got.replace, got.shaky) == (2, frozenset(), {"a-0"})


def test_worker_on_a_departing_node_is_replaced_if_there_is_room_elsewhere():
    a = job("a", 1, 2, on=("n", "m"))
    assert shares([node("n", cordoned=True), node("m", 2)], a)["a"].replace == {"a-0"}
    full = shares([node("n", cordoned=True), node("m", 1)], a)["a"]
    assert (full.size, full.replace, full.shaky) == (2, frozenset(), {"a-0"})


def test_the_message_names_the_nodes_that_are_left_or_set_aside_and_why():
    sick = {"sick": True, "closed_by": "condition GpuMemWatch"}
    a = job("a", 1, 2, on=("n", "m"))
    got = shares([node("n", **sick), node("m", 2)], a)["a"]
    assert got.replace == {"a-0"}
    assert got.message.endswith("; workers leave n (condition GpuMemWatch) as other nodes have room")
    waits = shares([node("n", 4, **sick), node("m", 1)], job("b", 2, 2))["b"]
    assert waits.size == 0
    assert waits.message.endswith("; no worker goes to n (condition GpuMemWatch)")


# ---- several jobs ---------------------------------------------------------------------------------------------------
def test_surplus_is_given_back_if_a_job_is_below_its_minimum():
    old, new = job("old", 1, 4, on=("n",) * 4), job("new", 2, 4, created=1.0)
    got = shares([node("n", 4)], old, new)
    assert (got["old"].size, got["new"].size) == (2, 0)
    assert len(got["old"].release) == 2
    assert "other workers are leaving for them" in got["new"].message
    # The surplus was asked to leave, and holds its places until it has left.
    old = replace(old, workers=old.workers[:2], size=2)
    assert sizes([node("n", 4)], old, new, leaving=[Held("n", gpus(1))] * 2) == {"old": 2, "new": 0}
    assert sizes([node("n", 4)], old, new) == {"old": 2, "new": 2}


def test_room_that_leaving_workers_free_is_promised_to_the_higher_priority_and_not_filled_by_a_lower_one():
    """Else the lower one takes a part of it, and gives it back, without end."""
    low, high = job("low", 2, 6, on=("n", "n")), job("high", 1, 4, on=("n",), per=2, priority=5)
    got = shares([node("n", 6)], low, high, leaving=[Held("n", gpus(1))], policy=Policy(hysteresis=0))
    assert (got["low"].size, got["high"].size, got["high"].reason) == (2, 1, "OthersLeave")


def test_fixed_job_gets_its_replicas_before_elastic_ones_of_the_same_priority_grow():
    fixed, elastic = job("fixed", 1, 3, elastic=False, created=1.0), job("elastic", 1, 8)
    assert sizes([node("n", 4)], fixed, elastic) == {"fixed": 3, "elastic": 1}


def test_namespaces_share_by_weight_for_any_number_of_jobs():
    one, *many = job("one", 1, 20), *(job(f"m{i}", 1, 20, namespace="other", created=float(i)) for i in range(3))
    got = sizes([node("n", 22)], one, *many, policy=Policy(weights={"ns": 2}))
    assert got["one"] - 1 == 12
    assert sum(n - 1 for name, n in got.items() if name != "one") == 6


def test_accelerators_count_by_the_workers_requests():
    small, large = job("small", 1, 16, per=1), job("large", 1, 4, per=4, created=1.0)
    assert sizes([node("n", 13)], small, large) == {"small": 5, "large": 2}


def test_a_job_gives_to_an_equal_only_if_it_keeps_more_than_the_other_had():
    rich, poor = job("rich", 1, 8, on=("n",) * 6), job("poor", 1, 8, on=("n",), created=1.0)
    assert sizes([node("n", 7)], rich, poor) == {"rich": 4, "poor": 1}, "grows when the other workers have left"


def test_jobs_are_admitted_by_priority_then_age_and_small_ones_pass_a_large_one():
    waiting = [job("large", 8, 8), job("old", 2, 2, created=1.0), job("new", 2, 2, created=2.0)]
    assert sizes([node("n", 2)], *waiting) == {"large": 0, "old": 2, "new": 0}
    waiting[2] = replace(waiting[2], priority=1)
    assert sizes([node("n", 2)], *waiting) == {"large": 0, "old": 0, "new": 2}


def test_few_are_displaced_if_a_whole_node_is_needed():
    spread = job("spread", 1, 6, on=("m", "n", "n", "n", "m", "m"))
    nodes = [node("n", 4), node("m", 3), node("o", 1)]
    got = shares(nodes, spread, job("whole", 1, 1, per=4, created=1.0))
    assert got["spread"].release == {"spread-1", "spread-2", "spread-3"}
    assert got["spread"].size == 4, "one finds room elsewhere"


# ---- quotas ---------------------------------------------------------------------------------------------------------


QUOTA = Policy(quotas={"ns": {GPU: 3}})
SHORT = {
    "the minimum": (
        [node("n", 3)], [job("a", 4, 4)], Policy(),
        f"waits: 4 workers must start together (minReplicas), there is room for 3; 3 {GPU} idle, 1 needed for the next "
        "worker",
    ),
    "replicas": ([node("n")], [job("a", 1, 2, on=("n",), elastic=False)], Policy(), "2 workers: all of replicas"),
    "others": (
        [node("n", 4), node("m", 1)], [job("a", 1, 8, on=("m",), priority=1), job("low", 1, 4, on=("n",) * 4)],
        Policy(), "not grown: 3 workers can join when other workers have left",
    ),
    "quota": (
        [node("n")], [job("a", 1, 8), job("b", 2, 2, created=1.0), job("c", 1, 8, namespace="free")], QUOTA,
        f"not grown: 3 of 3 {GPU} of namespace ns's quota used, 1 needed for the next worker",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SHORT)
def test_the_message_names_what_is_short(what):
    nodes, jobs, policy, message = SHORT[what]
    assert shares(nodes, *jobs, policy=policy)["a"].message == message


def test_job_waits_if_its_minimum_is_beyond_the_quota():
    got = shares([node("n")], job("a", 4, 8), policy=Policy(quotas={"ns": {GPU: 3}}))["a"]
    assert (got.size, got.reason) == (0, "WaitingForCapacity")
    assert "namespace ns's quota" in got.message


# ---- is it worth it? ------------------------------------------------------------------------------------------------
def test_a_recently_resized_job_keeps_its_size():
    a = replace(job("a", 1, 4, on=("n",) * 2), resized=NOW - timedelta(seconds=20))
    made = allocate(Snapshot((node("n"),), (a,)), Policy(), NOW)
    assert (made.shares["a"].size, made.shares["a"].reason, made.again) == (2, "ResizedRecently", 40)
    later = allocate(Snapshot((node("n"),), (a,)), Policy(), NOW + timedelta(seconds=40))
    assert (later.shares["a"].size, later.again) == (4, None)


def test_hysteresis_delays_no_minimum_and_no_higher_priority():
    low = replace(job("low", 1, 4, on=("n",) * 4), resized=NOW)
    assert sizes([node("n", 4)], low, job("new", 2, 2, created=1.0))["low"] == 2
    assert sizes([node("n", 4)], low, job("high", 1, 8, on=("m",), priority=1))["low"] == 1


def test_job_does_not_grow_if_its_pause_costs_more_than_the_growth_gains():
    a = replace(job("a", 1, 9, on=("n",) * 8), pause=100.0)
    got = shares([node("n", 9)], a)["a"]
    assert (got.size, got.reason) == (8, "NotWorthIt")
    assert "growing by 1 worker would gain 580 worker-seconds in 600 s, the pause would cost 800" in got.message
    assert sizes([node("n", 9)], replace(a, pause=1.0)) == {"a": 9}


def test_capacity_that_does_not_pay_for_one_job_goes_to_others():
    slow, quick = (
        replace(job("slow", 1, 9, on=("n",) * 8, priority=1), pause=100.0),
        job("quick", 1, 9, on=("n",), created=1.0),
    )
    assert sizes([node("n", 10)], slow, quick) == {"slow": 8, "quick": 2}


def test_job_that_is_about_to_end_does_not_grow():
    a = replace(job("a", 1, 4, on=("n",)), remaining=15.0)
    assert shares([node("n")], a)["a"].reason == "NotWorthIt"


def test_job_that_does_not_get_faster_does_not_grow():
    a = replace(job("a", 1, 8, on=("n",) * 4), measured=(Measured(2, 1, 1.0), Measured(4, 1, 0.9999)), pause=5.0)
    assert sizes([node("n")], a) == {"a": 4}
    assert sizes([node("n")], replace(a, measured=(Measured(2, 1, 1.0), Measured(4, 1, 0.53)))) == {"a": 8}


def test_a_job_does_not_give_to_an_equal_if_its_pause_costs_more_than_the_worker_gains():
    rich = replace(job("rich", 1, 8, on=("n",) * 6), pause=200.0)
    assert sizes([node("n", 7)], rich, job("poor", 1, 8, on=("n",), created=1.0)) == {"rich": 6, "poor": 1}


# ---- warm spares ----------------------------------------------------------------------------------------------------
def with_spares(found: Job, spares: int, *standing: str) -> Job:
    """``found`` with ``spares`` desired spares, and existing ones on the nodes ``standing``."""
    more = tuple(Worker(f"{found.name}-spare-{i}", n, found.kind.demand, spare=True) for i, n in enumerate(standing))
    return replace(found, spares=spares, workers=(*found.workers, *more))


def test_spares_get_the_room_that_no_worker_may_use():
    got = shares(
        [node("n", 5)], with_spares(job("a", 1, 2, on=("n", "n")), 2), with_spares(job("b", 1, 1, on=("n",)), 2)
    )
    assert {name: (s.size, s.spares) for name, s in got.items()} == {"a": (2, 2), "b": (1, 0)}


def test_spare_leaves_for_a_job_below_its_minimum_though_its_own_job_has_the_higher_priority():
    high = with_spares(job("a", 1, 1, on=("n",), priority=9), 1, "n")
    got = shares([node("n", 2)], high, job("b", 1, 1))
    assert (got["a"].spares, got["a"].release) == (0, {"a-spare-0"})
    assert (got["b"].size, got["b"].reason) == (0, "WaitingForCapacity"), "until the spare has left"
    assert sizes([node("n", 2)], job("a", 1, 1, on=("n",), priority=9), job("b", 1, 1)) == {"a": 1, "b": 1}


def test_spare_leaves_for_a_job_that_grows_before_any_worker_has_to():
    equal = with_spares(job("a", 1, 4, on=("n", "n", "n", "n")), 1, "m")
    got = shares([node("n", 4), node("m", 3)], equal, job("b", 1, 4, on=("m", "m"), size=2))
    assert (got["a"].size, got["a"].spares, got["a"].release) == (4, 0, {"a-spare-0"})
    assert (got["b"].size, got["b"].reason) == (2, "OthersLeave")


def test_job_grows_into_its_own_spare():
    got = shares([node("n", 3)], with_spares(job("a", 1, 3, on=("n", "n")), 1, "n"))["a"]
    assert (got.size, got.spares, got.release) == (3, 0, frozenset())


def test_spares_count_against_the_quota_and_leave_first():
    policy = Policy(quotas={"ns": {GPU: 3}})
    roomy = with_spares(job("a", 1, 2, on=("n", "n"), elastic=False), 2)
    assert shares([node("n")], roomy, policy=policy)["a"].spares == 1
    full = with_spares(job("a", 1, 2, on=("n", "n"), elastic=False), 1, "n")
    got = shares([node("n")], full, job("b", 1, 1), policy=policy)
    assert (got["a"].spares, got["a"].release, got["b"].size) == (0, {"a-spare-0"}, 1)
