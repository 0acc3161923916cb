"""The examples, run like by a user."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


def test_the_digits_are_learned(elastrain, warm_agents, tmp_path):
    warm_agents.imports("sklearn.datasets")
    options = ("--plain", "--set", "replicas=2", "--env", "EPOCHS=8", "--state-dir", tmp_path / "state")
    run = elastrain("run", EXAMPLES / "01-digits" / "job.yaml", *options)
    assert run.exit_code == 0, run.output
    accuracy = re.search(r"accuracy on 360 held-out digits: ([0-9.]+)", run.output)
    assert accuracy, run.output
    assert float(accuracy[1]) > 0.9
    verdict = elastrain("audit", next((tmp_path / "state" / "audit").iterdir()))
    assert verdict.exit_code == 0, verdict.output
    assert "no sample lost or repeated" in verdict.output


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_demo_keeps_its_promises():
    demo = subprocess.run(
        [sys.executable, str(EXAMPLES / "01-digits" / "demo.py")], capture_output=True, text=True, timeout=280
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "no sample lost or repeated" in demo.stdout


def loss_of_a_sharded_model(folder: Path, *options: str) -> float:
    """After 20 steps on one group of two ranks."""
    run = subprocess.run(
        [
            *(sys.executable, "-m", "elastrain_cli.main", "run", str(EXAMPLES / "10-fsdp" / "job.yaml"), "--plain"),
            *("--set", "replicas=1", "--env", "STEPS=20", "--env", "LAYERS=1", "--state-dir", str(folder), *options),
        ],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (loss,) = re.findall(r"loss at the end: ([0-9.]+)", run.stdout)
    return float(loss)


@pytest.mark.nightly
@pytest.mark.timeout(500)
def test_a_sharded_model_learns_the_same_in_each_shape_and_plain_torch_reads_its_checkpoint(tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    in_two = loss_of_a_sharded_model(tmp_path / "a", "--set", f"checkpoint.path={saved}")
    assert in_two < 2.4, "it has learned nothing: chance is 2.48"
    together = loss_of_a_sharded_model(tmp_path / "b", "--set", "parallelism.tensor=2")
    assert together == pytest.approx(in_two, abs=1e-4)
    reader = [sys.executable, "-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]
    subprocess.run([*reader, str(saved / "step-000000020"), str(tmp_path / "whole.pt")], check=True, timeout=60)
    names = [*torch.load(tmp_path / "whole.pt", weights_only=False)]
    assert "tracked/model/layers.0.up.weight" in names, names


@pytest.mark.nightly
@pytest.mark.timeout(500)
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler on a CPU: apt install g++")
def test_a_sharded_model_learns_the_same_if_its_blocks_are_compiled(tmp_path):
    compiled = loss_of_a_sharded_model(tmp_path / "b", "--env", "COMPILE=yes")
    assert compiled == pytest.approx(loss_of_a_sharded_model(tmp_path / "a"), abs=1e-3)
