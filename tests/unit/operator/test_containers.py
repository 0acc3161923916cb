"""Which container of a pod decides a worker's fate, whose failure that is, and which one delays its start."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain.api import names
from elastrain_operator.facts import Cause, JobRef
from elastrain_operator.pod import manifest
from elastrain_operator.policy.losses import causes, exclusion
from elastrain_operator.watch import parse
from loop_world import CONFIG
from operator_fixtures import NOW
from raw_cluster import wire_time

NOTE = {names.CONTAINERS_NOTE: "trainer,fetch,proxy"}
"""A template of a trainer, an init container ``fetch`` and a sidecar ``proxy``."""
PROXY = {"name": "proxy", "restartPolicy": "Always"}


def container(name: str, state: str, **fields: Any) -> dict[str, Any]:
    own = {key: fields.pop(key) for key in ("lastState", "restartCount", "started") if key in fields}
    return {"name": name, "image": f"{name}:1", "state": {state: fields}, **own}


def made(pod_body, init, *, phase="Pending", trainer=None, status=None, note=True, before=None, now=NOW):
    """The parsed worker whose init containers have these statuses."""
    body = pod_body(
        phase=phase,
        state=trainer or {"waiting": {"reason": "PodInitializing"}},
        status={"initContainerStatuses": init, **(status or {})},
        annotations=NOTE if note else {},
    )
    body["spec"]["initContainers"] = [{"name": c["name"]} for c in init if c["name"] != "proxy"] + [PROXY]
    body["spec"]["nodeName"] = "node-a"
    return parse.pod(body, now, before)


# ---- whose failure ---------------------------------------------------------------------------------------------------
FAILED = {
    "the template's": (
        container("fetch", "terminated", exitCode=1, message="pip: ok\ncurl: (6) no such host\n"),
        Cause.USER, "InitContainerFailed",
        "init container fetch of worker job-0 ended with exit code 1: curl: (6) no such host",
    ),
    "the template's, without words": (
        container("fetch", "terminated", exitCode=3), Cause.USER, "InitContainerFailed", "exit code 3",
    ),
    "the template's, not started": (
        container("fetch", "terminated", exitCode=128, reason="StartError", message="exec: fetch: not found"),
        Cause.USER, "CommandNotStarted", "init container fetch of worker job-0 could not start: exec: fetch: not found",
    ),
    "the template's, out of memory": (
        container("fetch", "terminated", exitCode=137, reason="OOMKilled"),
        Cause.INFRASTRUCTURE, "OOMKilled", "init container fetch of worker job-0 used more memory",
    ),
    "the template's, killed": (
        container("fetch", "terminated", exitCode=143),
        Cause.INFRASTRUCTURE, "InitContainerFailed", "init container fetch of worker job-0 was killed by signal 15",
    ),
    "added by admission": (
        container("istio-init", "terminated", exitCode=1, message="no NET_ADMIN"),
        Cause.INFRASTRUCTURE, "InitContainerFailed",
        "init container istio-init of worker job-0, which admission has added, ended with exit code 1: no NET_ADMIN",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED)
def test_failed_init_container_is_the_end_of_its_worker_with_name_code_and_last_words(pod_body, case):
    status, cause, reason, words = FAILED[case]
    pod = made(pod_body, [container("first", "terminated", exitCode=0), status], phase="Failed")
    loss = causes.judge(pod)
    assert (loss.cause, loss.reason) == (cause, reason)
    assert words in loss.message
    assert "\n" not in loss.message


@pytest.mark.parametrize("case", FAILED)
def test_no_node_is_excluded_for_what_an_init_container_did(pod_body, case):
    loss = causes.judge(made(pod_body, [FAILED[case][0]], phase="Failed"))
    assert exclusion.update((), (), [loss] * 5, 600, NOW).nodes == ()


def test_failed_check_of_the_node_still_excludes_it(pod_body):
    check = container(names.PREFLIGHT_CONTAINER, "terminated", exitCode=12, message="bandwidth 1 GB/s")
    loss = causes.judge(made(pod_body, [check], phase="Failed"))
    assert (loss.cause, loss.reason) == (Cause.INFRASTRUCTURE, "PreflightFailed")
    assert exclusion.update((), (), [loss], 600, NOW).nodes == ("node-a",)


def test_all_lines_of_a_failed_init_container_are_kept(pod_body):
    status = container("fetch", "terminated", exitCode=1, message="a\nb\nc")
    assert causes.judge(made(pod_body, [status], phase="Failed")).log_tail == "a\nb\nc"


def test_eviction_explains_the_end_of_an_init_container(pod_body):
    status = container("fetch", "terminated", exitCode=1)
    pod = made(pod_body, [status], phase="Failed", status={"reason": "Evicted", "message": "low on disk"})
    assert (causes.judge(pod).reason, causes.judge(pod).cause) == ("Evicted", Cause.INFRASTRUCTURE)


def test_init_container_counts_as_the_template_s_on_a_pod_of_an_earlier_operator(pod_body):
    pod = made(pod_body, [container("whose", "terminated", exitCode=1)], phase="Failed", note=False)
    assert causes.judge(pod).cause is Cause.USER


@pytest.mark.parametrize("field", ["initContainerStatuses", "ephemeralContainerStatuses", "containerStatuses"])
def test_sidecar_or_debugger_that_ends_is_no_end_of_the_worker(pod_body, now, field):
    other = container("proxy", "terminated", exitCode=1)
    running = container("trainer", "running", startedAt=wire_time(now))
    statuses = {"containerStatuses": [running]}
    statuses[field] = [other, *statuses.get(field, [])]
    body = pod_body(phase="Running", status=statuses, annotations=NOTE)
    body["spec"]["initContainers"] = [PROXY]
    pod = parse.pod(body, NOW)
    assert pod.started
    assert pod.ending is None
    assert causes.judge(pod) is None


def test_failed_sidecar_is_not_taken_for_the_cause_of_a_pod_s_end(pod_body):
    pod = made(pod_body, [container("proxy", "terminated", exitCode=1)], phase="Failed")
    assert pod.ending.container == ""


# ---- which one is the trainer ----------------------------------------------------------------------------------------
def test_injected_container_that_comes_first_is_not_taken_for_the_trainer(pod_body, terminated):
    body = pod_body(phase="Running", annotations={names.CONTAINERS_NOTE: "main"})
    body["spec"]["containers"] = [{"name": "istio-proxy"}, {"name": "main", "command": ["python"]}]
    proxy = container("istio-proxy", "running", startedAt=wire_time(NOW))
    body["status"]["containerStatuses"] = [proxy, {"name": "main", "state": terminated(1)}]
    assert parse.pod(body, NOW).ending.exit_code == 1


def test_manifest_names_the_template_s_containers_and_asks_for_last_words(make_spec):
    template = {
        "metadata": {"annotations": {names.CONTAINERS_NOTE: "not this"}},
        "spec": {
            "initContainers": [{"name": "fetch", "image": "f"}],
            "containers": [{"name": "log", "image": "l"}, {"name": "trainer", "image": "t", "command": ["python"]}],
        },
    }
    pod = manifest.pod(JobRef("ns", "job", "uid"), make_spec(template=template), 0, CONFIG)
    assert pod["metadata"]["annotations"][names.CONTAINERS_NOTE] == "trainer,log,fetch"
    policies = {
        c["name"]: c["terminationMessagePolicy"] for f in ("initContainers", "containers") for c in pod["spec"][f]
    }
    assert policies == {"fetch": "FallbackToLogsOnError", "log": "FallbackToLogsOnError", "trainer": "File"}


# ---- what delays the start -------------------------------------------------------------------------------------------
DELAYS = {
    "an init container runs": (
        [container("first", "terminated", exitCode=0), container("fetch", "running", startedAt="2030-01-01T11:00:00Z")],
        "Initializing", "init container fetch: runs since 2030-01-01T11:00:00Z, 1 of 2 init containers are done",
    ),
    "one runs again after it failed": (
        [container(
            "fetch", "running", startedAt="2030-01-01T11:00:00Z", restartCount=4,
            lastState={"terminated": {"exitCode": 6, "message": "ok\nno such host\n"}},
        )],
        "Initializing", "it has ended 4 times, last with exit code 6: no such host",
    ),
    "one waits after it failed": (
        [container(
            "fetch", "waiting", reason="CrashLoopBackOff", message="back-off 5m0s", restartCount=1,
            lastState={"terminated": {"exitCode": 6}},
        )],
        "ContainerCrashes", "container fetch: back-off 5m0s; it has ended once, last with exit code 6",
    ),
    "a sidecar's startup probe has not passed": (
        [container("proxy", "running", startedAt="2030-01-01T11:00:00Z", started=False)],
        "Initializing", "init container proxy: has not passed its startup probe; it runs since 2030",
    ),
    "an added one runs": (
        [container("istio-init", "running")],
        "Initializing", "init container istio-init, which admission has added: runs since an unknown time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DELAYS)
def test_container_that_delays_the_start_is_named(pod_body, case):
    init, reason, words = DELAYS[case]
    trouble = made(pod_body, init).trouble
    assert trouble.reason == reason
    assert words in trouble.message


def test_sidecar_that_has_started_delays_nothing(pod_body):
    trouble = made(pod_body, [container("proxy", "running", started=True)]).trouble
    assert "container trainer: not created" in trouble.message


# ---- no container at all ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("reason", ["UnexpectedAdmissionError", "OutOfvendor.example/gpu", "TopologyAffinityError"])
def test_pod_that_its_kubelet_refuses_counts_against_the_node(pod_body, reason):
    """By its form: the pod has failed, and no container has run."""
    body = pod_body(phase="Failed", status={"reason": reason, "containerStatuses": []})
    body["spec"]["nodeName"] = "node-a"
    loss = causes.judge(parse.pod(body, NOW))
    assert (loss.reason, loss.cause) == ("PodFailed", Cause.INFRASTRUCTURE)
    assert exclusion.update((), (), [loss] * 3, 600, NOW).nodes == ("node-a",)


def test_pod_of_which_a_container_has_run_was_not_refused(pod_body, terminated):
    beside = [{"name": "proxy", "state": terminated(0)}]
    body = pod_body(phase="Failed", status={"reason": "Evicted", "containerStatuses": beside})
    body["spec"]["nodeName"] = "node-a"
    assert not parse.pod(body, NOW).ending.refused


def test_pod_that_no_scheduler_looks_at_names_its_scheduler(pod_body):
    body = pod_body(phase="Pending", status={"containerStatuses": []})
    body["spec"] |= {"schedulerName": "volcano", "nodeName": ""}
    found = parse.pod(body, NOW).trouble
    assert (found.reason, found.patience) == ("NoScheduler", 30.0)
    assert "schedulerName volcano" in found.message
    body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    assert parse.pod(body, NOW).trouble.reason == "SchedulingGated"


def test_a_kubelets_message_is_cut_where_it_enters(pod_body):
    body = pod_body(phase="Failed", status={"reason": "Evicted", "message": "x" * 310_000, "containerStatuses": []})
    assert len(parse.pod(body, NOW).ending.message) == 16384
