"""The findings of ``elastrain doctor``."""

from __future__ import annotations

from typing import Any

import pytest

from elastrain_cli.client import NotAllowed
from elastrain_cli.cluster import doctor
from elastrain_cli.cluster.doctor import NEEDS


def deployment(component: str, **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component}
    return {"metadata": {"name": "elastrain", "namespace": "ops", "labels": labels}, "status": status}


def pod(name: str, ready: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "ops"},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


@pytest.mark.parametrize(
    ("finding", "state", "words"),
    [
        (doctor.api_server({"major": "1", "minor": "35+", "gitVersion": "v1.35.4"}), "ok", "v1.35.4"),
        (doctor.api_server({"major": "1", "minor": "24", "gitVersion": "v1.24.0"}), "broken", "1.34 or newer"),
        (doctor.api_server({"gitVersion": "mine"}), "unknown", "mine"),
        (doctor.resource({}), "broken", "helm install"),
        (doctor.resource({"versions": [{"version": "v9"}]}), "broken", "served as v9"),
        (doctor.resource({"versions": [{"version": "v1alpha1"}]}), "ok", "v1alpha1"),
        (doctor.permissions({}, "here"), "unknown", "did not report"),
        (doctor.permissions(dict.fromkeys(NEEDS, True), "here"), "ok", "namespace here"),
        (doctor.permissions(dict.fromkeys(NEEDS, True) | {NEEDS[1]: False}, "here"), "warning", "create elastic"),
        (doctor.operator(None), "unknown", "may not list"),
        (doctor.operator([deployment("etcd", readyReplicas=1)]), "broken", "helm install"),
        (doctor.operator([deployment("operator")]), "broken", "kubectl -n ops logs deployment/elastrain"),
        (doctor.operator([deployment("operator", readyReplicas=2)]), "ok", "ops/elastrain (2 ready)"),
        (doctor.workers({"spec": {"containers": [{"name": "trainer"}, {"name": "proxy"}]}}, "a"), "ok", "with proxy"),
        (doctor.workers(NotAllowed("denied request: no"), "a"), "broken", "policy, quota or webhook"),
        (doctor.workers(NotAllowed('User "a" cannot create resource'), "a"), "unknown", "may not try"),
        (doctor.coordination(None), "unknown", "may not list"),
        (doctor.coordination([]), "unknown", "not installed by the chart"),
        (doctor.coordination([pod("etcd-0", "False")]), "broken", "kubectl -n ops describe pod etcd-0"),
        (doctor.coordination([pod("etcd-0", "True")]), "ok", "1 of 1"),
        (doctor.accelerators(None), "unknown", "may not list"),
        (doctor.accelerators([{"status": {"allocatable": {"cpu": "4"}}}]), "warning", "only CPU jobs"),
        (doctor.accelerators([{"status": {"allocatable": {"nvidia.com/gpu": "8"}}}] * 2), "ok", "16 nvidia.com/gpu"),
    ],
)
def test_a_finding_has_its_state_and_its_remedy(finding: doctor.Finding, state: str, words: str) -> None:
    assert finding.state == state
    assert words in f"{finding.text} {finding.fix}"
