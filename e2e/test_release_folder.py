"""A release as a platform engineer gets it: installed from the folder of `make release` alone, and upgraded to the next
version, made the same way, under a running job.

Nothing of the checkout is used beside the two folders, except etcd's image, which is not ours.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import published, release
from harness.commands import eventually, kubectl_json, run
from harness.example import manifest_of
from harness.jobs import Audit, Job, make_folders
from harness.published import Release

pytestmark = [pytest.mark.nightly, pytest.mark.alone]
NEXT = "0.99.0"
TRAINERS = release.WORKER_NODES[0]
"""The only node with the trainers' images."""
STEPS = 1_000_000
"""Of a job that is not meant to end by itself."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Release:
    place = tmp_path_factory.mktemp("first")
    return published.make(published.checkout(place / "checkout"), place / "release")


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Release:
    place = tmp_path_factory.mktemp("second")
    return published.make(published.checkout(place / "checkout", NEXT), place / "release")


def install(made: Release) -> None:
    """Its images onto the nodes, and its chart, told where the images are; the chart itself has the digest."""
    nodes = (release.CONTROL_PLANE, *release.WORKER_NODES)
    made.load("operator", *nodes)
    made.load("trainer", TRAINERS)
    release.install(made.chart, operator={"image": {"repository": f"{published.REPOSITORY}/operator"}, "replicas": 2})


def storm(name: str, made: Release, steps: int, replicas: int) -> dict[str, Any]:
    """An example that needs nothing beside torch, in the trainer's image of a release."""
    values = {"STEPS": str(steps), "STEP_SECONDS": "0.1"}
    manifest = manifest_of("02-storm", values=values, place=f"{name}/", gpus=0, replicas=replicas)
    manifest["metadata"]["name"] = name
    pod = manifest["spec"]["template"]["spec"]
    pod["containers"][0]["image"] = made.image("trainer")
    pod["nodeSelector"] = {"kubernetes.io/hostname": TRAINERS}
    return manifest


def submitted(namespace: str, manifest: dict[str, Any]) -> Job:
    job = Job(namespace, manifest["metadata"]["name"])
    make_folders(namespace, job.name)
    job.apply(manifest)
    return job


@pytest.fixture(scope="module")
def job(common_namespace: str, first: Release) -> Job:
    """Two workers train, on a cluster that has only the first release."""
    release.uninstall()
    left = ("get", "pods", "-n", release.NAMESPACE)
    eventually("no pod of the former release is left", lambda: not kubectl_json(*left)["items"], 180)
    release.remove_etcd()
    install(first)
    job = submitted(common_namespace, storm("enduring", first, STEPS, replicas=2))
    job.wait_size(2)
    return job


def operator_images() -> set[str]:
    pods = kubectl_json("get", "pods", "-n", release.NAMESPACE, "-l", "app.kubernetes.io/component=operator")["items"]
    return {c["image"] for p in pods for c in p["spec"]["containers"] if "deletionTimestamp" not in p["metadata"]}


def test_a_job_trains_in_the_images_of_the_folder_by_their_digests(first: Release, job: Job) -> None:
    assert operator_images() == {first.image("operator")}
    assert {c["image"] for p in job.pods for c in p["spec"]["containers"]} == {first.image("trainer")}
    job.wait_steps(10)


def test_the_job_survives_the_upgrade_to_the_next_release(second: Release, first: Release, job: Job) -> None:
    before, generation = job.wait_size(2), job.status["generation"]
    assert second.digests["operator"] != first.digests["operator"]

    install(second)

    eventually("only operators of the next release", lambda: operator_images() == {second.image("operator")}, 90)
    job.wait_condition("CoordinationAvailable", timeout=90)
    job.wait_steps(20, timeout=90)
    assert job.workers == before
    assert job.status["generation"] == generation
    assert all(c["restartCount"] == 0 for p in job.pods for c in p["status"]["containerStatuses"])


def test_workers_of_the_first_release_are_scaled_by_the_operator_of_the_next(job: Job) -> None:
    before = job.wait_size(2)
    job.scale(3)
    grown = job.wait_size(3)
    assert before.items() <= grown.items()
    job.wait_steps(10)
    audit = Audit.of(job, "enduring/")
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)


def test_a_job_in_the_next_trainer_image_succeeds_beside_it(second: Release, job: Job) -> None:
    young = submitted(job.namespace, storm("young", second, 60, replicas=2))
    young.wait_success()
    assert Audit.of(young, "young/")["lost"] == 0


def test_the_command_line_of_the_wheel_is_of_its_version_and_sees_the_job(
    second: Release, job: Job, tmp_path: Path
) -> None:
    path = ["env", *(f"{k}={v}" for k, v in second.install_cli(tmp_path / "site").items()), "python", "-m", "elastrain"]
    assert run(*path, "version").stdout.split() == ["elastrain", NEXT]
    listed = json.loads(run(*path, "list", "-n", job.namespace, "-o", "json").stdout)
    assert "enduring" in {found["metadata"]["name"] for found in listed["items"]}


@pytest.mark.timeout(3600, func_only=True)
def test_an_image_that_is_built_from_nothing_has_the_same_digest(first: Release, tmp_path: Path) -> None:
    tree = first.folder.parent / "checkout"
    again = run(str(tree / "scripts/release-image"), "operator", str(tmp_path), "--no-cache", timeout=3000)
    assert again.stdout.strip() == first.digests["operator"]
