"""The release under a running job: upgraded, operator and etcd taken away, uninstalled.

It is one job through all of this file, in order: what it has lived through is in its audit log at the end.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from harness import release
from harness.commands import ROOT, eventually, kubectl_json
from harness.example import digits
from harness.jobs import RESCALE, Audit, Job

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def job(common_namespace: str) -> Job:
    """Two workers train, with one member of etcd."""
    release.remove_etcd()
    release.install(etcd={"replicas": 1, "persistence": {"enabled": True}})
    job = Job(common_namespace, "enduring")
    job.apply(digits(job.name, replicas=2))
    job.wait_size(2)
    return job


@pytest.fixture
def before(job: Job) -> dict[str, str]:
    """UIDs of the two workers that train, by name."""
    return job.wait_size(2)


def assert_nothing_was_restarted(job: Job) -> None:
    """No worker, no process, and no step twice."""
    assert all(count == 0 for count in job.status["restarts"].values())
    assert all(c["restartCount"] == 0 for p in job.pods for c in p["status"]["containerStatuses"])


def test_no_worker_is_restarted_if_the_chart_is_upgraded(job: Job, before: dict[str, str]) -> None:
    operators, generation = release.operators(), job.status["generation"]

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
    assert_nothing_was_restarted(job)


def fields(crd: dict[str, Any]) -> set[str]:
    """Fields of the spec and the status that a CRD knows."""
    (version,) = crd["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    return {f"{part}.{name}" for part in ("spec", "status") for name in parts[part]["properties"]}


def test_the_rescale_completes_if_the_operator_is_deleted_in_the_middle_of_it(job: Job, before: dict[str, str]) -> None:
    job.scale(3)
    eventually("the new pod exists", lambda: len(job.pods) == 3, 30, job.summary)
    release.delete_pod_of("operator")

    grown = job.wait_size(3)
    assert before.items() <= grown.items()
    job.scale(2)
    eventually("a worker is asked to leave", lambda: "Draining" in job.reasons, 30, job.summary)
    release.delete_pod_of("operator")
    shrunk = job.wait_size(2)
    assert shrunk.items() <= grown.items()
    job.wait_steps(10)
    assert_nothing_was_restarted(job)


def test_training_goes_on_in_the_same_generation_if_etcd_restarts(job: Job, before: dict[str, str]) -> None:
    generation = job.status["generation"]

    release.delete_pod_of("etcd")
    release.wait_pod_of("etcd")

    job.wait_condition("CoordinationAvailable", timeout=90)
    job.wait_steps(20, timeout=90)
    assert job.status["generation"] == generation, "the outage has changed the generation"
    assert job.workers == before
    job.scale(3)
    grown = job.wait_size(3, RESCALE)
    assert before.items() <= grown.items()
    assert_nothing_was_restarted(job)
    job.scale(2)


def test_uninstall_does_not_hang_and_jobs_train_on_if_some_are_alive(job: Job, before: dict[str, str]) -> None:
    assert release.uninstall() < 60

    steps = Audit.of(job)["steps"]
    eventually("the job trains on without operator and etcd", lambda: Audit.of(job)["steps"] > steps + 20, 60)
    assert job.workers == before
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values()), "a rank's process was replaced"
    left = kubectl_json("get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=elastrain")
    assert left["items"] == []
