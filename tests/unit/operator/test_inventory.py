"""The cluster as the allocator sees it: room, priority classes, refused lists, and nodes that close for a while."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from conditions import until
from elastrain_operator import clock
from elastrain_operator.allocation import resources
from elastrain_operator.allocation.match import lets_go, takes, why_left
from elastrain_operator.allocation.snapshot import Job, NodeRules, PodCharge, Toleration, Worker, WorkerShape
from elastrain_operator.cluster import nodes
from elastrain_operator.cluster.inventory import Inventory
from elastrain_operator.cluster.quotas import bounded, quota
from elastrain_operator.kube.client import ApiError
from elastrain_resource.reflector import Problem

NOW = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"


def node_body(**spec) -> dict:
    ready = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": {GPU: "8", "cpu": "4"}, "conditions": ready}
    return {"metadata": {"name": "n", "uid": "n", "resourceVersion": "2"}, "spec": spec, "status": status}


class Everything:
    """An API server with one node, one pod on it and two priority classes; it may refuse."""

    def __init__(self) -> None:
        self.refused: ApiError | None = None
        self.bodies: dict[str, list[dict]] = {
            "/api/v1/nodes": [node_body()],
            "/api/v1/pods": [
                {
                    "metadata": {"name": "p", "uid": "p"},
                    "spec": {"nodeName": "n", "containers": [{"resources": {"requests": {GPU: "3", "cpu": "1"}}}]},
                }
            ],
            "/api/v1/resourcequotas": [
                {
                    "metadata": {"name": "q", "namespace": "a", "uid": "q"},
                    "status": {"hard": {"pods": "3"}, "used": {"pods": "1"}},
                }
            ],
            "/apis/scheduling.k8s.io/v1/priorityclasses": [
                {"metadata": {"name": "high", "uid": "1"}, "value": 1000},
                {"metadata": {"name": "usual", "uid": "2"}, "value": 5, "globalDefault": True},
            ],
        }

    async def list_pages(self, path, what, query):
        if self.refused:
            raise self.refused
        yield self.bodies[path], "1"

    async def changes(self, path, what, query):
        if self.refused:
            raise self.refused
        await asyncio.sleep(3600)
        yield {}


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_inventory_is_the_nodes_capacity_minus_other_pods():
    async def scenario():
        inventory = Inventory(Everything(), lambda: None)
        task = asyncio.create_task(inventory.run())
        await until(lambda: inventory.problem is None, "the cluster is known")
        (node,) = inventory.nodes(NOW)
        assert (node.room[GPU], node.room["cpu"]) == (5, 3000)
        await until(lambda: inventory.quotas("a"), "its quotas, too")
        assert [q.room.key for q in inventory.quotas("a")] == ["a/q"]
        assert not inventory.quotas("b")
        assert [inventory.priority(name) for name in ("high", "", "silent_agents")] == [1000, 5, 0]
        task.cancel()

    run(scenario)


# ---- refused lists ---------------------------------------------------------------------------------------------------
def test_a_cluster_that_was_never_listed_stays_unknown_while_a_refusal_is_unconfirmed():
    inventory = Inventory(Everything(), lambda: None)
    assert inventory.problem == "the nodes of the cluster are not listed yet"
    inventory._nodes.problem = Problem("nodes is forbidden", NOW, denied=True)
    assert (inventory.problem, inventory.denied) == ("nodes is forbidden", False)


def test_a_listed_cluster_becomes_unknown_only_if_its_lists_are_refused_for_good():
    inventory = Inventory(Everything(), lambda: None)
    for kept in inventory._all:
        kept.listed = True
    inventory._classes.problem = Problem("forbidden", NOW, denied=True)
    assert (inventory.problem, inventory.denied) == (None, False)
    inventory._classes.problem = Problem("forbidden", NOW, denied=True, lasting=True)
    assert inventory.problem == "forbidden (the API server has refused each attempt for 60 s)"
    assert inventory.denied


# ---- nodes that close for a while ------------------------------------------------------------------------------------
class Seen:
    """An inventory whose node changes under a clock of the test."""

    def __init__(self, monkeypatch) -> None:
        self.now = NOW
        monkeypatch.setattr(clock, "now", lambda: self.now)
        self.inventory = Inventory(Everything(), lambda: None)
        self.show()

    def show(self, **spec) -> None:
        self.inventory._nodes._put("/n", self.inventory._nodes._parse(node_body(**spec)))

    def report(self, kind: str, status: str = "True") -> None:
        body = node_body()
        body["status"]["conditions"].append({"type": kind, "status": status})
        self.inventory._nodes._put("/n", self.inventory._nodes._parse(body))

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def moves(self, place: NodeRules | None = None) -> bool:
        (node,) = self.inventory.nodes(self.now)
        return lets_go(node, place or NodeRules())

    def takes_new_workers(self) -> bool:
        return takes(self.inventory.nodes(self.now)[0], NodeRules())


def taint(key: str, effect: str = "NoSchedule") -> dict:
    return {"taints": [{"key": key, "effect": effect}]}


@pytest.mark.parametrize("closed", [{"unschedulable": True}, taint("node.cilium.io/agent-not-ready"), taint("team")])
def test_workers_move_only_after_their_node_has_been_closed_for_a_while(closed, monkeypatch):
    seen = Seen(monkeypatch)
    seen.show(**closed)
    assert not seen.takes_new_workers(), "new workers keep away at once"
    assert not seen.moves()
    assert seen.inventory.next_change(seen.now) == nodes.DWELL.total_seconds()
    seen.wait(nodes.DWELL.total_seconds() - 1)
    assert not seen.moves()
    seen.wait(1)
    assert seen.moves()
    assert seen.inventory.next_change(seen.now) is None


def test_a_cordon_that_ended_in_between_begins_anew(monkeypatch):
    seen = Seen(monkeypatch)
    for _ in range(5):
        seen.show(unschedulable=True)
        seen.wait(100)
        assert not seen.moves()
        seen.show()
        seen.wait(1)
    assert seen.inventory.next_change(seen.now) is None


SICK = ["GpuMemWatch", "SysLogsXIDError", "KernelDeadlock", "ReadonlyFilesystem", "CSPMaintenance"]
"""Of NVSentinel and of node-problem-detector."""


@pytest.mark.parametrize("kind", SICK)
def test_workers_leave_a_node_whose_monitor_reports_a_lasting_fault(kind, monkeypatch):
    seen = Seen(monkeypatch)
    seen.report(kind)
    assert not seen.takes_new_workers(), "new workers keep away at once"
    assert not seen.moves()
    assert seen.inventory.next_change(seen.now) == nodes.DWELL.total_seconds()
    seen.wait(nodes.DWELL.total_seconds())
    assert seen.moves()
    (node,) = seen.inventory.nodes(seen.now)
    tolerates_all = NodeRules(tolerations=(Toleration("", "Exists"),))
    assert why_left(node, tolerates_all) == f"condition {kind}", "a toleration is of taints"
    seen.report(kind, "False")
    assert not seen.moves()
    assert seen.takes_new_workers()


@pytest.mark.parametrize("kind", ["FrequentKubeletRestart", "DCGMError", "NVSwitchNonFatalError", "MyOwnCheck"])
def test_a_condition_that_a_worker_may_outlive_moves_none(kind, monkeypatch):
    seen = Seen(monkeypatch)
    seen.report(kind)
    seen.wait(86400)
    assert not seen.moves()
    assert seen.takes_new_workers()


@pytest.mark.parametrize(
    ("sick", "all_nodes", "counts"), [(1, 1, True), (1, 3, True), (2, 3, False), (3, 9, True), (4, 9, False)]
)
def test_reports_of_more_than_a_third_of_the_nodes_are_a_fault_of_the_monitor(sick, all_nodes, counts):
    facts = [nodes.node(node_body()) for _ in range(all_nodes)]
    facts[:sick] = [dataclasses.replace(f, sick=("GpuMemWatch",)) for f in facts[:sick]]
    assert nodes.believed(facts) is counts


@pytest.mark.parametrize(
    ("state", "at_once"),
    [("upgrade-required", False), ("cordon-required", True), ("pod-deletion-required", True), ("upgrade-done", False)],
)
def test_workers_leave_at_once_if_the_gpu_operator_is_about_to_end_them(state, at_once, monkeypatch):
    seen = Seen(monkeypatch)
    body = node_body()
    body["metadata"]["labels"] = {"nvidia.com/gpu-driver-upgrade-state": state}
    seen.inventory._nodes._put("/n", seen.inventory._nodes._parse(body))
    assert seen.moves() is at_once


def test_why_a_node_is_left_names_the_taints_that_its_workers_do_not_tolerate(monkeypatch):
    seen = Seen(monkeypatch)
    both = {"taints": [{"key": k, "effect": "NoSchedule"} for k in ("nvidia.com/gpu", "nvidia.com/gpu-xid-error")]}
    seen.show(unschedulable=True, **both)
    seen.wait(nodes.DWELL.total_seconds())
    (node,) = seen.inventory.nodes(seen.now)
    gpu = NodeRules(tolerations=(Toleration("nvidia.com/gpu", "Exists"),))
    assert why_left(node, gpu) == "a cordon, taint nvidia.com/gpu-xid-error"


@pytest.mark.parametrize("pressure", ["disk", "memory", "pid"])
def test_workers_stay_under_a_pressure_however_long_it_lasts(pressure, monkeypatch):
    seen = Seen(monkeypatch)
    seen.show(**taint(f"node.kubernetes.io/{pressure}-pressure"))
    seen.wait(86400)
    assert not seen.moves()
    assert not seen.takes_new_workers()


@pytest.mark.parametrize(
    "ending",
    [taint("maintenance", "NoExecute"), taint("ToBeDeletedByClusterAutoscaler"), taint("karpenter.sh/disrupted")],
)
def test_workers_move_at_once_if_their_node_ends_them(ending, monkeypatch):
    seen = Seen(monkeypatch)
    seen.show(**ending)
    assert seen.moves()


def test_a_toleration_for_seconds_only_postpones_the_end(monkeypatch):
    seen = Seen(monkeypatch)
    seen.show(**taint("maintenance", "NoExecute"))
    assert not seen.moves(NodeRules(tolerations=(Toleration("maintenance", "Exists"),)))
    assert seen.moves(NodeRules(tolerations=(Toleration("maintenance", "Exists", bounded=True),)))


def selector(operator: str, *values: str) -> dict[str, Any]:
    """A quota's scope by priority class."""
    one = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [one]}}


# ---- resource quotas -------------------------------------------------------------------------------------------------
TRAINS = {
    "priorityClassName": "research",
    "overhead": {"cpu": "1"},
    "containers": [
        {"name": "trainer", "resources": {"requests": {"cpu": "500m"}, "limits": {GPU: "2", "memory": "1Gi"}}}
    ],
}
CHARGE = PodCharge(resources.charge(TRAINS), resources.scopes(TRAINS))


def test_a_pod_is_charged_by_the_names_that_quotas_use():
    assert dict(CHARGE.amounts) == {
        "pods": 1, "count/pods": 1, "cpu": 1500, "requests.cpu": 1500, "memory": 2**30, "requests.memory": 2**30,
        "limits.memory": 2**30, f"requests.{GPU}": 2,
    }  # fmt: skip
    assert {"NotTerminating", "NotBestEffort", "PriorityClass=research"} == CHARGE.scopes


def resource_quota(hard: dict[str, str], used: dict[str, str], **spec) -> Any:
    body = {"metadata": {"namespace": "a", "name": "q"}, "spec": {"hard": hard, **spec}}
    return quota({**body, "status": {"hard": hard, "used": used}})


def test_the_room_of_a_quota_is_what_is_left_for_pods():
    found = resource_quota({f"requests.{GPU}": "6", "cpu": "10", "requests.storage": "1Gi"}, {f"requests.{GPU}": "1"})
    job = bounded(Job("u", "a", "u", 1, 8, WorkerShape(()), workers=(Worker("w"),)), CHARGE, [found])
    assert (job.quotas, job.quota_room) == (("a/q",), 1 + 2), "one exists, and five accelerators are two workers"
    assert dict(found.room.left) == {f"requests.{GPU}": 5, "cpu": 10_000, "requests.storage": 2**30}


@pytest.mark.parametrize(
    ("spec", "applies"),
    [
        ({}, True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["OfAnotherVersion"]}, False),
        (selector("In", "research", "ops"), True),
        (selector("In", "ops"), False),
        (selector("NotIn", "ops"), True),
        (selector("Exists"), True),
        (selector("DoesNotExist"), False),
    ],
)
def test_a_quota_bounds_the_pods_that_have_its_scopes(spec, applies):
    job = Job("u", "a", "u", 1, 8, WorkerShape(()))
    bound = bounded(job, CHARGE, [resource_quota({"pods": "0"}, {}, **spec)])
    assert bound.quota_room == (0 if applies else None)


@pytest.mark.parametrize("status", [{}, {"hard": {}}, {"hard": {"services": "1"}}, {"hard": {"pods": "many"}}])
def test_a_quota_that_bounds_no_pods_is_ignored(status):
    assert quota({"metadata": {"namespace": "a", "name": "q"}, "spec": {}, "status": status}) is None
