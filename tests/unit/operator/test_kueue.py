"""Decisions about a queued job's Workloads, and their manifests."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Charge, JobRef, PodPlacement
from elastrain_operator.kueue import parse, render
from elastrain_operator.kueue.admission import MISSING_PATIENCE, decide, rung
from elastrain_operator.kueue.apply import changed
from elastrain_operator.kueue.watch import Watch
from elastrain_operator.kueue.workload import (
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
from elastrain_operator.policy.size import sizes
from elastrain_resource.job import JobSpec

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = Request("job-1", "lq", minimum=2, wanted=5, shape="s")
FLAVORS = {"a": Flavor((("pool", "a"),), ({"key": "gpu", "operator": "Exists"},)), "b": Flavor()}
BASE = Workload(
    "job-1", "b", 0, "lq", 2, 100, "normal", shape="s", reserved=True, admitted=True, flavors=("a",), ready=True
)
CONTAINER = {"name": "trainer", "image": "t", "command": ["t"]}
SPEC = JobSpec.model_validate({"minReplicas": 2, "maxReplicas": 5, "template": {"spec": {"containers": [CONTAINER]}}})
PODS = (Holder("p0", "job-1", ready=True), Holder("p1", "job-1", ready=True))


def extra(index: int, **fields: object) -> Workload:
    made = Workload(f"job-1-{index}", f"e{index}", index, "lq", 1, 100 - rung(index), shape="s")
    return dataclasses.replace(made, **fields)


def running(index: int, **fields: object) -> Workload:
    return extra(index, reserved=True, admitted=True, flavors=("a",), **fields)


def decided(
    *workloads: Workload,
    pods: tuple[Holder, ...] = PODS,
    job: Request = JOB,
    memory: Memory = Memory(),  # noqa: B008 - immutable
    now: datetime = NOW,
    **view: object,
) -> Decision:
    seen = View(workloads=workloads, queue=Queue("cq"), flavors=FLAVORS, priority=100)
    return decide(job, dataclasses.replace(seen, **view), pods, memory, now)


def test_a_job_without_a_workload_asks_for_its_minimum() -> None:
    job = dataclasses.replace(JOB, pods=4)
    made = decided(pods=(), job=job)
    assert made.writes == (Create("job-1", 0, 8, 100),)
    assert (made.share.size, made.share.reason) == (0, "Queued")


@pytest.mark.parametrize("view", [{"queue": None}, {"priority": None}])
def test_nothing_is_queued_if_queue_or_class_do_not_exist(view: dict[str, object]) -> None:
    made = decided(pods=(), **view)
    assert (made.writes, made.share.reason) == ((), "QueueObjectMissing")


def test_two_extras_wait_at_a_time_below_the_priority_of_the_base() -> None:
    made = decided(BASE)
    assert made.writes == (Create("job-1-1", 1, 1, 99), Create("job-1-2", 2, 1, 98))
    assert decided(BASE, extra(1), extra(2)).writes == ()
    assert decided(BASE, running(1), extra(2)).writes == (Create("job-1-3", 3, 1, 98),)


@pytest.mark.parametrize("quota", [1, 2, 5, 7, 64, 1000])
def test_equal_jobs_come_to_as_many_extras_within_a_factor_of_two_and_then_rest(quota: int) -> None:
    """Kueue's preemption by priority alone, from the worst beginning: one job has all of the quota."""
    large, small = quota, 0
    while rung(small + 1) < rung(large):
        large, small = large - 1, small + 1
    assert large <= 2 * small + 1
    assert rung(large + 1) >= rung(small), "the other one takes nothing back"
    assert rung(1000) == 10


def test_no_extra_waits_in_a_strict_queue_unless_the_job_asks() -> None:
    strict = Queue("cq", strict=True)
    made = decided(BASE, extra(1), queue=strict)
    assert made.writes == (Delete("job-1-1", "e1"),)
    assert made.share.reason == "QueueIsStrict"
    asks = dataclasses.replace(JOB, always_ahead=True)
    assert len(decided(BASE, queue=strict, job=asks).writes) == 2


def test_pods_take_vacant_seats_with_the_placement_of_their_flavor() -> None:
    made = decided(BASE, running(1), pods=PODS[:1])
    place = PodPlacement((("pool", "a"),), FLAVORS["a"].tolerations)
    assert made.charges == (Charge("job-1", place), Charge("job-1-1", place))
    assert made.share.size == 3


def test_an_evicted_extra_gives_its_quota_back_when_its_pod_is_gone() -> None:
    lost = running(1, evicted="Preempted")
    pod = Holder("p2", "job-1-1", ready=True)
    made = decided(BASE, lost, pods=(*PODS, pod))
    assert (made.share.size, made.share.release, made.writes) == (2, {"p2"}, ())
    assert made.preempted == (lost,)
    later = decided(BASE, lost, memory=made.memory)
    assert later.writes == (Delete("job-1-1", "e1"),)
    assert later.preempted == ()


def test_a_worker_of_an_evicted_extra_leaves_even_if_another_extra_is_admitted_for_it() -> None:
    lost, come = running(1, evicted="Preempted"), running(2)
    made = decided(BASE, lost, come, pods=(*PODS, Holder("p2", "job-1-1", ready=True)))
    assert (made.share.size, made.share.replace) == (3, {"p2"})
    assert [c.workload for c in made.charges] == ["job-1-2"]


def test_no_waiting_extra_has_a_higher_priority_than_a_running_one_of_its_job() -> None:
    made = decided(BASE, running(7), running(9), extra(1), job=dataclasses.replace(JOB, wanted=9))
    changed = {w.name: w.priority for w in made.writes if isinstance(w, Change)}
    assert changed == {"job-1-7": 99, "job-1-9": 98, "job-1-1": 98}
    assert [w for w in made.writes if isinstance(w, Create)] == [Create("job-1-2", 2, 1, 97)]


def test_extras_are_queued_later_and_later_if_kueue_takes_them_back_unready() -> None:
    memory, waits = Memory(), []
    for turn in range(4):
        lost = running(1, evicted="PodsReadyTimeout", uid=f"u{turn}")
        memory = decided(BASE, lost, memory=memory).memory
        assert memory.until is not None
        waits.append((memory.until - NOW).total_seconds())
        assert not [w for w in decided(BASE, memory=memory).writes if isinstance(w, Create)]
        assert decided(BASE, memory=memory, now=memory.until).writes
    assert waits == [10, 20, 40, 80]
    assert decided(BASE, running(1, ready=True), memory=memory).memory.refused == 0


def test_an_evicted_base_holds_its_reservation_until_its_last_pod_is_gone() -> None:
    lost = dataclasses.replace(BASE, evicted="Preempted", message="preempted to accommodate another")
    made = decided(lost, running(1), pods=(*PODS, Holder("p2", "job-1-1")))
    assert (made.share.size, made.share.release, made.writes) == (0, {"p0", "p1", "p2"}, ())
    assert "preempted to accommodate another" in made.share.message
    assert decided(lost, running(1), pods=PODS[:1]).writes == (Delete("job-1-1", "e1"),)
    assert decided(lost, pods=()).writes == (Release("job-1", "b"),)


def test_suspend_deactivates_the_base_and_only_that_is_taken_back() -> None:
    asleep = dataclasses.replace(JOB, suspend=True)
    assert decided(BASE, job=asleep).writes == (Activate("job-1", "b", active=False),)
    slept = dataclasses.replace(BASE, active=False, suspended=True, reserved=False, admitted=False, ready=False)
    assert decided(slept, pods=(), job=asleep).writes == ()
    assert decided(slept, pods=()).writes == (Activate("job-1", "b", active=True),)
    by_admin = dataclasses.replace(slept, suspended=False)
    made = decided(by_admin, pods=())
    assert (made.writes, made.share.reason) == ((), "Deactivated")


def test_a_changed_queue_is_written_before_a_reservation_and_moves_the_job_after_it() -> None:
    moved = dataclasses.replace(JOB, queue="other")
    waits = dataclasses.replace(BASE, reserved=False, admitted=False, ready=False)
    assert decided(waits, pods=(), job=moved).writes == (Change("job-1", "b", queue="other"),)
    made = decided(BASE, job=moved)
    assert (made.share.size, made.share.reason, made.writes) == (0, "Moves", ())
    assert decided(BASE, pods=(), job=moved).writes == (Delete("job-1", "b"),)


CLOSED = {
    "no such queue": ({"queue": None}, "there is no LocalQueue other here"),
    "stopped": ({"queue": Queue("cq", closed="LocalQueue is stopped")}, "LocalQueue is stopped"),
    "no such class": ({"priority": None}, "there is no WorkloadPriorityClass"),
}
"""Why a job that leaves its quota could not queue again, and the words that say so."""


@pytest.mark.parametrize(("view", "words"), CLOSED.values(), ids=CLOSED)
@pytest.mark.parametrize("change", [{"queue": "other"}, {"queue": "other", "shape": "t"}], ids=["queue", "template"])
def test_a_running_job_keeps_its_workers_if_it_could_not_queue_again(
    view: dict[str, object], words: str, change: dict[str, str]
) -> None:
    changed = dataclasses.replace(JOB, **change)
    lost = PODS[:1]
    made = decided(BASE, running(1), pods=lost, job=changed, **view)
    assert (made.share.size, made.share.reason, made.share.release) == (3, "Moves", frozenset())
    assert words in made.share.message
    assert made.share.keeps_template == ("shape" in change)
    assert len(made.charges) == (0 if "shape" in change else 2), "a lost worker returns, unless it would be another pod"
    assert not [w for w in made.writes if isinstance(w, Create | Delete)]
    assert decided(BASE, running(1), pods=lost, job=changed).share.reason == "Moves", "the queue is open"


def test_a_job_that_is_too_small_for_its_new_minimum_leaves_whatever_its_queue_says() -> None:
    made = decided(BASE, job=dataclasses.replace(JOB, minimum=3), queue=None)
    assert (made.share.size, made.share.release) == (0, {"p0", "p1"})


def test_a_job_says_that_kueue_has_not_looked_at_its_workload() -> None:
    waits = dataclasses.replace(BASE, reserved=False, admitted=False, ready=False, flavors=())
    assert "check that Kueue's controller runs" in decided(waits, pods=()).share.message
    assert "check that Kueue's controller runs" in decided(BASE, extra(1)).share.message
    said = dataclasses.replace(waits, message="insufficient quota")
    assert decided(said, pods=()).share.message.endswith("(minReplicas): insufficient quota")


@pytest.mark.parametrize(("status", "closed"), [("True", ""), ("False", "LocalQueue is stopped"), (None, "")])
def test_a_local_queue_is_closed_if_kueue_says_so(status: str | None, closed: str) -> None:
    conditions = [{"type": "Active", "status": status, "message": "LocalQueue is stopped"}] if status else []
    body = {"spec": {"clusterQueue": "cq"}, "status": {"conditions": conditions}}
    assert parse.queue(parse.local_queue(body), {"cq": False}) == Queue("cq", closed=closed)


@pytest.mark.parametrize("share", [None, Share(3, "AtMax", "all that it asks for")], ids=["alone", "shared out"])
def test_a_queue_that_is_ignored_is_named(share: Share | None) -> None:
    claim = sizes.grown((), suspended=False, share=share, desired=3, cap=3)
    made = sizes.with_ignored_queue(claim, "lq", is_shared=share is not None)
    assert made is not None
    assert made.reason == ("AtMax" if share else "NotShared")
    assert "kueue.x-k8s.io/queue-name: lq is ignored" in made.message
    assert sizes.with_ignored_queue(claim, "", is_shared=share is not None) == claim


def test_a_changed_class_changes_base_and_extras() -> None:
    made = decided(
        BASE, running(1), extra(2), extra(3), job=dataclasses.replace(JOB, priority_class="high"), priority=1000
    )
    assert Change("job-1", "b", priority=1000, priority_class="high") in made.writes
    extras = {w.name: w.priority for w in made.writes if isinstance(w, Change)}
    assert extras == {"job-1": 1000, "job-1-1": 999, "job-1-2": 998, "job-1-3": 998}


def test_an_extra_on_another_flavor_is_given_back() -> None:
    made = decided(BASE, extra(1, reserved=True, admitted=True, flavors=("b",)))
    assert made.share.size == 2
    assert Delete("job-1-1", "e1") in made.writes


def test_the_extra_whose_pod_leaves_first_is_given_up() -> None:
    pods = (*PODS, Holder("p2", "job-1-1", leaves_first=0), Holder("p3", "job-1-2", leaves_first=3))
    made = decided(BASE, running(1), running(2), pods=pods, job=dataclasses.replace(JOB, wanted=3))
    assert made.share.release == {"p2"}


def test_readiness_follows_the_pods() -> None:
    assert Ready("job-1", "b", ready=False) in decided(BASE, pods=PODS[:1]).writes
    made = decided(BASE, running(1), pods=(*PODS, Holder("p2", "job-1-1", ready=True)))
    assert Ready("job-1-1", "e1", ready=True) in made.writes


def test_an_ended_job_finishes_its_base_and_deletes_its_extras() -> None:
    ended = dataclasses.replace(JOB, ended="Succeeded")
    assert decided(BASE, running(1), job=ended).writes == (Delete("job-1-1", "e1"),)
    assert decided(BASE, pods=(), job=ended).writes == (Finish("job-1", "b", "Succeeded"),)


def test_nothing_starts_or_stops_while_kueue_is_unknown() -> None:
    made = decided(pods=PODS, job=dataclasses.replace(JOB, size=5), problem="no answer")
    assert (made.share.size, made.share.release, made.writes, made.charges) == (2, frozenset(), (), ())


def test_a_missing_flavor_stops_no_worker_and_starts_none() -> None:
    made = decided(BASE, pods=PODS[:1], flavors={})
    assert (made.share.size, made.share.reason, made.share.release) == (2, "QueueObjectMissing", frozenset())
    assert (made.charges, [w for w in made.writes if isinstance(w, Create)]) == ((), [])


def test_workers_go_on_for_a_while_without_their_workload_then_leave() -> None:
    made = decided(job=dataclasses.replace(JOB, size=2))
    assert (made.share.size, made.share.release, made.writes) == (2, frozenset(), ())
    later = decided(memory=made.memory, now=NOW + MISSING_PATIENCE)
    assert (later.share.size, later.share.release) == (0, {"p0", "p1"})
    assert decided(memory=later.memory, now=NOW + timedelta(seconds=40), pods=()).writes == (
        Create("job-1", 0, 2, 100),
    )


def test_a_job_without_its_label_gives_everything_back() -> None:
    left = dataclasses.replace(JOB, queue="")
    assert decided(BASE, running(1), job=left).share.size == 0
    assert decided(BASE, running(1), job=left, pods=()).writes == (Delete("job-1", "b"), Delete("job-1-1", "e1"))


def test_the_manifest_of_an_extra_asks_for_the_flavor_of_the_base() -> None:
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
        "spec": {
            "containers": [{"name": "t", "image": "i", "resources": {"limits": {"gpu": 1}}, "env": [{"name": "S"}]}]
        },
    }
    made = render.workload(
        JobRef("ns", "job", "uid-1"), Create("job-1-1", 1, 4, 99), template, queue="lq", priority_class="high",
        selector={"pool": "a"}, digest="s",
    )  # fmt: skip
    [pods] = made["spec"]["podSets"]
    assert (pods["count"], pods["topologyRequest"]) == (4, {"required": "rack"})
    assert pods["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    assert pods["template"]["spec"]["containers"] == [{"name": "t", "resources": {"limits": {"gpu": 1}}}]
    assert "priorityClassRef" not in made["spec"]
    read = parse.workload(made)
    assert (read.index, read.count, read.priority, read.shape) == (1, 4, 99, "s")


def test_a_seated_pod_has_its_placement_and_no_queue_of_its_own() -> None:
    pod = {
        "metadata": {"labels": {"a": "b", "kueue.x-k8s.io/queue-name": "lq"}, "annotations": {}},
        "spec": {"nodeSelector": {"x": "y"}, "containers": []},
    }
    place = PodPlacement((("pool", "a"),), ({"key": "gpu"},), (("l", "1"),), (("n", "2"),))
    made = render.charged_to(pod, Charge("job-1", place, topology=True))
    assert made["metadata"]["labels"] == {"a": "b", "l": "1", "kueue.x-k8s.io/podset": "worker"}
    assert made["metadata"]["annotations"] == {"n": "2", "kueue.x-k8s.io/workload": "job-1"}
    assert made["spec"]["nodeSelector"] == {"x": "y", "pool": "a"}
    assert made["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/topology"}]
    assert "tolerations" not in pod["spec"], "the template's manifest is not changed"


@pytest.mark.parametrize(("reason", "again"), [("Preempted", "True"), ("PodsReadyTimeout", "False")])
def test_a_released_workload_queues_again_at_once_only_after_a_preemption(reason: str, again: str) -> None:
    evicted = {"type": "Evicted", "status": "True", "reason": reason, "message": "m", "lastTransitionTime": "t"}
    body = {"metadata": {"generation": 3}, "status": {"admission": {"clusterQueue": "cq"}, "conditions": [evicted]}}
    status = changed(body, Release("w", "u"), NOW)["status"]
    found = {c["type"]: c["status"] for c in status["conditions"]}
    assert "admission" not in status
    assert found == {
        "Evicted": "True", "Requeued": again, "QuotaReserved": "False", "Admitted": "False", "PodsReady": "False",
    }  # fmt: skip


def test_each_eviction_of_a_base_is_counted_once() -> None:
    lost = dataclasses.replace(BASE, evicted="Preempted")
    first = decided(lost)
    assert first.preempted == (lost,)
    assert decided(lost, memory=first.memory).preempted == ()
    waiting = dataclasses.replace(BASE, reserved=False, admitted=False, flavors=())
    free = decided(waiting, pods=(), memory=first.memory)
    assert decided(lost, memory=free.memory).preempted == (lost,), "the same Workload, evicted once more"


def test_a_workload_whose_label_names_another_job_is_that_jobs_and_no_longer_the_formers() -> None:
    woken: list[str] = []
    kept = Watch(None, (), woken.append, lambda: None)
    for uid in ("one", "two"):
        meta = {"name": "w", "namespace": "team", "uid": "w", "resourceVersion": "1"}
        body = {"metadata": {**meta, "labels": {"elastrain.dev/job-uid": uid}}, "spec": {}, "status": {}}
        kept._workloads[0]._take("watch", "MODIFIED", body)
    assert [len(kept.workloads(JobRef("team", uid, uid))) for uid in ("one", "two")] == [0, 1]
    assert set(woken) == {"one", "two"}


def test_groups_of_several_workers_are_counted_as_groups_and_reserved_as_workers() -> None:
    job = dataclasses.replace(JOB, pods=2)
    base = dataclasses.replace(BASE, count=4)
    made = decided(base, extra(1, count=2, reserved=True, admitted=True, flavors=("a",)), job=job, pods=PODS)
    assert made.share.size == 3
    assert "admits 3 of 5 groups" in made.share.message
    assert [seat.workload for seat in made.charges] == ["job-1", "job-1", "job-1-1", "job-1-1"]
    assert made.unbound is not None
    assert sum(number for _, number in made.unbound) == 4, "workers, not replicas: no node has them yet"
