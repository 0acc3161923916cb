"""An unmodified torchrun script in elastrain's workers: restarted at each change, it continues from its snapshot."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from elastrain_cli.local.plan import Result

pytest.importorskip("torch")


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_torchrun_script_continues_from_its_snapshot_if_the_job_grows_and_a_worker_is_killed(trial, tmp_path):
    one = trial("03-torchrun", EPOCHS="40", STEP_SECONDS="0.01", SNAPSHOT=str(tmp_path / "snapshot.pt"))
    job = one.job
    seen = one.await_line("by 1 ranks: loss")
    job.scale(2)
    one.await_workers(2)
    seen = one.await_line("by 2 ranks: loss", seen)
    job.kill_worker("torchrun-0")
    one.await_line("by 2 ranks: loss", one.await_line("goes on after", seen))
    job.wait(timeout=120)

    assert job.result is Result.FINISHED, job.message + one.tail()
    blamed = [w.message for w in job.status().workers if "ScriptFailed" in w.message]
    assert not blamed, "a change of size or a lost worker does not count as a failure of the script"
    epochs = [int(found[1]) for line in one.printed("ranks: loss") if (found := re.search(r"epoch (\d+) by", line))]
    assert epochs[-1] == 39
    # A killed worker may lose its last lines, but no work.
    assert all(later >= earlier for earlier, later in pairwise(epochs)), f"a start did not continue: {epochs}"
    (accuracy,) = one.printed("accuracy on 360 held-out digits")
    assert float(accuracy.split()[-1]) > 0.9
