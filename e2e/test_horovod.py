"""Horovod Elastic by its example's manifest: survivors keep their processes; the launcher's loss costs a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.commands import eventually, kubectl
from harness.example import manifest_of
from harness.jobs import RESCALE, START, Job, make_folders

pytestmark = [pytest.mark.alone, pytest.mark.nightly]
VALUES = {
    "EPOCHS": "400",
    "STEP_SECONDS": "0.02",
    "SAVE": ".elastrain/horovod.pt",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
}


def epochs(job: Job, pod: str) -> list[tuple[int, int]]:
    """Size and pid of rank 0 for each epoch that it has printed in this pod."""
    return [(int(s), int(p)) for s, p in re.findall(r"epoch \d+ by (\d+) ranks, pid (\d+)", job.logs(pod))]


def trains(job: Job, pod: str, size: int) -> int:
    """Wait until rank 0, in ``pod``, trains with so many ranks; returns its pid."""
    known = len(epochs(job, pod))
    sizes = lambda: [s for s, _ in epochs(job, pod)[known:]]  # noqa: E731
    eventually(f"{pod} trains with {size} ranks", lambda: size in sizes()[-1:], RESCALE, job.summary)
    return epochs(job, pod)[-1][1]


def kill(job: Job, pod: str) -> None:
    """Without a chance to leave."""
    kubectl("delete", "pod", "-n", job.namespace, pod, "--grace-period=0", "--force", "--wait=false")
    gone = lambda: all(p["metadata"]["name"] != pod for p in job.pods)  # noqa: E731
    eventually(f"{pod} is gone", gone, 60, job.summary)


@pytest.mark.timeout(900)
def test_survivors_keep_their_processes_and_all_go_on_from_the_save_if_the_launcher_is_lost(
    submit: Callable[[dict[str, Any]], Job], namespace: str
) -> None:
    place = "09-horovod/"
    make_folders(namespace, place)
    job = submit(manifest_of("09-horovod", values=VALUES, place=place, gpus=0, replicas=1))
    (first,) = job.wait_size(1, START)
    pid = trains(job, first, 1)

    job.scale(2)
    (second,) = job.wait_size(2, START).keys() - {first}
    assert trains(job, first, 2) == pid, "growing replaced the process"
    kill(job, second)
    job.wait_size(2, START)
    assert trains(job, first, 2) == pid, "the loss of a peer replaced the process"
    job.scale(1)
    job.wait_size(1, RESCALE)
    assert trains(job, first, 1) == pid, "shrinking replaced the process"
    assert "goes on after" not in job.logs(first)

    job.scale(2)
    (last,) = job.wait_size(2, START).keys() - {first}
    trains(job, first, 2)
    kill(job, first)
    eventually("the launcher of another worker starts", lambda: "goes on after" in job.logs(last), START, job.summary)
    job.wait_success(stalled=240)  # Horovod reports no step
    assert job.status["restarts"].get("user", 0) == 0, "a deleted pod is no failure of the script"
    printed = "".join(job.logs(p["metadata"]["name"]) for p in job.pods)
    assert re.search(r"accuracy on 360 held-out digits: 0\.9", printed)
