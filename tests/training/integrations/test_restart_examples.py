"""Launchers with restarts: mpirun and TensorFlow's workers continue from the script's last save."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise

import pytest

from elastrain_cli.local.plan import Result


def steps(one, pattern: str) -> list[int]:
    return [int(found[1]) for _, line in one.lines if (found := re.search(pattern, line))]


def goes_on(seen: list[int], *, by: int, last: int) -> None:
    """Each start continues from the previous save. A killed worker may lose its last lines, but no work."""
    assert seen[0] <= by
    assert seen[-1] == last
    assert all(later >= earlier - by for earlier, later in pairwise(seen)), f"work was lost: {seen}"


def grow_and_kill(one, saying: str) -> None:
    """From one worker to two; then the first one dies."""
    name = one.job.spec.name
    seen = one.await_line(saying.format(1))
    one.job.scale(2)
    one.await_workers(2)
    one.await_line(saying.format(2), seen)
    one.job.kill_worker(f"{name}-0")
    one.job.wait(
        lambda s: s.in_force == 2 and f"{name}-0" not in {m.worker for m in s.generation.members},
        timeout=60,
        what=f"another worker in the place of the killed one{one.tail()}",
    )
    one.await_line(saying.format(2), len(one.lines))
    one.job.wait(timeout=120)
    assert one.job.result is Result.FINISHED, one.job.message + one.tail()
    blamed = [w.message for w in one.job.status().workers if "ScriptFailed" in w.message]
    assert not blamed, "a change of size or a lost worker does not count as a failure of the script"


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_mpirun_continues_with_the_existing_workers(trial, require, tmp_path):
    require("mpi4py", "ELASTRAIN_REQUIRE_MPI")
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (apt-get install openmpi-bin)")
    one = trial(
        "07-mpirun",
        STEPS="800",
        STEP_SECONDS="0.05",
        OUT=str(tmp_path / "model.json"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    grow_and_kill(one, "by {} processes")
    goes_on(steps(one, r"step (\d+) by"), by=10, last=800)


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_tensorflow_continues_from_its_backup(trial, require, tmp_path):
    require("tensorflow", "ELASTRAIN_REQUIRE_TENSORFLOW")
    one = trial("08-tensorflow", EPOCHS="40", EPOCH_SECONDS="0.5", BACKUP=str(tmp_path / "backup"))
    grow_and_kill(one, "by {} workers")
    goes_on(steps(one, r"epoch (\d+) by"), by=1, last=39)
