"""Which workers the API server compares with their job's template."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain_operator.pod import uses

UID = "7d0c2f6e-1a2b-4c3d-8e9f-0a1b2c3d4e5f"
USES = {names.LABEL_USES: "7"}
SECRET = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def body(container: dict | None = None, **fields: object) -> dict:
    return {"containers": [{"name": "trainer", **(container or {})}], **fields}


@pytest.mark.parametrize(
    "spec",
    [
        body(),
        body(serviceAccountName="default"),
        body(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c"}}, {"name": "none"}]),
        body(volumes=[{"name": "elastrain-etcd", "secret": {"secretName": "job-etcd-1"}}]),
        body(volumes=[{"name": "a", "projected": {"sources": [{"configMap": {"name": "c"}}]}}]),
        body({"env": [{"name": "X", "value": "1"}, {"name": names.ENV_ETCD_USERNAME, **SECRET}]}),
        body({"envFrom": [{"configMapRef": {"name": "c"}}]}, volumes=None, initContainers=None),
    ],
)
def test_worker_that_uses_nothing_of_its_namespace_has_no_label(spec):
    assert uses.label(spec, UID) == {}


@pytest.mark.parametrize(
    "spec",
    [
        body(serviceAccountName="trainer"),
        body(serviceAccount="trainer"),
        body(volumes=[{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]),
        body(volumes=[{"name": "a", "secret": {"secretName": "s"}}]),
        body(volumes=[{"name": "a", "hostPath": {"path": "/"}}]),
        body(volumes=[{"name": "a", "projected": {"sources": [{"secret": {"name": "s"}}]}}]),
        body({"env": [{"name": "X", **SECRET}]}),
        body({"envFrom": [{"secretRef": {"name": "s"}}]}),
        body(initContainers=[{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]),
    ],
)
def test_worker_that_uses_a_service_account_a_secret_or_a_claim_has_the_label(spec):
    assert uses.label(spec, UID) == USES
