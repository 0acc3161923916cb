"""Nodes that new workers avoid for a while, and the resulting pods."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.facts import Cause, Coordination, Ending, JobRef, Loss, Observed, Pod
from elastrain_operator.job.plan import plan
from elastrain_operator.pod import nodecheck
from elastrain_operator.policy.losses import causes, exclusion
from elastrain_operator.policy.losses.exclusion import NodeExclusions
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus, PairsSpec, PreflightSpec

NOW = datetime(2030, 1, 1, tzinfo=UTC)
COOLDOWN = 600


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def loss(node: str, reason: str = "NodeLost", cause: Cause = Cause.INFRASTRUCTURE) -> Loss:
    return Loss(Pod("job-1", "uid-1", 1, NOW, node=node), cause, reason, f"worker job-1: {reason}")


def after(exclusions: NodeExclusions, *fresh: Loss, now: datetime = NOW, cooldown: int = COOLDOWN) -> NodeExclusions:
    return exclusion.update(exclusions.excluded, exclusions.losses, fresh, cooldown, now)


# ---- when ------------------------------------------------------------------------------------------------------------
def test_node_is_excluded_at_the_third_loss_within_the_window():
    exclusions = after(NodeExclusions(), loss("a"))
    exclusions = after(exclusions, loss("a"), loss("b"), now=at(60))
    assert exclusions.nodes == ()
    exclusions = after(exclusions, loss("a"), now=at(120))
    assert exclusions.nodes == ("a",)
    assert exclusions.until == at(120 + COOLDOWN)
    assert "3 workers lost there within 30 min" in exclusions.excluded[0].message


def test_losses_outside_the_window_do_not_count():
    exclusions = after(NodeExclusions(), loss("a"), loss("a"))
    assert after(exclusions, loss("a"), now=NOW + exclusion.WINDOW).nodes == ()


def test_one_failed_check_excludes_the_node():
    assert after(NodeExclusions(), loss("a", "PreflightFailed")).nodes == ("a",)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [("ScriptFailed", Cause.USER), ("Preempted", Cause.PREEMPTION), ("OOMKilled", Cause.INFRASTRUCTURE),
     ("Evicted", Cause.INFRASTRUCTURE), ("Deleted", Cause.INFRASTRUCTURE)],
)  # fmt: skip
def test_node_is_not_blamed_for_unrelated_losses(reason, cause):
    assert after(NodeExclusions(), *[loss("a", reason, cause)] * 5) == NodeExclusions()


def test_exclusion_expires_and_counting_restarts():
    exclusions = after(NodeExclusions(), loss("a", "PreflightFailed"))
    assert after(exclusions, now=at(COOLDOWN - 1)).nodes == ("a",)
    exclusions = after(exclusions, now=at(COOLDOWN))
    assert exclusions == NodeExclusions()
    assert after(exclusions, loss("a"), now=at(COOLDOWN)).nodes == ()


def test_nothing_is_excluded_or_remembered_if_the_cooldown_is_zero():
    assert (
        after(after(NodeExclusions(), loss("a", "PreflightFailed")), *[loss("a")] * 5, cooldown=0) == NodeExclusions()
    )


def test_the_records_are_bounded_and_the_newest_stay():
    exclusions = NodeExclusions()
    for n in range(100):
        exclusions = after(exclusions, loss(f"bad-{n}", "PreflightFailed"), loss(f"odd-{n}"))
    assert len(exclusions.excluded) == exclusion.MOST_NODES
    assert len(exclusions.losses) == exclusion.MOST_LOSSES
    assert exclusions.excluded[-1].node == "bad-99"
    assert exclusions.losses[-1][0] == "odd-99"


# ---- the whole way: a failed check, the next pod, the end of the exclusion -------------------------------------------
JOB = JobRef("default", "job", "uid", 1)


def refused(ordinal: int, node: str) -> Pod:
    ending = Ending(NOW, exit_code=11, reason="PreflightFailed", message="compute cuda:3: 1 of 262144 values wrong")
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, NOW, ending=ending, over=True, node=node)


def test_next_worker_avoids_the_node_that_failed_its_check_until_the_cooldown_ends(make_spec):
    spec, seen = (
        make_spec(maxReplicas=1, nodeCooldownSeconds=COOLDOWN),
        Observed(JOB, (refused(0, "a"),), Coordination()),
    )
    made = plan(spec, JobStatus(), seen, NOW)
    assert (made.create, made.keep_off) == ((1,), ("a",))
    assert made.status.restarts.infrastructure == 1, "it is not the script's fault"
    condition = next(c for c in made.status.conditions if c.type == "NodesExcluded")
    assert (condition.status, condition.reason) == ("True", "Excluded")
    assert "node a of worker job-0 failed the pre-flight check: compute cuda:3: 1 of 262144" in condition.message
    assert made.requeue_after <= COOLDOWN
    later = plan(spec, made.status, dataclasses.replace(seen, pods=()), at(COOLDOWN))
    assert later.keep_off == ()
    assert next(c for c in later.status.conditions if c.type == "NodesExcluded").status == "False"


@pytest.mark.parametrize(
    ("code", "cause", "reason"),
    [(10, Cause.INFRASTRUCTURE, "PreflightFailed"), (14, Cause.INFRASTRUCTURE, "PreflightFailed"),
     (15, Cause.INFRASTRUCTURE, "PreflightFailed"),
     (2, Cause.USER, "PreflightNotRun"), (127, Cause.USER, "PreflightNotRun"), (137, Cause.INFRASTRUCTURE, "Killed")],
)  # fmt: skip
def test_check_that_could_not_run_is_not_the_node_s_fault(pod_body, code, cause, reason):
    ended = {"exitCode": code, "finishedAt": "2030-01-01T12:00:30Z", "message": "words"}
    check = {"name": "elastrain-preflight", "state": {"terminated": ended}}
    body = pod_body(phase="Failed", status={"initContainerStatuses": [check]})
    body["spec"]["nodeName"] = "a"
    found = causes.judge(parse.pod(body, NOW))
    assert (found.cause, found.reason) == (cause, reason)
    assert found.pod.node == "a"


# ---- the pod ---------------------------------------------------------------------------------------------------------
def test_pod_avoids_each_node_in_each_alternative_of_its_template():
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in ("x", "y")]
    pods = {"podAntiAffinity": {"kept": True}}
    body = {"affinity": {**pods, "nodeAffinity": {key: {"nodeSelectorTerms": zones}, "preferred": 1}}}
    nodecheck.keep_off(body, ("b", "a"))
    refused = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in ("a", "b")]
    assert body["affinity"]["podAntiAffinity"] == {"kept": True}
    assert body["affinity"]["nodeAffinity"]["preferred"] == 1
    terms = body["affinity"]["nodeAffinity"][key]["nodeSelectorTerms"]
    assert terms == [{**zone, "matchFields": refused} for zone in zones]
    assert "matchFields" not in zones[0], "the template itself is not changed"


@pytest.mark.parametrize("affinity", ["here", {"nodeAffinity": 1}, {"nodeAffinity": {}}, None])
def test_an_affinity_of_any_shape_raises_nothing(affinity):
    body = {"affinity": affinity}
    nodecheck.keep_off(body, ())
    assert body == {"affinity": affinity}
    nodecheck.keep_off(body, ("a",))


def test_check_runs_first_with_the_trainer_s_image_user_and_devices():
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
    trainer = {
        "name": "trainer",
        "image": "i",
        "command": ["python"],
        "securityContext": {"runAsUser": 7},
        "resources": {"limits": {"nvidia.com/gpu": 8}},
        "volumeMounts": mounts,
        "ports": [{"containerPort": 1}],
    }
    body = {"initContainers": [{"name": "fetch"}], "containers": [trainer]}
    nodecheck.check_first(body, trainer, PreflightSpec(min_bandwidth=1500), 8)
    check, fetch = body["initContainers"]
    assert fetch == {"name": "fetch"}
    assert check["command"] == [
        "elastrain", "preflight", "--accelerators=8", "--timeout=300", "--min-bandwidth=1500",
    ]  # fmt: skip
    assert (check["image"], check["securityContext"], check["resources"]) == (
        "i", {"runAsUser": 7}, {"limits": {"nvidia.com/gpu": 8}},
    )  # fmt: skip
    assert check["volumeMounts"] == mounts[1:]
    assert "ports" not in check
    nodecheck.check_first(body, trainer, None, 8)
    assert len(body["initContainers"]) == 2


def test_check_can_reach_etcd_if_pairs_are_requested():
    trainer = {"name": "trainer", "image": "i", "env": [{"name": "ELASTRAIN_JOB", "value": "j"}]}
    body = {"containers": [trainer]}
    wanted = PreflightSpec(pairs=PairsSpec(wait_seconds=30))
    nodecheck.check_first(body, trainer, wanted, 0)
    trainer["volumeMounts"] = [{"name": "data", "mountPath": "/data"}, {"name": "login", "mountPath": "/etc/login"}]
    nodecheck.let_meet(body, trainer, wanted, "/etc/login")
    (check,) = body["initContainers"]
    assert check["command"][-1] == "--pairs-wait=30"
    assert check["env"] == trainer["env"]
    assert check["volumeMounts"] == trainer["volumeMounts"][1:], "only the etcd credentials"


def test_check_gets_no_credentials_if_pairs_are_not_requested():
    trainer = {"name": "trainer", "image": "i"}
    body = {"containers": [trainer]}
    for wanted in (None, PreflightSpec()):
        nodecheck.check_first(body, trainer, wanted, 0)
        trainer |= {"env": [{"name": "ELASTRAIN_JOB"}], "volumeMounts": [{"name": "login", "mountPath": "/etc/login"}]}
        nodecheck.let_meet(body, trainer, wanted, "/etc/login")
        trainer = {"name": "trainer", "image": "i"}
    (check,) = body["initContainers"]
    assert (check.get("env"), check["volumeMounts"]) == (None, [])
