"""A framework's model, rows, files and learning rates are those of the framework alone, whatever becomes of rank 0."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from budgets import at_night
from differences import differences
from elastrain.api.records import Outcome
from elastrain.api.settings import CheckpointSpec, RankSettings

HERE = Path(__file__).parent
SCRIPT = HERE / "train_framework_files.py"
FREE = "1000000000"
FRAMEWORKS = ("huggingface", "lightning", "fabric", "accelerate")


@pytest.fixture
def plain(tmp_path, monkeypatch):
    """``plain(framework)``: what it leaves alone, in one process."""

    def run(framework, *options):
        folder = tmp_path / "plain"
        folder.mkdir()
        (folder / "allowed").write_text(FREE)
        out = folder / "out.pt"
        command = [sys.executable, str(HERE / "runner.py"), str(folder), str(SCRIPT), "--out", str(out), "--plain"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command += ["--framework", framework, *options]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return torch.load(out, weights_only=False)

    return run


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "framework",
    ["own", *at_night(*FRAMEWORKS)],
)
def test_one_undisturbed_worker_runs_each_body_once_as_the_framework_alone(zoo_job, plain, framework):
    """Whatever a body takes from what only the script has."""
    job = zoo_job("effects", "--framework", framework, "--effects", path=SCRIPT)
    job.want(1)
    job.add()
    found, expected = job.finished(), plain(framework, "--effects")
    assert found.keys() == expected.keys()
    assert len(found["taken"]) == job.last_step() + 1
    apart = list(differences(expected, found, atol=1e-9))
    assert not apart, "\n".join(apart[:20])


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "options"), [("framework_files", ["--framework", "lightning"]), ("dpo", [])])
def test_what_is_left_is_that_of_an_undisturbed_run_at_random_moments(survives, seed, script, options):
    """TRL's fused head computes in float32."""
    survives(script, *options, seed=seed, path=HERE / f"train_{script}.py", atol=1e-7 if script == "dpo" else 1e-10)


def both_train(job):
    job.want(2)
    job.add(2)
    job.changes("both to train", lambda: job.entered("w0", "w1"))


def rank_0_in_a_step(job):
    both_train(job)
    job.reach(8)
    first, before = job.generation().members[0].worker, job.generation().number
    job[first].kill_rank()
    job.changes("the other to go on", lambda: job.generation().number > before)
    job.ready(first, restarts=1)
    return job.finished()


def rank_0_in_a_save(job):
    both_train(job)
    job.allow(int(FREE))
    job.wait("a save to begin", lambda: job.held.exists() and job.held.read_text())
    os.kill(int(job.held.read_text()), signal.SIGKILL)
    return job.finished()


def all_ranks(job):
    both_train(job)
    job.reach(14)
    for worker in job.workers.values():
        worker.close()
    job.workers.clear()
    job.add(2)
    job.allow(int(FREE))
    for worker in job.workers.values():
        assert worker.ends().outcome is Outcome.FINISHED, job.story()
    return torch.load(job.out, weights_only=False)


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lost", [rank_0_in_a_step, rank_0_in_a_save, all_ranks])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_left_is_the_frameworks_own(zoo_job, plain, tmp_path, framework, lost):
    variables = {}
    if lost is all_ranks:
        spec = CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=3)
        variables = RankSettings(checkpoint=spec).to_environment()
    if lost is rank_0_in_a_save:
        variables = {"HOLD": str(tmp_path / "held")}
    job = zoo_job("framework_files", "--framework", framework, path=SCRIPT, **variables)
    job.held = tmp_path / "held"
    found, expected = lost(job), plain(framework)
    assert found.keys() == expected.keys()
    apart = list(differences(expected, found, atol=1e-9))
    assert not apart, "\n".join(apart[:20])


@pytest.mark.nightly
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rank_whose_callback_ends_training_alone_is_named_with_the_way_out(zoo_job, tmp_path, framework):
    """No checkpoint is lost: all ranks have committed the same step, and what was saved stays."""
    spec = CheckpointSpec(path=str(tmp_path / "checkpoints"), every_steps=1)
    variables = RankSettings(checkpoint=spec).to_environment()
    job = zoo_job("framework_files", "--framework", framework, "--alone", "5", path=SCRIPT, **variables)
    both_train(job)
    job.allow(int(FREE))
    ends = [worker.ends() for worker in job.workers.values()]
    assert {end.outcome for end in ends} == {Outcome.FAILED}
    reasons = " ".join(end.message for end in ends)
    assert re.search(r"rank 1 .*(after step 5|before step 6) while rank 0 computes step 6", reasons), reasons
    assert "a loop ends on all ranks by job.stop()" in reasons, reasons
    assert {x["rank"] for x in job.commits() if x["step"] == job.last_step()} == {0, 1}
    assert job.last_step() == 4, "the fifth"
    assert [*(tmp_path / "checkpoints").glob("step-*")], "what was saved before"
    by = {"huggingface": "Ends.on_step_end()", "lightning": "Net.on_train_batch_end()"}.get(framework)
    said = " ".join(worker.out() for worker in job.workers.values())
    assert by is None or f"{by} has ended training; if it does so on one rank only, call job.stop()" in said, said
