"""A job from `kubectl apply` to its end, scaled, and paused and taken up in another size."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.commands import eventually, kubectl
from harness.example import STEPS_PER_EPOCH, digits
from harness.jobs import RESCALE, Audit, Job, make_folders

Submit = Callable[[dict[str, Any]], Job]
EPOCHS = 20


def accuracy(job: Job) -> float:
    """What rank 0 printed at the end, on the digits that were held out."""
    printed = "\n".join(job.logs(p["metadata"]["name"]) for p in job.pods)
    found = re.search(r"accuracy on 360 held-out digits: ([0-9.]+)", printed)
    assert found, f"no pod has printed the accuracy; they printed:\n{printed[-2000:]}"
    return float(found[1])


def test_the_model_is_that_of_a_fixed_size_run_if_the_job_is_scaled_up_and_down(submit: Submit, namespace: str) -> None:
    make_folders(namespace, "fixed/")
    fixed = submit(digits("fixed", epochs=EPOCHS, step_seconds=0, replicas=2, place="fixed/"))
    job = submit(digits("elastic", epochs=EPOCHS, step_seconds=0.2, replicas=1))  # time to be scaled twice
    first = job.wait_size(1)
    job.scale(3)
    grown = job.wait_size(3, RESCALE)
    job.wait_steps(20)
    assert first.items() <= grown.items(), "growing replaced a pod that was there"
    last = job.wait_rescale(3)
    # In one change, or in two where the new pods are ready further apart than the leader waits.
    assert last["from"] in (1, 2)
    assert (last["reason"], last["lostSteps"]) == ("Grow", 0)

    job.scale(2)
    shrunk = job.wait_size(2, RESCALE)
    assert shrunk.items() <= grown.items(), "shrinking replaced a pod that should have stayed"
    last = job.wait_rescale(2)
    assert (last["from"], last["reason"], last["lostSteps"]) == (3, "Drain", 0)

    job.wait_success()
    assert job.status["phase"] == "Succeeded"
    assert job.status["step"] == EPOCHS * STEPS_PER_EPOCH
    audit = Audit.of(job)
    assert (audit["epochs"], audit["lost"], audit["repeated"], audit["redone"]) == (EPOCHS, 0, 0, 0)
    assert all(len(audit["pids"][worker]) == 1 for worker in grown), "a rank's process was replaced"
    fixed.wait_success()
    assert abs(accuracy(job) - accuracy(fixed)) <= 5 / 360, "the model is another one than that of the fixed size"
    assert {"TargetSet", "Scaling", "Draining", "Rescaled", "Succeeded"} <= set(job.reasons)
    assert job.reasons.count("Rescaled") >= 2
    row = kubectl("get", "etj", "-n", job.namespace, job.name, "--no-headers").split()
    assert row[:2] == [job.name, "Succeeded"]


def test_a_deleted_pod_is_replaced_and_the_others_train_on(submit: Submit) -> None:
    job = submit(digits("deleted-pod", replicas=3))
    before = job.wait_size(3)
    job.wait_steps(10)
    victim = sorted(before)[0]  # the oldest: its agent leads, its store serves the generation

    kubectl("delete", "pod", "-n", job.namespace, victim, "--wait=false")

    eventually("the pod is gone", lambda: victim not in job.workers, 60, job.summary)
    after = job.wait_size(3, RESCALE)
    survivors = before.keys() - {victim}
    assert {w: after[w] for w in survivors if w in after} == {w: before[w] for w in survivors}
    assert victim not in after, "a worker's name was used twice"
    job.wait_steps(10)
    assert job.status["restarts"]["infrastructure"] == 1
    assert job.status["restarts"].get("user", 0) == 0
    assert any(reason == "WorkerLost" and victim in message for reason, message in job.events)
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(audit["pids"][worker]) == 1 for worker in survivors), "a survivor's process was replaced"


def test_training_goes_on_from_the_checkpoint_in_another_size_if_every_worker_was_gone(submit: Submit) -> None:
    job = submit(digits("paused", replicas=2))
    before = job.wait_size(2)
    job.wait_steps(10)

    job.patch(suspend=True)
    job.wait_condition("Suspended", timeout=RESCALE)
    assert job.workers == {}
    stopped_at = job.step

    job.patch(suspend=False, replicas=3)
    after = job.wait_size(3)
    job.wait_steps(10)
    assert not before.keys() & after.keys()
    audit = Audit.at_the_end_of(job)
    assert audit["steps"] > stopped_at
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)


@pytest.mark.xdist_group("gpus")
def test_the_job_trains_with_what_there_is_and_says_what_is_missing_if_gpus_run_out(submit: Submit) -> None:
    job = submit(digits("too-large", gpus=1, maxReplicas=6, replicas=5))  # two nodes with two GPUs each

    job.wait_size(4)

    grown = job.wait_condition("Grown", "False")
    assert "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker" in grown["message"]
    job.wait_condition("PodsReady")  # no worker is wanted that has no room
    assert job.holds("Running")
