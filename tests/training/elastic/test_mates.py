"""A rank of a worker is killed: the worker's other ranks keep their processes and the state."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.etcd.server import EtcdServer
from real_job import Job
from warm import Warm

SCRIPT = Path(__file__).with_name("train_float64.py")
SHORT_LOOPS = Path(__file__).with_name("train_short_loops.py")
STEPS = 21 * 4


@pytest.fixture
def job(warm: Warm, tmp_path: Path, etcd_factory: Callable[[], EtcdServer], job_keys: JobKeys) -> Iterator[Job]:
    job = Job(warm, tmp_path, etcd_factory(), job_keys)
    yield job
    job.close()


def start(job: Job, *workers: str) -> None:
    command = [sys.executable, str(SCRIPT), str(job.folder), "4", "0.1"]
    job.start(*workers, command=command, **{names.ENV_NPROC: "2"})


def pids(job: Job, worker: str) -> dict[str, int]:
    return job[worker].log("ranks started")[-1]["pids"]


def ends(job: Job, *workers: str) -> None:
    (job.folder / "run-free").touch()
    assert [job[w].ends().outcome for w in workers] == ["finished"] * len(workers), job.story()
    final = [torch.load(job.folder / f"final-{pid}.pt") for w in workers for pid in pids(job, w).values()]
    assert [end["step"] for end in final] == [STEPS] * 2 * len(workers)
    for end in final:
        assert all(torch.equal(v, final[0]["model"][k]) for k, v in end["model"].items())
        assert end["lr"] == final[0]["lr"]
    job.verdict()


@pytest.mark.parametrize("local", [0, 1])
def test_the_only_worker_loses_no_step_if_one_of_its_ranks_is_killed(job, local) -> None:
    """The other rank holds the only copy of the state."""
    job.want(1)
    start(job, "a")
    first = job.together("a")
    before = pids(job, "a")
    os.kill(before[str(local)], signal.SIGKILL)
    job.together("a", after=first)
    after = pids(job, "a")
    assert after[str(1 - local)] == before[str(1 - local)], "the other rank's process changed"
    assert after[str(local)] != before[str(local)]
    ends(job, "a")


def test_the_other_workers_and_the_killed_ranks_mate_keep_their_processes(job) -> None:
    job.want(2)
    start(job, "a", "b")
    first = job.together("a", "b")
    a, b = pids(job, "a"), pids(job, "b")
    os.kill(b["1"], signal.SIGKILL)
    job.together("a", "b", after=first)
    assert pids(job, "a") == a and pids(job, "b")["0"] == b["0"]
    ends(job, "a", "b")


def test_a_rank_that_stood_by_goes_on_to_the_loop_that_the_job_is_in(world) -> None:
    world.start("a", "b", epochs=40, delay=0.005, script=SHORT_LOOPS)
    world.ready("a", "b")
    world.propose("a", "b")
    world.adopted("a", "b")
    world.progressed("a", 6)
    world.ranks["b"].renew()
    world.wait("a to leave their generation", lambda: world.ranks["a"].has("broken", generation=1))
    world.propose("a")
    world.adopted("a")
    world.progressed("a", 9)
    world.propose("a", "b")
    world.adopted("a", "b")
    final = world.finished("a", "b")
    assert [rank["step"] for rank in final.values()] == [120, 120]
    assert all(torch.equal(v, final["a"]["model"][k]) for k, v in final["b"]["model"].items())
    assert final["a"]["lr"] == final["b"]["lr"], "a schedule missed an epoch"
    assert not world.ranks["b"].of_type("misplaced")


def test_a_rank_that_stood_by_in_the_same_loop_receives_the_newer_state(world) -> None:
    world.start("a", "b")
    world.ready("a", "b")
    world.propose("a", "b")
    world.adopted("a", "b")
    world.progressed("a", 3)
    world.ranks["b"].renew()
    world.wait("a to leave their generation", lambda: world.ranks["a"].has("broken", generation=1))
    world.propose("a")
    world.adopted("a")
    world.progressed("a", 5)
    world.propose("a", "b")
    world.adopted("a", "b")
    final = world.finished("a", "b")
    assert all(torch.equal(v, final["a"]["model"][k]) for k, v in final["b"]["model"].items())
