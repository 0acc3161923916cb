"""The chart under running jobs: upgraded, and uninstalled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from harness import release
from harness.commands import ROOT, eventually, kubectl, kubectl_json
from harness.example import digits
from harness.jobs import Audit, Job

Submit = Callable[[dict[str, Any]], Job]


@pytest.fixture
def installed_again() -> Iterator[None]:
    """The release as other tests want it, whatever happens."""
    yield
    release.install()


def test_no_worker_is_restarted_if_the_chart_is_upgraded(submit: Submit, installed_again: None) -> None:
    release.install(release.PREVIOUS)
    job = submit(digits("upgraded", replicas=2))
    before, operators = job.wait_size(2), release.operators()
    generation = job.status["generation"]

    release.install(operator={"logLevel": "DEBUG", "replicas": 2}, etcd={"podAnnotations": {"upgraded": "yes"}})

    crd = kubectl_json("get", "crd", "elastictrainingjobs.elastrain.dev")
    present = yaml.safe_load((ROOT / "crds/elastictrainingjobs.yaml").read_text())
    assert fields(crd) == fields(present), "the CRD is the present chart's"
    assert crd["status"]["storedVersions"] == ["v1alpha1"]
    eventually("two new operators are ready", lambda: len(release.operators() - operators) == 2, 60)
    job.wait_condition("CoordinationAvailable", timeout=90)
    job.wait_steps(20, timeout=90)
    assert job.workers == before
    assert job.status["generation"] == generation
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"]) == (0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values()), "a rank's process was replaced"


def fields(crd: dict[str, Any]) -> set[str]:
    """Fields of the spec and the status that a CRD knows."""
    (version,) = crd["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    return {f"{part}.{name}" for part in ("spec", "status") for name in parts[part]["properties"]}


def test_uninstall_does_not_hang_and_jobs_train_on_if_some_are_alive(submit: Submit, installed_again: None) -> None:
    job = submit(digits("orphaned", replicas=2))
    before = job.wait_size(2)

    assert release.uninstall() < 60

    steps = Audit.of(job)["steps"]
    eventually("the job trains on without operator and etcd", lambda: Audit.of(job)["steps"] > steps + 20, 60)
    assert job.workers == before
    kubectl("delete", "-n", job.namespace, f"etj/{job.name}", "--wait", "--timeout=20s")
    eventually("its pods are collected", lambda: not job.pods, 60)
    left = kubectl_json("get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=elastrain")
    assert left["items"] == []
