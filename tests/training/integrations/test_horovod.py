"""Horovod Elastic: survivors keep their processes over joins, kills, losses and drains of workers."""

from __future__ import annotations

import os
import re
import signal
from itertools import pairwise

import pytest

from elastrain_cli.local.plan import Result

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture
def horovod(trial, require, tmp_path):
    """Starts the example with one worker."""
    require("horovod", "ELASTRAIN_REQUIRE_HOROVOD")

    def start(**environment: str):
        return trial("09-horovod", SAVE=str(tmp_path / "save.pt"), **environment)

    return start


def pid(one, worker: str) -> int:
    """Of the worker's newest Horovod process."""
    started = [line for name, line in one.lines if name == worker and "starting a Horovod process" in line]
    found = re.search(r"pid=(\d+)", started[-1])
    assert found
    return int(found[1])


def epochs(one) -> list[tuple[int, int, int]]:
    """Epoch, size and pid of rank 0, as printed."""
    found = (re.search(r"epoch (\d+) by (\d+) ranks, pid (\d+)", line) for _, line in one.lines)
    return [(int(match[1]), int(match[2]), int(match[3])) for match in found if match]


def finishes(one, last: int) -> None:
    one.job.wait(timeout=120)
    assert one.job.result is Result.FINISHED, one.job.message + one.tail()
    seen = [epoch for epoch, _, _ in epochs(one)]
    assert seen[-1] == last and set(seen) == set(range(last + 1)), "an epoch is missing"
    assert not [w.message for w in one.job.status().workers if "ScriptFailed" in w.message]
    assert one.printed("accuracy on 360 held-out digits: 0.9")


def test_survivors_keep_their_processes_if_others_join_die_and_leave(horovod):
    one = horovod(EPOCHS="200", STEP_SECONDS="0.02")
    seen = one.await_line("by 1 ranks")
    survivor = pid(one, "horovod-0")
    one.job.scale(2)
    seen = one.await_line("by 2 ranks", seen)

    killed = pid(one, "horovod-1")
    os.kill(killed, signal.SIGKILL)
    seen = one.await_line("by 1 ranks", seen)
    seen = one.await_line("by 2 ranks", seen)
    assert pid(one, "horovod-1") != killed, "its node has started another"

    one.job.kill_worker("horovod-1")
    seen = one.await_line("by 1 ranks", seen)
    seen = one.await_line("by 2 ranks", seen)

    one.job.scale(1)
    one.await_workers(1)
    one.await_line("by 1 ranks", seen)
    finishes(one, 199)
    assert {rank_0 for _, _, rank_0 in epochs(one)} == {survivor}
    assert not one.printed("goes on after"), "the state was in the survivor's memory"


def test_joiners_enter_if_they_come_while_another_starts_and_survivors_outlive_one_of_them(horovod):
    one = horovod(EPOCHS="300", STEP_SECONDS="0.02")
    seen = one.await_line("by 1 ranks")
    one.job.scale(2)
    one.await_workers(2)  # its process imports torch, while the others wait for it
    one.job.scale(3)
    one.await_workers(3)
    seen = one.await_line("by 3 ranks", seen)
    os.kill(pid(one, "horovod-1"), signal.SIGKILL)
    one.await_line("by 2 ranks", seen)  # after gloo's timeout: a survivor may wait for the other one
    finishes(one, 299)
    assert len({rank_0 for _, _, rank_0 in epochs(one)}) == 1


def test_all_go_on_from_the_save_if_the_launcher_is_lost(horovod):
    one = horovod(EPOCHS="150", STEP_SECONDS="0.02")
    one.job.scale(2)
    seen = one.await_line("by 2 ranks")
    one.job.kill_worker("horovod-0")
    one.await_line("goes on after", seen)
    one.await_line("by 2 ranks", seen)
    finishes(one, 149)
    seen = [epoch for epoch, _, _ in epochs(one)]
    assert all(later >= earlier - 1 for earlier, later in pairwise(seen)), f"work was lost: {seen}"


def test_the_process_starts_again_if_the_only_one_is_killed(horovod):
    one = horovod(EPOCHS="100", STEP_SECONDS="0.01")
    seen = one.await_line("by 1 ranks")
    os.kill(pid(one, "horovod-0"), signal.SIGKILL)
    one.await_line("goes on after", seen)
    finishes(one, 99)


def test_the_job_fails_with_the_scripts_error_if_the_script_fails(horovod):
    one = horovod(EPOCHS="none")
    one.job.wait(timeout=120)
    assert one.job.result is Result.FAILED
    assert "invalid int value: 'none'" in one.job.message + one.tail()
