"""Claimed devices in the allocator's books: what is published, what is asked for, and what remains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.resources import CLAIM, with_claims
from elastrain_operator.allocation.snapshot import (
    Held,
    Job,
    Node,
    Policy,
    Snapshot,
    Taint,
    Worker,
    WorkerShape,
)
from elastrain_operator.devices import slices
from elastrain_operator.devices.books import MOST_KINDS, Books, Published, Taken, requested, resolve
from elastrain_operator.devices.selectors import NotCounted
from elastrain_operator.devices.slices import DeviceClass
from operator_fixtures import NOW

DRIVER = "gpu.example.com"
GPU = f"deviceclass/{DRIVER}"
CLASSES = {DRIVER: DeviceClass(DRIVER, (f"device.driver == '{DRIVER}'",))}
BIG = {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) >= 0"}}


def raw_slice(node: str, *found: dict[str, Any], pool: str = "", of: int = 1, **more: Any) -> dict[str, Any]:
    spec = {
        "driver": DRIVER,
        "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": of},
        "nodeName": node,
    }
    return {"metadata": {"name": node}, "spec": {**spec, "devices": list(found), **more}}


def gpu(name: str, memory: str = "80Gi", **more: Any) -> dict[str, Any]:
    return {"name": name, "capacity": {"memory": {"value": memory}}, **more}


def publish(*bodies: dict[str, Any]) -> Published:
    return slices.published(s for body in bodies if (s := slices.slice_of(body)))


def asks(count: int = 1, *selectors: dict[str, Any], **more: Any) -> Any:
    """What a claim template with one request asks for."""
    exactly = {"deviceClassName": DRIVER, "count": count, "allocationMode": "ExactCount", "selectors": list(selectors)}
    return slices.wants(slices.template(template({"name": "gpus", "exactly": {**exactly, **more}})), CLASSES)


def template(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"requests": list(requests), **more}}}}


def claim(*found: tuple[str, str], pod: str = "", **more: Any) -> Taken:
    """Of devices (node, name), for a pod (UID)."""
    results = [{"driver": DRIVER, "pool": node, "device": name, **more} for node, name in found]
    body = {"metadata": {}, "status": {"allocation": {"devices": {"results": results}}, "reservedFor": [{"uid": pod}]}}
    taken = slices.taken(body)
    assert taken is not None
    return taken


def job(name: str = "a", *workers: Worker, claim: str = "t", namespace: str = "ns", most: int = 100) -> Job:
    kind = WorkerShape((("pods", 1), (f"{CLAIM}{namespace}/{claim}", 1)))
    mine = tuple(Worker(w.name, w.node, kind.demand, w.trains, uid=w.uid) for w in workers)
    return Job(name, namespace, name, 1, most, kind, workers=mine, trains=bool(mine), size=len(mine))


def snapshot(*jobs: Job, nodes: int = 1, leaving: tuple[Held, ...] = ()) -> Snapshot:
    return Snapshot(tuple(Node(f"n{i}", {"pods": 100}) for i in range(nodes)), jobs, leaving)


def room(found: Snapshot) -> list[int]:
    return [n.room.get(GPU, 0) for n in found.nodes]


# ---- what is there ---------------------------------------------------------------------------------------------------
def test_node_has_the_devices_that_its_driver_publishes_of_a_class():
    other = {"metadata": {}, "spec": {**raw_slice("n0", gpu("x"))["spec"], "driver": "nic.example.com"}}
    books = Books(
        publish(raw_slice("n0", gpu("g0"), gpu("g1")), raw_slice("n1", gpu("g0")), other), (), {"ns/t": asks()}
    )
    assert room(resolve(snapshot(job(), nodes=3), books, ())) == [2, 1, 0]


def test_pool_is_not_there_until_all_its_slices_are():
    first = raw_slice("n0", gpu("g0"), of=2)
    assert publish(first).devices == ()
    assert len(publish(first, raw_slice("n0", gpu("g1"), of=2)).devices) == 2


def test_older_generation_of_a_pool_is_over():
    newer = raw_slice("n0", gpu("g0"))
    newer["spec"]["pool"]["generation"] = 2
    assert len(publish(raw_slice("n0", gpu("g0"), gpu("g1")), newer).devices) == 1
    assert len(publish(newer, raw_slice("n0", gpu("g0"), gpu("g1"))).devices) == 1


def test_devices_that_others_claim_are_not_there_and_those_of_workers_are_in_their_demand():
    worker = Worker("a-0", "n0", uid="mine")
    taken = (claim(("n0", "g0"), pod="mine"), claim(("n0", "g1"), pod="other"))
    books = Books(publish(raw_slice("n0", gpu("g0"), gpu("g1"), gpu("g2"))), taken, {"ns/t": asks()})
    found = resolve(snapshot(job("a", worker)), books, {"mine"})
    assert room(found) == [2]
    assert dict(found.jobs[0].workers[0].demand) == {"pods": 1, GPU: 1}
    assert allocate(found, Policy(hysteresis=0), NOW).shares["a"].size == 2


def test_access_of_an_administrator_takes_no_device():
    body = {
        "status": {
            "allocation": {
                "devices": {"results": [{"driver": DRIVER, "pool": "n0", "device": "g0", "adminAccess": True}]}
            }
        }
    }
    assert slices.taken(body) is None


def test_worker_that_leaves_holds_its_devices():
    held = Held("n0", (("pods", 1), (f"{CLAIM}ns/t", 1)))
    books = Books(publish(raw_slice("n0", gpu("g0"), gpu("g1"))), (), {"ns/t": asks()})
    found = resolve(snapshot(job(), leaving=(held,)), books, ())
    assert dict(found.leaving[0].demand) == {"pods": 1, GPU: 1}


def test_worker_needs_all_devices_of_all_its_claims():
    spec = {
        "resourceClaims": [
            {"name": "x", "resourceClaimTemplateName": "t"},
            {"name": "y", "resourceClaimTemplateName": "t"},
        ]
    }
    assert with_claims((("pods", 1),), spec, "ns") == (("pods", 1), (f"{CLAIM}ns/t", 2))
    books = Books(publish(raw_slice("n0", *(gpu(f"g{i}") for i in range(8)))), (), {"ns/t": asks(2)})
    kind = WorkerShape(with_claims((("pods", 1),), spec, "ns"))
    found = resolve(snapshot(Job("a", "ns", "a", 1, 9, kind)), books, ())
    assert dict(found.jobs[0].kind.demand) == {"pods": 1, GPU: 4}
    assert allocate(found, Policy(hysteresis=0), NOW).shares["a"].size == 2


# ---- several kinds ---------------------------------------------------------------------------------------------------
def test_device_of_two_kinds_is_charged_to_both():
    wants = {"ns/any": asks(), "ns/big": asks(1, BIG)}
    books = Books(publish(raw_slice("n0", gpu("g0", "40Gi"), gpu("g1"), gpu("g2"))), (), wants)
    found = resolve(snapshot(job("a", claim="any"), job("b", claim="big")), books, ())
    (big,) = found.nodes[0].room.keys() - {"pods", GPU}
    assert (found.nodes[0].room[GPU], found.nodes[0].room[big]) == (3, 2)
    assert [dict(j.kind.demand) for j in found.jobs] == [{"pods": 1, GPU: 1, big: 1}] * 2


def test_kinds_without_a_common_device_do_not_charge_each_other():
    small = {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.compareTo(quantity('80Gi')) < 0"}}
    wants = {"ns/small": asks(1, small), "ns/big": asks(1, BIG)}
    books = Books(publish(raw_slice("n0", gpu("g0", "40Gi"), gpu("g1"))), (), wants)
    found = resolve(snapshot(job("a", claim="small"), job("b", claim="big")), books, ())
    assert all(len(j.kind.demand) == 2 for j in found.jobs)


def partitioned() -> dict[str, Any]:
    """One device of 8 memory slices: whole, in two halves, or in eight parts."""

    def part(name: str, kind: str, memory: int) -> dict[str, Any]:
        consumes = [{"counterSet": "gpu-0", "counters": {"memory": {"value": str(memory)}}}]
        return {"name": name, "attributes": {"type": {"string": kind}}, "consumesCounters": consumes}

    parts = [part("whole", "gpu", 8), *(part(f"half-{i}", "half", 4) for i in range(2))]
    parts += [part(f"part-{i}", "part", 1) for i in range(8)]
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "8"}}}]
    return raw_slice("n0", *parts, sharedCounters=counters)


def of_type(kind: str) -> dict[str, Any]:
    return {"cel": {"expression": f"device.attributes['{DRIVER}'].type == '{kind}'"}}


@pytest.mark.parametrize(
    ("taken", "whole", "half", "part"),
    [
        ((), 1, 2, 8),
        (("part-0",), 0, 1, 7),
        (("half-0",), 0, 1, 4),
        (("half-0", "part-0"), 0, 0, 3),
        (("whole",), 0, 0, 0),
    ],
)
def test_partitions_are_as_many_as_the_shared_counters_leave(taken, whole, half, part):
    wants = {f"ns/{kind}": asks(1, of_type(kind)) for kind in ("gpu", "half", "part")}
    claims = tuple(claim(("n0", name), pod="other") for name in taken)
    found = resolve(
        snapshot(*(job(k, claim=k) for k in ("gpu", "half", "part"))), Books(publish(partitioned()), claims, wants), ()
    )
    kinds = [next(iter(asks(1, of_type(k)))).resource for k in ("gpu", "half", "part")]
    assert [found.nodes[0].room[k] for k in kinds] == [whole, half, part]


def test_partition_is_charged_to_what_it_makes_impossible():
    wants = {f"ns/{kind}": asks(1, of_type(kind)) for kind in ("gpu", "part")}
    found = resolve(
        snapshot(job("a", claim="gpu"), job("b", claim="part")), Books(publish(partitioned()), (), wants), ()
    )
    whole, part = (next(iter(asks(1, of_type(k)))).resource for k in ("gpu", "part"))
    assert [dict(j.kind.demand) for j in found.jobs] == [{"pods": 1, whole: 1, part: 8}, {"pods": 1, part: 1, whole: 1}]


# ---- what is not counted ---------------------------------------------------------------------------------------------
FIRST = {"name": "r", "firstAvailable": [{"name": "x", "deviceClassName": DRIVER}]}
SMALL = {"cel": {"expression": f"device.capacity['{DRIVER}'].memory.isLessThan(quantity('60Gi'))"}}
EXACT = {"deviceClassName": DRIVER, "count": 1}
LONG = "f" * 5000


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (template(FIRST), "firstAvailable"),
        (template({"name": "r", "exactly": {**EXACT, "allocationMode": "All"}}), "allocationMode All"),
        (template({"name": "r", "exactly": {**EXACT, "adminAccess": True}}), "adminAccess"),
        (
            template({"name": "r", "exactly": {**EXACT, "capacity": {"requests": {"memory": "1Gi"}}}}),
            "part of a device",
        ),
        (
            template({"name": "r", "exactly": {**EXACT, "count": 2}}, constraints=[{"matchAttribute": "a/b"}]),
            "constraints",
        ),
        (template({"name": "r", "exactly": {**EXACT, "deviceClassName": "none"}}), "does not exist: none"),
        (template({"name": "r", "exactly": {**EXACT, "selectors": [{"cel": {"expression": "f()"}}]}}), "selector"),
        (template(*[{"name": "r", "exactly": EXACT}] * 17), "more than 16 requests"),
        (
            template({"name": "r", "exactly": {**EXACT, "selectors": [{"cel": {"expression": LONG}}]}}),
            "more than 4000",
        ),
    ],
)
def test_claim_that_cannot_be_counted_is_named_and_left_to_the_scheduler(body, why):
    books = Books(publish(raw_slice("n0", gpu("g0"))), (), {"ns/t": slices.wants(slices.template(body), CLASSES)})
    found = resolve(snapshot(job()), books, ())
    assert found.jobs[0].kind.demand == (("pods", 1),)
    (reason,) = found.jobs[0].unknown
    assert reason.startswith("resource claims (")
    assert why in reason


def test_constraint_of_one_device_is_none():
    body = template({"name": "r", "exactly": EXACT}, constraints=[{"matchAttribute": "a/b"}])
    assert not isinstance(slices.wants(slices.template(body), CLASSES), NotCounted)


def test_device_that_several_claims_share_is_not_counted():
    books = Books(publish(raw_slice("n0", gpu("g0", allowMultipleAllocations=True))), (), {"ns/t": asks()})
    assert "several claims share" in resolve(snapshot(job()), books, ()).jobs[0].unknown[0]


@pytest.mark.parametrize("where", [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": []}}])
def test_devices_that_belong_to_no_one_node_are_not_counted_as_none(where):
    fabric = raw_slice("n0", gpu("g0"), pool="fabric")
    del fabric["spec"]["nodeName"]
    fabric["spec"] |= where
    books = Books(
        publish(raw_slice("n0", gpu("g0", "40Gi")), fabric), (), {"ns/t": asks(1, BIG), "ns/s": asks(1, SMALL)}
    )
    found = resolve(snapshot(job("big"), job("small", claim="s")), books, ())
    assert [j.unknown for j in found.jobs] == [("resource claims (devices that belong to no one node)",), ()]


# ---- extended resources that a class serves --------------------------------------------------------------------------
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", f"deviceclass.resource.kubernetes.io/{DRIVER}"])
def test_extended_resource_that_a_class_serves_is_counted_as_its_devices(resource):
    classes = {DRIVER: DeviceClass(DRIVER, CLASSES[DRIVER].selectors, "nvidia.com/gpu")}
    wants = slices.extended(resource, classes)
    job = Job("a", "ns", "a", 1, 100, WorkerShape(((resource, 2), ("pods", 1))))
    books = Books(publish(raw_slice("n0", *(gpu(f"g{i}") for i in range(5)))), (), {}, {resource: wants})
    found = resolve(snapshot(job), books, ())
    assert dict(found.jobs[0].kind.demand) == {"pods": 1, GPU: 2}
    assert allocate(found, Policy(hysteresis=0), NOW).shares["a"].size == 2


def test_extended_resource_of_a_class_that_is_not_counted_is_left_to_the_scheduler():
    classes = {"odd": DeviceClass("odd", ("f()",), "nvidia.com/gpu")}
    books = Books(publish(), (), {}, {"nvidia.com/gpu": slices.extended("nvidia.com/gpu", classes)})
    found = resolve(snapshot(Job("a", "ns", "a", 1, 1, WorkerShape((("nvidia.com/gpu", 1), ("pods", 1))))), books, ())
    assert (found.jobs[0].kind.demand, len(found.jobs[0].unknown)) == ((("pods", 1),), 1)
    assert found.jobs[0].unknown[0].startswith("nvidia.com/gpu (a selector")


def test_several_classes_of_one_extended_resource_are_not_guessed():
    classes = {n: DeviceClass(n, (), "nvidia.com/gpu") for n in "ab"}
    assert "several DeviceClasses" in str(slices.extended("nvidia.com/gpu", classes))
    assert slices.extended("amd.com/gpu", classes) is None


@pytest.mark.parametrize(("resource", "asked"), [("nvidia.com/gpu", False), ("amd.com/gpu", True)])
def test_extended_resource_that_a_node_has_is_its_device_plugin_s(resource, asked):
    job = Job("a", "ns", "a", 1, 1, WorkerShape(((resource, 1), ("cpu", 1), ("pods", 1))))
    found = Snapshot((Node("n0", {"pods": 100, "nvidia.com/gpu": 8}),), (job,))
    assert requested(found)[1] == ([resource] if asked else [])


def test_kinds_of_one_tenant_do_not_use_up_the_number_that_is_counted():
    many = [{"cel": {"expression": f"device.driver != 'd{i}'"}} for i in range(2 * MOST_KINDS)]
    wants = {f"hostile/t{i}": asks(1, selector) for i, selector in enumerate(many)}
    jobs = [job(f"h{i}", claim=f"t{i}", namespace="hostile") for i in range(2 * MOST_KINDS)]
    books = Books(publish(raw_slice("n0", gpu("g0"))), (), {**wants, "ns/t": asks()})
    found = resolve(snapshot(*jobs, job("own")), books, ())
    own = next(j for j in found.jobs if j.name == "own")
    assert (own.unknown, dict(own.kind.demand)[GPU]) == ((), 1)
    assert sum(bool(j.unknown) for j in found.jobs) == MOST_KINDS + 1


# ---- health ----------------------------------------------------------------------------------------------------------
FATAL, MILD = {"key": "sick", "effect": "NoExecute"}, {"key": "sick", "effect": "NoSchedule"}


@pytest.mark.parametrize("taint", [FATAL, MILD])
def test_tainted_device_is_not_there_for_a_claim_that_does_not_tolerate_it(taint):
    published = publish(raw_slice("n0", gpu("g0", taints=[taint]), gpu("g1")))
    tolerates = asks(1, tolerations=[{"key": "sick", "operator": "Exists"}])
    books = Books(published, (), {"ns/t": asks(), "ns/u": tolerates})
    found = resolve(snapshot(job("a"), job("b", claim="u")), books, ())
    (tolerant,) = found.nodes[0].room.keys() - {"pods", GPU}
    assert (found.nodes[0].room[GPU], found.nodes[0].room[tolerant]) == (1, 2)


def moved(taint: dict[str, Any], lasting: bool = True, tolerations: Any = (), sick: int = 1) -> str:
    """Why the worker on a tainted device leaves; the node has four devices, of which so many are tainted."""
    found = [gpu(f"g{i}", **({"taints": [taint]} if i < sick else {})) for i in range(4)]
    published = publish(raw_slice("n0", *found))
    published = slices.at_present(published, {m for d in published.devices for m in slices.mild(d)} if lasting else ())
    books = Books(published, (claim(("n0", "g0"), pod="mine", tolerations=list(tolerations)),), {"ns/t": asks()})
    resolved = resolve(snapshot(job("a", Worker("a-0", "n0", uid="mine"))), books, {"mine"})
    return resolved.jobs[0].workers[0].ends


@pytest.mark.parametrize(
    ("how", "leaves"),
    [
        ({"taint": FATAL}, True),
        ({"taint": FATAL, "lasting": False}, True),
        ({"taint": FATAL, "tolerations": [{"operator": "Exists"}]}, False),
        ({"taint": FATAL, "tolerations": [{"operator": "Exists", "tolerationSeconds": 60}]}, False),
        ({"taint": FATAL, "sick": 4}, True),
        ({"taint": MILD}, True),
        ({"taint": MILD, "lasting": False}, False),
        ({"taint": MILD, "tolerations": [{"operator": "Exists"}]}, False),
        ({"taint": MILD, "sick": 4}, False),
        ({"taint": {"key": "sick", "effect": "None"}}, False),
    ],
)
def test_worker_leaves_a_device_that_fails(how, leaves):
    assert moved(**how) == ("device g0: taint sick" if leaves else "")


def test_worker_on_a_failing_device_is_replaced_by_one_with_another_device():
    published = publish(raw_slice("n0", gpu("g0", taints=[FATAL]), gpu("g1"), gpu("g2")))
    taken = (claim(("n0", "g0"), pod="u0"), claim(("n0", "g1"), pod="u1"))
    workers = (Worker("a-0", "n0", trains=True, uid="u0"), Worker("a-1", "n0", trains=True, uid="u1"))
    found = resolve(snapshot(job("a", *workers, most=2)), Books(published, taken, {"ns/t": asks()}), {"u0", "u1"})
    share = allocate(found, Policy(hysteresis=0), NOW).shares["a"]
    assert (share.size, share.replace, share.shaky) == (2, {"a-0"}, {"a-0"})
    assert "workers leave n0 (device g0: taint sick)" in share.message


# ---- the books are safe ----------------------------------------------------------------------------------------------
@given(st.data())
def test_scheduler_finds_devices_for_all_workers_that_the_books_admit(data):
    """Whatever devices the scheduler chooses for the first workers of two kinds, it finds some for the last one."""
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=6), "memory of the partitions")
    whole = data.draw(st.integers(1, 8), "memory of the device")
    parts = [
        {
            "name": f"p{i}", "attributes": {"size": {"int": size}},
            "consumesCounters": [{"counterSet": "s", "counters": {"m": {"value": str(size)}}}],
        }
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    body = raw_slice("n0", *parts, sharedCounters=[{"name": "s", "counters": {"m": {"value": str(whole)}}}])
    chosen = data.draw(st.lists(st.sampled_from([1, 2, 4]), min_size=2, max_size=2, unique=True), "kinds")
    selectors = [{"cel": {"expression": f"device.attributes['{DRIVER}'].size == {size}"}} for size in chosen]
    wants = {f"ns/{n}": asks(1, selector) for n, selector in enumerate(selectors)}
    found = resolve(snapshot(job("0", claim="0"), job("1", claim="1")), Books(publish(body), (), wants), ())
    left, free = dict(found.nodes[0].room), {size: sizes.count(size) for size in chosen}
    memory = whole
    for n in data.draw(st.lists(st.integers(0, 1), max_size=12), "workers"):
        demand = dict(found.jobs[n].kind.demand)
        if all(left.get(r, 0) >= amount for r, amount in demand.items()):
            left = {r: amount - demand.get(r, 0) for r, amount in left.items()}
            free[chosen[n]] -= 1
            memory -= chosen[n]
            assert free[chosen[n]] >= 0, "the books admit no more than there are of a kind"
            assert memory >= 0, "the books admit no more than the counters do"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8), st.integers(0, 3), st.integers(0, 3))
def test_two_overlapping_kinds_never_share_a_device(kinds, first, second):
    """Devices of one, both or no kind; so many workers as the books admit get different ones by any choice."""
    attributes = [{"a": {"bool": a}, "b": {"bool": b}} for a, b in kinds]
    body = raw_slice("n0", *({"name": f"d{i}", "attributes": x} for i, x in enumerate(attributes)))
    selectors = [{"cel": {"expression": f"device.attributes['{DRIVER}'].{name}"}} for name in "ab"]
    wants = {f"ns/{n}": asks(1, selector) for n, selector in enumerate(selectors)}
    found = resolve(snapshot(job("0", claim="0"), job("1", claim="1")), Books(publish(body), (), wants), ())
    demands = [dict(j.kind.demand) for j in found.jobs]
    total = {
        r: first * demands[0].get(r, 0) + second * demands[1].get(r, 0) for r in {*demands[0], *demands[1]} - {"pods"}
    }
    if all(found.nodes[0].room.get(r, 0) >= amount for r, amount in total.items()):
        both, only_a, only_b = kinds.count((True, True)), kinds.count((True, False)), kinds.count((False, True))
        taken = min(first, both)  # the worst choice: the first kind takes all devices of both kinds before its own
        assert first <= only_a + both
        assert second <= only_b + both - taken


def test_taint_that_passes_keeps_new_claims_away():
    (device,) = slices.at_present(publish(raw_slice("n0", gpu("g0", taints=[MILD]))), ()).devices
    assert device.taints == (Taint("sick", "", "NoSchedule", passing=True),)
