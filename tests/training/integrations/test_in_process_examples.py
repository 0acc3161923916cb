"""Loops that rescale in process: survivors keep their processes; the audit log equals that of an undisturbed run."""

from __future__ import annotations

import json
import re

import pytest

from elastrain_audit import judge
from elastrain_cli.local.plan import Result

pytest.importorskip("torch")

PACKAGES = {
    "05-huggingface": ("transformers", "ELASTRAIN_REQUIRE_HUGGINGFACE"),
    "06-lightning": ("lightning", "ELASTRAIN_REQUIRE_LIGHTNING"),
}


def grown_and_hit(one) -> None:
    """From one worker to two, then a kill of rank 0; the other one's process must stay."""
    job, name = one.job, one.job.spec.name
    job.wait(lambda s: s.progress and s.progress.step >= 5, timeout=180, what="five steps")
    job.scale(2)
    one.await_workers(2)
    step = job.progress().step
    # Until the joiner has received its state, the first worker has the only copy.
    job.wait(lambda s: s.progress.world_size == 2 and s.progress.step > step + 2, timeout=60, what="steps of both")
    survivor = job.worker(f"{name}-1").rank_pids()
    job.kill_worker(f"{name}-0", "rank")
    job.wait(lambda s: any(w.restarts for w in s.workers), timeout=60, what="the killed rank to start again")
    one.await_workers(2)
    assert job.worker(f"{name}-1").rank_pids() == survivor, "the survivor's process was replaced"


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("example", ["04-five-lines", "06-lightning"])
def test_no_sample_is_lost_or_repeated_if_the_job_grows_and_rank_0_is_killed(trial, require, example):
    if example in PACKAGES:
        require(*PACKAGES[example])
    one = trial(example, EPOCHS="100000", STEP_SECONDS="0.02")
    grown_and_hit(one)
    step = one.job.progress().step
    one.job.wait(lambda s: s.progress.step >= step + 30, timeout=60, what="more than an epoch after the kill")
    one.job.drain()
    one.job.wait(timeout=60)
    assert one.job.result is Result.DRAINED, one.job.message + one.tail()
    verdict = judge.verify(one.job.audit_dir)
    assert verdict.ok, verdict.problems
    assert verdict.epochs >= 1
    assert verdict.redone == 0


@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_the_trainer_logs_and_evaluates_every_step_once_if_the_job_grows_and_rank_0_is_killed(trial, require, tmp_path):
    require(*PACKAGES["05-huggingface"])
    one = trial("05-huggingface", EPOCHS="8", STEP_SECONDS="0.02", OUT=str(tmp_path / "out"))
    grown_and_hit(one)
    one.job.wait(timeout=120)
    assert one.job.result is Result.FINISHED, one.job.message + one.tail()
    verdict = judge.verify(one.job.audit_dir)
    assert verdict.ok, verdict.problems
    assert (verdict.epochs, verdict.redone) == (8, 0)
    last = next(line for _, line in one.lines if "held-out windows" in line)
    assert float(re.search(r": ([0-9.]+) nats", last)[1]) < 3.5, "it has learned nothing"
    logged = json.loads((tmp_path / "out" / "state.json").read_text())["log_history"]
    assert [entry["step"] for entry in logged if "loss" in entry] == [*range(10, 8 * 16, 10)]
    assert [entry["epoch"] for entry in logged if "eval_loss" in entry][:8] == [*range(1, 9)]
    assert (tmp_path / "out" / "model.safetensors").exists()
