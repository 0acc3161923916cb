"""What ``kubectl apply`` warns of, by the chart's policy on a real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from charts import Run

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

QUEUE = {"kueue.x-k8s.io/queue-name": "team-a"}
NO_MOUNT = "spec.checkpoint.path /c/job lies on no volumeMount of container trainer"
NOT_SUSPENDED = "the queue cannot suspend it"


def job(mount: str = "", labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    sidecar = {"name": "sidecar", "image": "s:1", "volumeMounts": [{"name": "v", "mountPath": "/c"}]}
    trainer = {"name": "trainer", "image": "t:1", "command": ["python"]}
    trainer |= {"volumeMounts": [{"name": "v", "mountPath": mount}]} if mount else {}
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "ElasticTrainingJob",
        "metadata": {"name": "advised", "namespace": "default", "labels": labels or {}},
        "spec": {"maxReplicas": 2, "template": {"spec": {"containers": [sidecar, trainer]}}, **spec},
    }


@pytest.fixture(scope="module")
def advises(apiserver: ApiServer, helm: Run) -> Iterator[ApiServer]:
    made = helm(
        "template", "advising", "charts/elastrain", "--kube-version=1.34.0", "--show-only=templates/advice.yaml"
    )
    assert made.returncode == 0, made.stderr
    assert apiserver.kubectl("apply", "-f", "-", document=made.stdout).returncode == 0
    deadline = time.monotonic() + 30
    while NO_MOUNT not in warnings(apiserver, job(checkpoint={"path": "/c/job"})):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield apiserver
    for policy in yaml.safe_load_all(made.stdout):
        apiserver.kubectl("delete", policy["kind"], policy["metadata"]["name"], "--wait=false")


def warnings(apiserver: ApiServer, document: dict[str, Any]) -> str:
    answer = apiserver.kubectl("create", "--dry-run=server", "-f", "-", document=document)
    assert answer.returncode == 0, answer.stderr
    return answer.stderr


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (job(), ""),
        (job("/c", checkpoint={"path": "/c/job"}), ""),
        (job("/c/", checkpoint={"path": "/c/job"}), ""),
        (job("/c/job", checkpoint={"path": "/c/job"}), ""),
        (job("/", checkpoint={"path": "/c/job"}), ""),
        (job(checkpoint={"path": "/c/job"}), NO_MOUNT),
        (job("/c/jo", checkpoint={"path": "/c/job"}), NO_MOUNT),
        (job("/c", labels=QUEUE), NOT_SUSPENDED),
        (job("/c", labels=QUEUE, protectState=False), ""),
        (job("/c", labels=QUEUE, checkpoint={"path": "/c/job"}), ""),
    ],
)
def test_user_is_warned_if_the_state_would_not_last(advises: ApiServer, document: dict[str, Any], words: str) -> None:
    said = warnings(advises, document)
    assert words in said
    assert ("Warning" in said) is bool(words), said
