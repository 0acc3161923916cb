"""Groups of several workers: each has a group and a place there, and whole groups are created, drained and replaced."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest

from elastrain.api import names
from elastrain.api.records import Outcome, Termination
from elastrain.etcd import EtcdConfig
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import DisruptionBudget, Pod, Slot
from elastrain_operator.pod import manifest
from elastrain_operator.policy.size import protection, replicas
from elastrain_resource.job import ConditionType, JobSpec
from job_world import JOB, START, JobWorld, template

LOST = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled")


class Groups(JobWorld):
    """Groups of two workers."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{"minReplicas": 1, "maxReplicas": 2, "parallelism": {"shards": 2}, **fields})

    @property
    def spec(self) -> JobSpec:
        return JobSpec.model_validate({"template": template(self.image), **self.fields})

    def places(self) -> dict[int, list[int]]:
        """By group, the places of live workers that were not asked to leave."""
        found = defaultdict(list)
        for pod in self.live():
            if pod.name not in self.draining:
                found[pod.slot.group].append(pod.slot.place)
        return {group: sorted(places) for group, places in sorted(found.items())}

    def of(self, group: int) -> list[Pod]:
        return [p for p in self.live() if p.slot.group == group]

    def condition(self, kind: ConditionType) -> Any:
        return next(c for c in self.status.conditions if c.type == kind)


@pytest.fixture
def world() -> Groups:
    """Two groups train."""
    world = Groups()
    world.settle()
    assert world.places() == {0: [0, 1], 1: [0, 1]}
    assert len(world.training()) == 4
    return world


# ---- what users see --------------------------------------------------------------------------------------------------
def test_users_count_groups(world):
    status = world.status
    assert (status.desired_replicas, status.replicas, status.ready_replicas) == (2, 2, 2)
    assert world.condition(ConditionType.PODS_READY).message == "2 of 2 groups train"
    assert (world.records.target.min, world.records.target.max, world.records.target.desired) == (2, 4, 4)


def test_a_group_that_lacks_a_worker_is_not_ready(world):
    """An HPA and ``kubectl get`` read it."""
    for group in (0, 1):
        world.end(world.of(group)[0].name, LOST)
    world.operate()
    assert len(world.training()) == 2
    assert world.status.ready_replicas == 0


def test_an_hpa_finds_as_many_pods_as_replicas(world):
    assert world.status.selector == "elastrain.dev/job-uid=uid,elastrain.dev/place=0"


# ---- sizes -----------------------------------------------------------------------------------------------------------
def test_a_smaller_number_drains_a_whole_group(world):
    world.fields["replicas"] = 1
    world.operate()
    assert len({p.slot.group for p in world.live() if p.name in world.draining}) == 1
    assert len(world.draining) == 2
    world.settle()
    assert list(world.places().values()) == [[0, 1]]


def test_spares_are_whole_groups():
    world = Groups(warmSpares=1)
    world.settle()
    assert world.places() == {0: [0, 1], 1: [0, 1], 2: [0, 1]}
    assert (world.status.spares.desired, world.status.spares.ready) == (1, 1)
    assert world.status.replicas == 2


@pytest.mark.parametrize(("workers", "whole"), [(3, 1), (4, 2)])
def test_room_for_half_a_group_is_no_room(workers, whole):
    assert Share(workers, "NoRoom", "", spares=1).in_replicas(2) == Share(whole, "NoRoom", "")


# ---- losses ----------------------------------------------------------------------------------------------------------
def test_a_lost_worker_is_replaced_in_its_place_and_its_mate_stays(world):
    mate, lost = world.of(0)
    world.end(lost.name, LOST)
    made = world.operate()
    assert made.slots == (lost.slot,)
    assert not made.delete or {d.pod for d in made.delete} == {lost.name}
    world.settle()
    assert mate.name in world.training()
    assert world.places() == {0: [0, 1], 1: [0, 1]}
    assert world.status.restarts.infrastructure == 1


def test_a_group_that_has_lost_all_its_workers_is_created_anew(world):
    for pod in world.of(0):
        world.end(pod.name, LOST)
    world.settle()
    assert [len(places) for places in world.places().values()] == [2, 2]


def test_the_group_with_a_hole_leaves_first(world):
    lost, mate = world.of(0)
    world.end(lost.name, LOST)
    world.fields["replicas"] = 1
    world.operate()
    assert world.draining == {mate.name}
    world.settle()
    assert world.places() == {1: [0, 1]}


# ---- a deadline for pending workers ----------------------------------------------------------------------------------
def test_the_whole_group_is_withdrawn_if_one_of_its_workers_does_not_start_in_time(world):
    world.fields["pendingDeadlineSeconds"] = 60
    lost, mate = world.of(0)
    world.end(lost.name, LOST)
    (created,) = world.operate().create
    world.agents()
    world.now += timedelta(seconds=61)
    made = world.operate()
    assert {d.pod for d in made.delete} >= {f"job-{created}"}
    assert world.draining == {mate.name}, "it would hold its accelerators in vain"
    assert world.status.withdrawal is not None
    assert world.places() == {1: [0, 1]}


def test_the_job_fails_if_fewer_than_the_minimum_of_groups_start_in_time():
    world = Groups(minReplicas=2, pendingDeadlineSeconds=60)
    world.operate()
    for pod in [*world.pods.values()][:3]:
        world.pods[pod.name] = world.started(pod)
    world.now += timedelta(seconds=61)
    world.operate()
    failed = world.condition(ConditionType.FAILED)
    assert failed.message.startswith("1 group started, minReplicas is 2")


# ---- roll-outs -------------------------------------------------------------------------------------------------------
def test_a_changed_template_replaces_whole_groups(world):
    world.image = "b"
    most = 0
    for _ in range(60):
        world.kubelet()
        world.agents()
        world.operate()
        most = max(most, len(world.live()))
        assert len(world.training()) >= 2, "one group trains on"
        world.now += timedelta(seconds=5)
    assert most == 6, "a whole group more"
    assert len({p.template for p in world.live()}) == 1
    assert [len(p) for p in world.places().values()] == [2, 2]


# ---- evictions -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("replicas", "least"), [(1, 2), (2, 3), (3, 4)])
def test_evictions_leave_one_group_whole_whichever_workers_they_choose(replicas, least, monkeypatch):
    world = Groups(maxReplicas=replicas)
    world.settle()
    monkeypatch.setattr(protection, "staying", lambda pods, seen: frozenset(p.name for p in pods))
    found = protection.disruption_budget(world.spec, [*world.pods.values()], world.records)
    assert found == DisruptionBudget(tuple(range(replicas * 2)), least)


# ---- pods ------------------------------------------------------------------------------------------------------------
def made(slot: Slot, **fields: Any) -> dict[str, Any]:
    config = OperatorConfig(etcd=EtcdConfig.of("e:1"), worker_etcd=WorkerEtcd(endpoints="e:1"))
    return manifest.pod(JOB, Groups(**fields).spec, 5, config, slot=slot)


def test_a_pod_names_its_group_and_place_for_people_and_for_its_agent():
    pod = made(Slot(3, 1))
    labels = pod["metadata"]["labels"]
    assert (labels[names.LABEL_GROUP], labels[names.LABEL_PLACE]) == ("3", "1")
    env = {e["name"]: e.get("valueFrom") for e in pod["spec"]["containers"][0]["env"]}
    assert env[names.ENV_GROUP]["fieldRef"]["fieldPath"] == "metadata.labels['elastrain.dev/group']"
    assert env[names.ENV_PLACE]["fieldRef"]["fieldPath"] == "metadata.labels['elastrain.dev/place']"


def test_workers_of_a_group_prefer_one_domain_if_its_label_is_named():
    pod = made(Slot(3, 1), parallelism={"shards": 2, "topologyKey": "example.com/rack"})
    other = manifest.grouped(
        pod, JOB, Groups(parallelism={"shards": 2, "topologyKey": "example.com/rack"}).spec, Slot(4, 0)
    )
    for one, group in ((pod, "3"), (other, "4")):
        (term,) = one["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "example.com/rack"
        labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels == {names.LABEL_JOB_UID: "uid", names.LABEL_GROUP: group}


# ---- where workers belong --------------------------------------------------------------------------------------------
def pods(*slots: tuple[int, int]) -> list[Pod]:
    return [Pod(f"w{n}", f"u{n}", n, START, slot=Slot(*slot)) for n, slot in enumerate(slots)]


@pytest.mark.parametrize(
    ("there", "more", "expected"),
    [
        ([], 1, [(0, 0), (0, 1)]),
        ([(0, 0), (0, 1)], 1, [(1, 0), (1, 1)]),
        ([(0, 1)], 1, [(0, 0), (1, 0), (1, 1)]),
        ([(1, 0), (1, 1)], 1, [(0, 0), (0, 1)]),
        ([(0, 0), (0, 0)], 0, [(0, 1)]),
    ],
    ids=["none", "a group more", "a hole first", "the smallest free number", "a place that two claim"],
)
def test_new_workers_fill_holes_first_and_then_new_groups(there, more, expected):
    found = pods(*there)
    assert replicas.slots(found, found, 2, more) == tuple(Slot(*slot) for slot in expected)


def test_a_worker_whose_place_another_has_is_a_group_by_itself():
    one, mate, twin = pods((0, 0), (0, 1), (0, 0))
    assert replicas.of([one, mate, twin]) == ((one, mate), (twin,))
    assert replicas.with_whole_replicas([twin], [one, mate, twin]) == (twin,)
    assert replicas.with_whole_replicas([mate], [one, mate, twin]) == (one, mate)


def test_a_group_has_started_if_all_its_workers_have():
    one, mate = pods((0, 0), (0, 1))
    up = dataclasses.replace(one, started=True, ready=True, node="n")
    assert not replicas.stand_ins([up, mate], 2)[0].started
    assert not replicas.stand_ins([up], 2)[0].started
    assert replicas.stand_ins([up, dataclasses.replace(up, name="x", slot=Slot(0, 1))], 2)[0].started


# ---- Workloads of Kueue ----
