"""The operator's parsing of raw objects."""

from __future__ import annotations

from datetime import timedelta

import pytest

from elastrain.api.job import JobStatus
from elastrain.api.records import Outcome, Termination
from elastrain_operator.model import Trouble
from elastrain_operator.observe import parse


def ready(status, seconds_after_start, now):
    at = (now + timedelta(seconds=seconds_after_start)).isoformat()
    return [{"type": "Ready", "status": status, "lastTransitionTime": at}]


def running(now):
    return {"running": {"startedAt": now.isoformat()}}


def test_pod_is_neither_started_nor_ended_without_a_report_of_the_kubelet(pod_body):
    pod = parse.pod(pod_body(3))
    assert (pod.name, pod.ordinal, pod.uid) == ("job-3", 3, "uid-3")
    assert not (pod.started or pod.ready or pod.ending or pod.over or pod.terminating or pod.trouble)


def test_nothing_is_returned_if_the_pod_is_not_a_worker(pod_body):
    assert parse.pod(pod_body(0, labels={})) is None


def test_worker_has_ended_if_its_trainer_has_and_a_sidecar_runs(pod_body, terminated, now):
    record = Termination(outcome=Outcome.DRAINED, step=7)
    pod = parse.pod(pod_body(phase="Running", state=terminated(0, record)))
    assert pod.ending.record == record
    assert pod.ending.at == now + timedelta(seconds=90)
    assert not pod.over


def test_ending_has_no_record_if_the_termination_message_is_not_the_agent_s(pod_body, terminated):
    pod = parse.pod(pod_body(phase="Failed", state=terminated(128, reason="StartError", message="exec: not found")))
    assert pod.ending.record is None
    assert (pod.ending.exit_code, pod.ending.reason, pod.ending.message) == (128, "StartError", "exec: not found")
    assert pod.over


def test_ending_has_the_kubelets_reason_if_no_container_ever_ran(pod_body):
    pod = parse.pod(pod_body(phase="Failed", status={"reason": "Evicted", "message": "low on memory"}))
    assert (pod.ending.reason, pod.ending.message, pod.ending.exit_code) == ("Evicted", "low on memory", None)


@pytest.mark.parametrize(
    ("status", "after", "went"), [("True", 5, False), ("False", 5, True), ("Unknown", 5, True), ("False", -5, False)]
)
def test_pod_went_unready_only_if_it_turned_so_after_its_start(pod_body, now, status, after, went):
    pod = parse.pod(pod_body(phase="Running", state=running(now), conditions=ready(status, after, now)))
    assert pod.went_unready is went
    assert pod.ready is (status == "True")


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ({"reason": "ErrImagePull", "message": "not found"}, "ImagePullFailed"),
        ({"reason": "InvalidImageName", "message": "bad"}, "ImagePullFailed"),
        ({"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}, "ContainerConfigFailed"),
        ({"reason": "CrashLoopBackOff", "message": "back-off"}, "ContainerCrashes"),
    ],
)
def test_trouble_quotes_kubelet_and_names_pod_and_container(pod_body, waiting, reason):
    trouble = parse.pod(pod_body(state={"waiting": waiting})).trouble
    assert trouble.reason == reason
    assert "pod job-0, container trainer" in trouble.message
    assert waiting["message"] in trouble.message


def test_container_that_is_being_created_is_trouble_only_after_a_while(pod_body):
    trouble = parse.pod(pod_body(state={"waiting": {"reason": "ContainerCreating"}})).trouble
    assert (trouble.reason, trouble.patience) == ("ContainerNotCreated", 60)
    assert "kubectl describe pod job-0" in trouble.message


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "Unschedulable"),
        ('0/2 nodes are available: persistentvolumeclaim "data" not found.', "VolumeFailed"),
        ("pod has unbound immediate PersistentVolumeClaims", "VolumeFailed"),
    ],
)
def test_unscheduled_pod_quotes_the_scheduler(pod_body, words, reason):
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    assert parse.pod(pod_body(conditions=[condition])).trouble == Trouble(reason, f"pod job-0: {words}")


def test_disruption_is_known_by_its_reason(pod_body):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert parse.pod(pod_body(conditions=[condition])).disruption == "PreemptionByScheduler"


def test_invalid_spec_is_refused_with_field_and_rule():
    with pytest.raises(parse.SpecInvalid, match=r"spec\.maxReplicas"):
        parse.job_spec({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}})


def test_status_is_empty_if_it_is_absent_or_unreadable():
    assert parse.job_status({}) == parse.job_status({"status": {"replicas": "many"}}) == JobStatus()


# ---- what it holds ---------------------------------------------------------------------------------------------------
def test_pod_holds_its_accelerators_from_its_binding_on(pod_body, now):
    at = (now + timedelta(seconds=3)).isoformat()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at}
    assert parse.pod(pod_body(conditions=[scheduled])).bound == now + timedelta(seconds=3)
    assert parse.pod(pod_body(conditions=[{**scheduled, "status": "False"}])).bound is None
    assert parse.pod(pod_body(state=running(now))).bound == now, "bound by hand: its start counts"


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ([{}], 1),
        ([{"cpu": "4", "memory": "1Gi", "hugepages-2Mi": "100Mi"}], 1),
        ([{"nvidia.com/gpu": "8", "rdma/hca": "8"}], 8),
        ([{"amd.com/gpu": 2}, {"amd.com/gpu": "1"}], 3),
        ([{"nvidia.com/gpu": "0"}], 1),
        ([{"requests.nvidia.com/gpu": "many", "example.kubernetes.io/x": "5"}], 1),
    ],
)
def test_accelerators_are_the_most_of_any_extended_resource(pod_body, limits, count):
    body = pod_body()
    body["spec"]["containers"] = [{"name": f"c{i}", "resources": {"limits": x}} for i, x in enumerate(limits)]
    assert parse.pod(body).accelerators == count
