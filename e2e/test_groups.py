"""A sharded model whose groups have two workers each: a deleted pod is replaced in its place, and a group is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.commands import eventually, kubectl
from harness.example import manifest_of
from harness.jobs import RESCALE, START, Audit, Job, make_folders

pytestmark = pytest.mark.nightly
Submit = Callable[[dict[str, Any]], Job]
VALUES = {"STEPS": "100000", "LAYERS": "2", "STEP_SECONDS": "0.2"}


def groups(job: Job) -> dict[str, dict[str, str]]:
    """Names of the running pods, by group and place."""
    found: dict[str, dict[str, str]] = {}
    for pod in job.pods:
        if pod["metadata"]["name"] in job.workers:
            labels = pod["metadata"]["labels"]
            found.setdefault(labels["elastrain.dev/group"], {})[labels["elastrain.dev/place"]] = pod["metadata"]["name"]
    return found


def wait_groups(job: Job, number: int, timeout: float) -> dict[str, dict[str, str]]:
    """Until so many whole groups train; returns their pods."""

    def train() -> bool:
        status = job.status
        whole = [group for group in groups(job).values() if sorted(group) == ["0", "1"]]
        return (
            status.get("readyReplicas") == status.get("replicas") == number
            and status.get("generation", {}).get("size") == 2 * number
            and len(whole) == number
        )

    eventually(f"{number} groups of {job.name} train", train, timeout, job.summary)
    return groups(job)


def test_a_deleted_pod_is_replaced_in_its_place_and_kubectl_scale_adds_a_group(submit: Submit, namespace: str) -> None:
    make_folders(namespace)
    sizes = {"minReplicas": 1, "maxReplicas": 3, "replicas": 2}
    job = submit(manifest_of("10-fsdp", values=VALUES, gpus=0, nprocPerNode=1, parallelism={"shards": 2}, **sizes))
    before = wait_groups(job, 2, START)
    job.wait_steps(10)
    victim, mate = before["1"]["0"], before["1"]["1"]

    kubectl("delete", "pod", "-n", job.namespace, victim, "--wait=false")

    eventually("the pod is gone", lambda: victim not in job.workers, 60, job.summary)
    after = wait_groups(job, 2, RESCALE)
    assert after["0"] == before["0"], "a pod of the other group was replaced"
    assert after["1"]["1"] == mate, "the pod's mate was replaced"
    job.wait_steps(10)

    job.scale(3)

    grown = wait_groups(job, 3, RESCALE)
    assert after.items() <= grown.items(), "growing replaced a pod that was there"
    job.wait_steps(10)
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    stayed = [*before["0"].values(), mate]
    assert all(len(audit["pids"][worker]) == 1 for worker in stayed), "a process that should stay was replaced"
