"""Which workers the API server compares with their job's template."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest
from loop_world import CONFIG

SECRET = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def body(container: dict | None = None, **fields: object) -> dict:
    return {"containers": [{"name": "trainer", "image": "t:1", "command": ["t"], **(container or {})}], **fields}


def labels(make_spec, spec: dict) -> dict[str, str]:
    return manifest.pod(JobRef("ns", "job", "uid"), make_spec(template={"spec": spec}), 0, CONFIG)["metadata"]["labels"]


NOTHING = [
    body(),
    body(serviceAccountName="default"),
    body(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}, {"name": "none"}]),
    body({"env": [{"name": "X", "value": "1"}]}, volumes=None, initContainers=None),
]
MUCH = [
    body(serviceAccountName="trainer"),
    body(serviceAccount="trainer"),
    body(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]),
    body(volumes=[{"name": "a", "secret": {"secretName": "s"}}]),
    body(volumes=[{"name": "a", "hostPath": {"path": "/"}}]),
    body(volumes=[{"name": "a", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
    body({"env": [{"name": "X", **SECRET}]}),
    body({"envFrom": [{"secretRef": {"name": "s"}}]}),
    body(initContainers=[{"name": "i", "image": "i:1", "envFrom": [{"secretRef": {"name": "s"}}]}]),
]


@pytest.mark.parametrize(("spec", "label"), [*((s, None) for s in NOTHING), *((s, "true") for s in MUCH)])
def test_worker_that_uses_a_service_account_a_secret_or_a_claim_has_the_label(make_spec, spec, label):
    assert labels(make_spec, spec).get(names.LABEL_USES) == label
