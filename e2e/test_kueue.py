"""Two teams with two GPUs each: by Kueue, a job borrows the other team's idle quota, and gives it back by a rescale."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import kueue, picture
from harness.commands import CACHE, eventually, kubectl
from harness.example import digits
from harness.jobs import RESCALE, Audit, Job, make_folders

pytestmark = [pytest.mark.alone, pytest.mark.nightly]
Submit = Callable[[dict[str, Any]], Job]
PICTURE = CACHE / "e2e-pictures/kueue.png"
"""Loss and world size over time: that of docs/kueue.md."""


@pytest.fixture
def teams(installed: None, namespace: str) -> Iterator[None]:
    """Kueue, and the queues ``vision`` and ``speech`` with two GPUs each; afterwards the release as others want it."""
    try:
        kueue.install()
        kueue.make_queues(namespace, {"vision": 2, "speech": 2})
        yield
    finally:
        kubectl("delete", "etj", "--all", "-n", namespace, "--wait", "--timeout=60s")
        kueue.remove_queues()
        kueue.uninstall()


def test_a_job_grows_into_idle_quota_and_gives_it_back_without_losing_a_step_or_restarting_a_survivor(
    teams: None, submit: Submit, namespace: str
) -> None:
    manifest = kueue.queued(digits("borrower", step_seconds=0.1, gpus=1, minReplicas=2, maxReplicas=4), "vision")
    set_environment(manifest, LOSSES="/checkpoints/losses")
    job = submit(manifest)
    grown = job.wait_size(4)
    base = base_workers(job)
    assert len(base) == 2, "two workers are the minimum, the others are borrowed"
    job.wait_steps(60)

    make_folders(namespace, "other/")
    asked = time.time()
    owner = submit(kueue.queued(digits("owner", gpus=1, minReplicas=2, maxReplicas=2, place="other/"), "speech"))
    shrunk = job.wait_size(2, RESCALE)
    assert shrunk == {name: uid for name, uid in grown.items() if name in base}, "its own two workers have stayed"
    assert job.wait_rescale(2)["lostSteps"] == 0
    owner.wait_size(2)
    job.wait_steps(60)
    assert any("Preempted" in message for reason, message in job.events if reason == "Evicted")
    assert "queue vision" in job.wait_condition("Grown", "False")["message"]

    ended = time.time()
    kubectl("delete", "-n", namespace, "etj/owner", "--wait", "--timeout=60s")
    regrown = job.wait_size(4)
    assert shrunk.items() <= regrown.items(), "growing replaced a worker that was there"
    job.wait_steps(60)
    assert all(count == 0 for count in job.status["restarts"].values())

    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(audit["pids"][worker]) == 1 for worker in base), "a survivor's process was replaced"
    eventually("its Workloads are gone", lambda: not kueue.workloads(namespace), 60)
    read = picture.read(job.volume / "checkpoints/losses")
    assert not read.contradictions
    assert sorted(read.losses) == list(range(1, len(read.losses) + 1)), "a step is missing"
    picture.draw(
        PICTURE, read, "Two teams, two GPUs each: idle quota trains, and is given back by a rescale",
        {"the other team's job is queued": asked, "it has ended": ended},
    )  # fmt: skip


def set_environment(manifest: dict[str, Any], **values: str) -> None:
    for entry in manifest["spec"]["template"]["spec"]["containers"][0]["env"]:
        entry["value"] = values.get(entry["name"], entry["value"])


def base_workers(job: Job) -> set[str]:
    """Those that are charged to the job's base Workload, whose name has no index."""
    charged = {p["metadata"]["name"]: p["metadata"]["annotations"][kueue.WORKLOAD] for p in job.pods}
    shortest = min(charged.values(), key=len)
    return {name for name, workload in charged.items() if workload == shortest}
