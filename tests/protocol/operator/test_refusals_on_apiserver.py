"""Refusals of a real API server, as the operator sees them: quota, Pod Security, failing webhooks."""

from __future__ import annotations

import contextlib
import time
import urllib.error
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastrain.api import names
from elastrain.api.records import Outcome, Termination
from elastrain_resource.job import LastFailure

pytestmark = pytest.mark.apiserver

STATUS = f"{names.PLURAL}/status"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@pytest.fixture(autouse=True)
def _operator(operator_process) -> None:
    operator_process()


@pytest.fixture
def failing_webhook(cluster) -> Iterator[Callable[[str], Callable[[], None]]]:
    """``failing_webhook(resource)``: a webhook of the test's namespace that refuses connections when such an object is
    created; the result deletes it."""
    with contextlib.ExitStack() as undo:
        yield lambda resource: undo.enter_context(_fails(cluster, resource))


@contextlib.contextmanager
def _fails(cluster, resource: str) -> Iterator[Callable[[], None]]:
    name = f"fails-{resource}-{cluster.namespace}"
    hook: dict[str, Any] = {
        "name": "fails.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/validate"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    cluster.call("POST", WEBHOOKS, {"metadata": {"name": name}, "webhooks": [hook]})
    once = contextlib.ExitStack()
    once.callback(cluster.call, "DELETE", f"{WEBHOOKS}/{name}")
    with once:
        yield once.close


def refusal(cluster, job: str, reason: str) -> bool:
    return cluster.condition(job, "PodsReady").get("reason") == reason


def test_a_job_named_quota_that_pod_security_refuses_is_not_taken_for_a_quota(cluster, eventually):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.merge(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"labels": labels}})
    root = {"name": "trainer", "image": "trainer:1", "command": ["train"], "securityContext": {"runAsUser": 0}}
    cluster.create_job("quota-demo", maxReplicas=1, template={"spec": {"containers": [root]}})
    eventually(lambda: refusal(cluster, "quota-demo", "AdmissionDenied"), 60, "the refusal is shown")
    assert "runAsUser" in cluster.condition("quota-demo", "PodsReady")["message"]


def test_a_quota_is_named_and_the_job_starts_with_the_same_ordinal_once_it_is_raised(cluster, play, eventually):
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    cluster.call("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    # In a complete cluster a controller writes this status.
    cluster.merge(f"{quotas}/none/status", {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}})
    play(cluster.create_job("limited", maxReplicas=2))
    eventually(lambda: refusal(cluster, "limited", "QuotaExceeded"), 60, "the refusal is shown")

    cluster.call("DELETE", f"{quotas}/none")

    eventually(lambda: cluster.status("limited").get("readyReplicas") == 2, 60, "two workers train")
    assert set(cluster.pods()) == {"limited-0", "limited-1"}


def test_a_failing_webhook_is_named_in_the_status_and_the_job_starts_once_it_is_gone(
    cluster, failing_webhook, play, eventually
):
    repair = failing_webhook("pods")
    play(cluster.create_job("hooked", maxReplicas=2))
    eventually(lambda: refusal(cluster, "hooked", "WebhookFailed"), 60, "the failure is shown")
    assert "fails.example.com" in cluster.condition("hooked", "PodsReady")["message"]

    repair()

    eventually(lambda: cluster.status("hooked").get("readyReplicas") == 2, 60, "two workers train")
    assert set(cluster.pods()) == {"hooked-0", "hooked-1"}


def test_a_job_starts_and_scales_at_once_although_no_event_can_be_recorded(cluster, failing_webhook, play, eventually):
    failing_webhook("events")
    play(cluster.create_job("silent", maxReplicas=2, replicas=1))
    eventually(lambda: cluster.status("silent").get("readyReplicas") == 1, 20, "a worker trains")
    began = time.monotonic()
    cluster.patch_job("silent", replicas=2)
    eventually(lambda: "silent-1" in cluster.pods(), 20, "another worker is created")
    assert time.monotonic() - began < 10, "events are not in the way"
    assert cluster.events("silent") == []


def test_a_quota_that_refuses_the_disruption_budget_is_named_and_the_job_trains(cluster, play, eventually):
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    hard = {"count/poddisruptionbudgets.policy": "0"}
    cluster.call("POST", quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    cluster.merge(f"{quotas}/none/status", {"status": {"hard": hard, "used": hard}})
    player = play(cluster.create_job("bare", maxReplicas=2))
    eventually(lambda: cluster.status("bare").get("readyReplicas") == 2, 60, "two workers train")
    player.commit(10)

    eventually(lambda: cluster.condition("bare", "StateProtected").get("status") == "False", 30, "the refusal is shown")
    found = cluster.condition("bare", "StateProtected")
    assert found["reason"] == "WriteRefused"
    assert "exceeded quota: none" in found["message"]
    assert cluster.condition("bare", "PodsReady")["status"] == "True"


@contextlib.contextmanager
def _refuses_statuses(cluster, eventually) -> Iterator[None]:
    """A policy of the test's namespace that refuses the status of a job with a failure."""
    name, group = f"no-failures-{cluster.namespace}", "/apis/admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [names.GROUP], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": [STATUS]}
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!has(object.status.lastFailure)", "message": "no failures here"}],
    }
    chosen = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}}
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": chosen}
    with contextlib.ExitStack() as undo:
        for kind, spec in (("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)):
            cluster.call("POST", f"{group}/{kind}", {"metadata": {"name": name}, "spec": spec})
            undo.callback(cluster.call, "DELETE", f"{group}/{kind}/{name}")
        failure = LastFailure(time="2030-01-01T00:00:00Z", worker="w", cause="user", reason="R", message="m")
        wire = {"status": {"lastFailure": failure.model_dump(mode="json", by_alias=True, exclude_none=True)}}

        def is_in_force() -> bool:
            try:
                cluster.merge(f"{cluster.job_path('mute')}/status?dryRun=All", wire)
            except urllib.error.HTTPError as refused:
                return b"no failures here" in refused.read()
            return False

        eventually(is_in_force, 30, "the policy is in force")
        yield


def test_a_policy_that_refuses_the_status_leaves_no_old_word_in_it(cluster, play, eventually):
    player = play(cluster.create_job("mute", maxReplicas=2))
    eventually(lambda: cluster.status("mute").get("readyReplicas") == 2, 60, "two workers train")
    with _refuses_statuses(cluster, eventually):
        player.crash("mute-1", Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom"))
        eventually(lambda: refusal(cluster, "mute", "StatusRefused"), 60, "the refusal is shown")
        assert cluster.status("mute")["readyReplicas"] == 1
        assert "no failures here" in cluster.condition("mute", "PodsReady")["message"]
    eventually(lambda: cluster.status("mute").get("readyReplicas") == 2, 60, "the worker is replaced")
