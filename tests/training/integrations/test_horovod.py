"""Horovod Elastic: survivors keep their processes over joins, kills and losses of workers."""

from __future__ import annotations

import os
import re
import signal

import pytest

from elastrain.cli.local.plan import Result

LINE = re.compile(r"epoch (\d+) by (\d+) ranks, pid (\d+)")


def pids(one, after: int = 0) -> dict[str, int]:
    """The newest Horovod process of each worker, from the nodes' log."""
    found = {}
    for worker, line in one.lines[after:]:
        if match := re.search(r"starting a Horovod process.*pid=(\d+)", line):
            found[worker] = int(match[1])
    return found


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_survivors_keep_their_processes_if_others_join_and_die(trial, require, tmp_path):
    require("horovod", "ELASTRAIN_REQUIRE_HOROVOD")
    one = trial("09-horovod", EPOCHS="150", STEP_SECONDS="0.02", SAVE=str(tmp_path / "save.pt"))
    seen = one.await_line("by 1 ranks")
    one.job.scale(2)
    one.await_workers(2)
    seen = one.await_line("by 2 ranks", seen)
    os.kill(pids(one)["horovod-1"], signal.SIGKILL)
    seen = one.await_line("by 1 ranks", seen)
    seen = one.await_line("by 2 ranks", seen)
    one.job.kill_worker("horovod-1")
    seen = one.await_line("by 1 ranks", seen)
    seen = one.await_line("by 2 ranks", seen)
    one.job.wait(timeout=120)
    assert one.job.result is Result.FINISHED, one.job.message + one.tail()
    print(one.tail())
