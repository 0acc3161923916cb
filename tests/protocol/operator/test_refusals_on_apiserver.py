"""Refusals of a real API server, as the operator sees them: quota, Pod Security, failing webhooks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.apiserver

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
    eventually(lambda: refusal(cluster, "quota-demo", "PodSecurityViolated"), 60, "the refusal is shown")
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
