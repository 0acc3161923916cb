"""What a user gets wrong, and how the cluster says so: field, value, rule; what failed, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.commands import eventually
from harness.example import digits
from harness.jobs import START, Audit, Job

Submit = Callable[[dict[str, Any]], Job]


def test_a_condition_names_the_image_if_it_does_not_exist(submit: Submit) -> None:
    manifest = digits("no-image", replicas=1)
    manifest["spec"]["template"]["spec"]["containers"][0]["image"] = "elastrain-e2e/nothing:1"

    job = submit(manifest)

    eventually(
        "PodsReady names the image",
        lambda: "elastrain-e2e/nothing:1" in job.condition("PodsReady").get("message", ""),
        90,
        job.summary,
    )
    assert job.holds("PodsReady", "False")
    assert job.condition("PodsReady")["reason"] == "ImagePullFailed"
    assert "ImagePullFailed" in job.reasons
    assert not job.holds("Failed")


def test_the_job_fails_with_the_scripts_last_words_if_it_raises_more_often_than_allowed(submit: Submit) -> None:
    script = "import elastrain\nwith elastrain.join() as job:\n    raise ValueError('the answer is 41')"

    job = submit(digits("raises", command=["python", "-c", script], replicas=1, backoffLimit=1))

    failed = job.wait_condition("Failed", timeout=START)
    assert "ValueError: the answer is 41" in failed["message"]
    assert job.status["phase"] == "Failed"
    assert job.status["restarts"]["user"] == 2
    assert [message for reason, message in job.events if reason == "WorkerLost" and "the answer is 41" in message]


def test_training_goes_on_and_a_condition_says_why_if_the_disk_is_full_at_a_checkpoint(submit: Submit) -> None:
    manifest = digits("full-disk", replicas=1, checkpoint={"path": "/small/checkpoints", "everySteps": 20})
    pod = manifest["spec"]["template"]["spec"]
    pod["volumes"].append({"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}})
    pod["containers"][0]["volumeMounts"].append({"name": "small", "mountPath": "/small"})

    job = submit(manifest)
    before = job.wait_size(1)

    job.wait_condition("CheckpointHealthy", "False", timeout=60)  # at once: that volume ends with its worker

    def said() -> str:
        return str(job.condition("CheckpointHealthy")["message"])

    eventually("a failed save is reported", lambda: "No space left on device" in said(), 60, job.summary)
    assert "/small/checkpoints" in said()
    job.wait_steps(25)  # over the next attempt, which fails too
    assert job.workers == before
    assert job.holds("Running")
    assert [message for reason, message in job.events if reason == "SaveFailed"]
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"]) == (0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values())
