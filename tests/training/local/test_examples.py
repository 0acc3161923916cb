"""The examples, run like by a user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_digits_are_learned(tmp_path):
    run = subprocess.run(
        [
            *(sys.executable, "-m", "elastrain.cli.main", "run", str(EXAMPLES / "01-digits" / "job.yaml"), "--plain"),
            *("--set", "replicas=2", "--env", "EPOCHS=8", "--state-dir", str(tmp_path / "state")),
        ],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    accuracy = re.search(r"accuracy on 360 held-out digits: ([0-9.]+)", run.stdout)
    assert accuracy, run.stdout
    assert float(accuracy[1]) > 0.9
    directory = next((tmp_path / "state" / "audit").iterdir())
    verdict = subprocess.run(
        [sys.executable, "-m", "elastrain.cli.main", "audit", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert verdict.returncode == 0, verdict.stdout
    assert "no sample lost or repeated" in verdict.stdout


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_demo_keeps_its_promises():
    demo = subprocess.run(
        [sys.executable, str(EXAMPLES / "01-digits" / "demo.py")], capture_output=True, text=True, timeout=280
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "no sample lost or repeated" in demo.stdout


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_sharded_model_learns_to_copy(tmp_path):
    run = subprocess.run(
        [
            *(sys.executable, "-m", "elastrain.cli.main", "run", str(EXAMPLES / "10-fsdp" / "job.yaml"), "--plain"),
            *("--set", "replicas=1", "--env", "STEPS=20", "--env", "LAYERS=1"),
            *("--state-dir", str(tmp_path / "state")),
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    losses = [float(x) for x in re.findall(r"loss at the end: ([0-9.]+)", run.stdout)]
    assert losses, run.stdout
    assert losses[0] < 2.4, "it has learned nothing: chance is 2.48"
