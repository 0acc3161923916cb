"""The operator's parsing of raw objects."""

from __future__ import annotations

import pytest

from elastrain.api.records import Outcome, Termination
from elastrain_operator.facts import Trouble
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus
from operator_fixtures import NOW


def running(now):
    return {"running": {"startedAt": now.isoformat()}}


def test_pod_is_neither_started_nor_ended_without_a_report_of_the_kubelet(pod_body):
    pod = parse.pod(pod_body(3), NOW)
    assert (pod.name, pod.ordinal, pod.uid) == ("job-3", 3, "uid-3")
    assert not (pod.started or pod.ready or pod.ending or pod.over or pod.terminating or pod.trouble)


def test_nothing_is_returned_if_the_pod_is_not_a_worker(pod_body):
    assert parse.pod(pod_body(0, ownerReferences=[]), NOW) is None
    assert parse.pod(pod_body(0, name="job-two"), NOW) is None


def test_worker_has_ended_if_its_trainer_has_and_a_sidecar_runs(pod_body, terminated, now):
    record = Termination(outcome=Outcome.DRAINED, step=7)
    pod = parse.pod(pod_body(phase="Running", state=terminated(0, record)), NOW)
    assert pod.ending.record == record
    assert (pod.ending.at, pod.ending.ran) == (now, 90)
    assert not pod.over


def test_ending_has_no_record_if_the_termination_message_is_not_the_agent_s(pod_body, terminated):
    pod = parse.pod(
        pod_body(phase="Failed", state=terminated(128, reason="StartError", message="exec: not found")), NOW
    )
    assert pod.ending.record is None
    assert (pod.ending.exit_code, pod.ending.reason, pod.ending.message) == (128, "StartError", "exec: not found")
    assert pod.over


def test_ending_has_the_kubelets_reason_if_no_container_ever_ran(pod_body):
    pod = parse.pod(pod_body(phase="Failed", status={"reason": "Evicted", "message": "low on memory"}), NOW)
    assert (pod.ending.reason, pod.ending.message, pod.ending.exit_code) == ("Evicted", "low on memory", None)


@pytest.mark.parametrize(
    ("conditions", "went"),
    [
        ({"Ready": "True", "ContainersReady": "True"}, False),
        ({"Ready": "Unknown"}, True),
        ({"Ready": "False", "ContainersReady": "True"}, True),
        ({"Ready": "False", "ContainersReady": "False"}, False),
        ({}, False),
    ],
    ids=["ready", "unknown", "set by the node lifecycle controller", "a probe has not succeeded yet", "no report"],
)
def test_pod_went_unready_if_its_node_is_silent(pod_body, conditions, went):
    told = [{"type": kind, "status": status} for kind, status in conditions.items()]
    pod = parse.pod(pod_body(phase="Running", state=running(NOW), conditions=told), NOW)
    assert pod.went_unready is went
    assert not parse.pod(pod_body(conditions=told), NOW).went_unready, "it has not started"


def test_readiness_gate_of_another_controller_is_not_a_silent_node(pod_body):
    told = [
        {"type": "ContainersReady", "status": "True"},
        {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"},
    ]
    assert not parse.pod(pod_body(phase="Running", state=running(NOW), conditions=told), NOW).went_unready


def test_pod_went_unready_if_the_operator_has_seen_it_ready(pod_body):
    def seen(status, before=None):
        told = [{"type": "Ready", "status": status, "reason": "ContainersNotReady"}]
        return parse.pod(pod_body(phase="Running", state=running(NOW), conditions=told), NOW, before)

    was = seen("True")
    failing = seen("False", was)
    assert failing.went_unready
    assert seen("False", failing).went_unready, "until it is Ready again"
    assert not seen("True", failing).went_unready
    assert not seen("False").went_unready


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
    trouble = parse.pod(pod_body(state={"waiting": waiting}), NOW).trouble
    assert trouble.reason == reason
    assert "pod job-0, container trainer" in trouble.message
    assert waiting["message"] in trouble.message


def test_container_that_is_being_created_is_trouble_only_after_a_while(pod_body):
    trouble = parse.pod(pod_body(state={"waiting": {"reason": "ContainerCreating"}}), NOW).trouble
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
    assert parse.pod(pod_body(conditions=[condition]), NOW).trouble == Trouble(reason, f"pod job-0: {words}")


def test_disruption_is_known_by_its_reason(pod_body):
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    assert parse.pod(pod_body(conditions=[condition]), NOW).disruption == "PreemptionByScheduler"


def test_invalid_spec_is_refused_with_field_and_rule():
    with pytest.raises(parse.SpecInvalid, match=r"spec\.maxReplicas"):
        parse.job_spec({"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "b"}]}}}})


def test_status_is_empty_if_it_is_absent():
    assert parse.job_status({}) == parse.job_status({"status": None}) == JobStatus()


def test_an_unreadable_status_is_refused_with_field_value_and_rule():
    with pytest.raises(parse.StatusUnreadable, match=r'status\.replicas: "many": .*integer'):
        parse.job_status({"status": {"replicas": "many"}})


# ---- what it holds ---------------------------------------------------------------------------------------------------
def test_pod_holds_its_accelerators_from_its_binding_on(pod_body):
    scheduled = {"type": "PodScheduled", "status": "True"}
    assert parse.pod(pod_body(conditions=[{**scheduled, "status": "False"}]), NOW).bound is None
    assert parse.pod(pod_body(conditions=[scheduled]), NOW).bound == NOW
    assert parse.pod(pod_body(state=running(NOW)), NOW).bound == NOW, "bound by hand"


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ([{}], 1),
        ([{"cpu": "4", "memory": "1Gi", "hugepages-2Mi": "100Mi"}], 1),
        ([{"nvidia.com/gpu": "8", "rdma/hca": "8"}], 8),
        ([{"amd.com/gpu": 2}, {"amd.com/gpu": "1"}], 3),
        ([{"nvidia.com/gpu": "0"}], 1),
        ([{"requests.nvidia.com/gpu": "many", "example.kubernetes.io/x": "5"}], 1),
        ([{"nvidia.com/gpu": "900000000000000000"}], 2**31 - 1),
    ],
)
def test_accelerators_are_the_most_of_any_extended_resource(pod_body, limits, count):
    body = pod_body()
    body["spec"]["containers"] = [{"name": f"c{i}", "resources": {"limits": x}} for i, x in enumerate(limits)]
    assert parse.pod(body, NOW).accelerators == count
