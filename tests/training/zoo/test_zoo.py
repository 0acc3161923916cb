"""Scripts in the shapes that people copy: whatever happens to the job, it ends with the undisturbed result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from budgets import at_night

ZOO = Path(__file__).parents[3] / "examples" / "zoo"
SCRIPTS = sorted(path.parent.name for path in ZOO.glob("*/elastic.py"))
IN_CI = "nanogpt"
"""Micro-batches with tied weights. `make nightly` runs all; what is particular in the others (a plain loop, a stream,
several backwards, parameters without a gradient, frozen layers, BatchNorm) has its tests in tests/training."""
SECONDS = 300.0


def _bitwise(script: str) -> bool:
    return 'numerics="bitwise"' in (ZOO / script / "elastic.py").read_text()


def test_script_ends_as_undisturbed_if_ranks_join_die_and_leave(survives) -> None:
    survives(IN_CI, seed=1, bitwise=_bitwise(IN_CI))


@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_ends_as_undisturbed_if_it_is_disturbed_at_random_moments(survives, script, seed) -> None:
    survives(script, seed=seed, bitwise=_bitwise(script))


@pytest.mark.parametrize("script", ["dcgan", *at_night(*(s for s in SCRIPTS if s != "dcgan"))])
def test_one_undisturbed_worker_runs_each_body_of_the_script_once(zoo_job, tmp_path, script) -> None:
    job = zoo_job(script, BODIES=str(tmp_path / "bodies"))
    job.want(1)
    job.add()
    job.finished()
    of_body = [*dict.fromkeys((tmp_path / "bodies").read_text().splitlines())]  # one may have several backwards
    places = [(int(step), int(micro)) for step, micro, *_ in map(str.split, of_body)]
    assert places == sorted({*places}), "a body has run twice"
    assert {step for step, _ in places} == {*range(job.last_step() + 1)}
    assert not any(line.endswith("True") for line in of_body), "a warm-up"


@pytest.mark.nightly
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_for_plain_ddp_trains_two_ranks_and_saves(script, tmp_path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(ZOO / script / "ddp.py"), "--out", "out.pt"],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert torch.load(tmp_path / "out.pt", weights_only=False)["model"]
