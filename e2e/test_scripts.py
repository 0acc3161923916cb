"""Scripts that were not written for elastrain: DDP after five changed lines, and torchrun's without a change."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from harness.commands import eventually, kubectl
from harness.example import manifest_of
from harness.jobs import RESCALE, START, Audit, Job

Submit = Callable[[dict[str, Any]], Job]


def printed(job: Job) -> str:
    return "\n".join(job.logs(p["metadata"]["name"]) for p in job.pods if p["status"].get("phase") != "Pending")


def replaced(job: Job, victim: str) -> None:
    """Delete a worker's pod, and wait until another trains in its place."""
    kubectl("delete", "pod", "-n", job.namespace, victim, "--wait=false")
    eventually("the pod is gone", lambda: victim not in job.workers, 60, job.summary)
    job.wait_size(2, RESCALE)


def test_a_ddp_script_grows_and_loses_a_pod_after_five_changed_lines(submit: Submit) -> None:
    job = submit(manifest_of("04-five-lines", replicas=1, values={"EPOCHS": "12", "STEP_SECONDS": "0.08"}))
    first = job.wait_size(1)
    job.scale(2)
    job.wait_size(2, RESCALE)
    replaced(job, *first)
    job.wait_condition("Succeeded", timeout=120)
    audit = Audit.of(job)
    assert (audit["epochs"], audit["lost"], audit["repeated"], audit["redone"]) == (12, 0, 0, 0)
    assert re.search(r"accuracy on 360 held-out digits: 0\.9", printed(job))


def test_a_torchrun_script_goes_on_from_its_snapshot_if_its_first_pod_is_deleted(submit: Submit) -> None:
    job = submit(manifest_of("03-torchrun", replicas=2, values={"EPOCHS": "60", "STEP_SECONDS": "0.02"}))
    workers = job.wait_size(2)
    eventually("two ranks train", lambda: "by 2 ranks: loss" in printed(job), START, job.summary)
    replaced(job, sorted(workers)[0])
    eventually("the snapshot is taken up", lambda: "goes on after" in printed(job), RESCALE, job.summary)
    job.wait_condition("Succeeded", timeout=120)
    assert job.status["restarts"].get("user", 0) == 0, "a deleted pod is no failure of the script"
