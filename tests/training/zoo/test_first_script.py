"""The tutorial: both scripts of docs/first-script.md, as they stand on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elastrain_convert.conversion import convert

PAGE = (Path(__file__).parents[3] / "docs" / "first-script.md").read_text()


def script(title: str) -> str:
    """The code block of the page with this title."""
    (found,) = re.findall(rf'```python title="{title}"\n(.*?)```', PAGE, re.DOTALL)
    return str(found)


@pytest.fixture
def after(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(script("after"))
    return path


def test_page_shows_what_the_command_prints_and_leaves_to_a_person():
    conversion = convert(script("before"))
    assert "".join(f"train.py:{n.line}: {n.why}\n    {n.way}\n" for n in conversion.notes) in PAGE
    by_hand = {line for line in script("after").splitlines() if line not in conversion.after.splitlines()}
    assert len(by_hand) < 12, by_hand


def test_elastic_script_stops_early_with_its_best_model_if_a_worker_joins(zoo_job, after):
    """Patience 1: the first epoch that is not better ends training, on all ranks."""
    job = zoo_job("first-script", "--patience", "1", "--epochs", "40", path=after)
    job.want(1)
    job.add()
    job.reach(2)
    job.want(2)
    job.add()
    job.changes("both to train", lambda: job.whole("w0", "w1"))
    best = job.finished()
    assert best["accuracy"] > 0.7
    assert job.last_step() < 40 * 24


@pytest.mark.nightly
def test_elastic_script_ends_as_undisturbed_if_it_is_disturbed_at_random_moments(survives, after, seed) -> None:
    survives("first-script", "--patience", "2", seed=seed, path=after)


@pytest.mark.nightly
def test_script_for_ddp_trains_two_ranks_and_resumes(tmp_path) -> None:
    (tmp_path / "train.py").write_text(script("before"))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    for epochs in ("1", "2"):
        done = subprocess.run(
            [*launcher, "--epochs", epochs], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "epoch 1:" in done.stdout
    assert "epoch 0:" not in done.stdout
    assert torch.load(tmp_path / "best.pt", weights_only=False)["model"]
