"""The benchmarks of sharded models and of checkpoints run and print their tables. Their figures mean nothing here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]


def run(program: str, tmp_path: Path, *options: str) -> dict:
    command = [sys.executable, str(BENCH / program), "--logs", str(tmp_path / "logs"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "logs" / "figures.json").read_text())


@pytest.mark.parametrize("system", ["elastrain", "elastrain-sharded", "dcp", "dcp-sharded"])
def test_a_system_saves_is_killed_and_resumes(tmp_path: Path, system: str) -> None:
    options = ("--systems", system, "--runs=1", "--saves=2", "--every=15")
    [found] = run("checkpoint.py", tmp_path, *options)["runs"]
    assert found["state_bytes"] > 100e6
    assert len(found["saves"]) == 1 and found["saves"][0] > 0
    assert found["resume"] > 0


@pytest.mark.parametrize("system", ["elastrain-hsdp", "elastrain-one-copy", "torchrun-fsdp", "torchrun-hsdp"])
def test_a_sharded_system_recovers_from_a_lost_node(tmp_path: Path, system: str) -> None:
    options = ("--systems", system, "--runs=1", "--events=grow,kill-node")
    [found] = run("rescale.py", tmp_path, *options)["runs"]
    assert [event["recovered"] for event in found["events"]] == [True, True]
    assert (found["samples"]["lost"], found["samples"]["repeated"]) == (0, 0)
