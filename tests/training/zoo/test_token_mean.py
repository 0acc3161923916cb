"""The gradient of Hugging Face's Trainer, a mean over tokens, in an elastic job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ZOO = Path(__file__).parents[3] / "examples" / "zoo"
IN_FLOAT64 = """
import os, runpy, sys, torch
torch.set_default_dtype(torch.float64)
if os.environ.get("DOUBLE"):
    torch.Tensor.float = torch.Tensor.double
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["hf_causal_lm", "trl_sft"])
def test_job_ends_with_the_trainers_own_parameters_if_lengths_differ(zoo_job, tmp_path, script) -> None:
    """A global batch is the whole data set, so that the order of the data is of no account."""
    options = ["--samples", "24", "--epochs", "8"]
    path = str(ZOO / script / "ddp.py")
    plain = [sys.executable, "-c", IN_FLOAT64, path, *options, "--batch-size", "12", "--out", "o.pt"]
    done = subprocess.run(
        plain, cwd=tmp_path, env={**os.environ, "DOUBLE": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    own = torch.load(tmp_path / "o.pt", weights_only=False)

    job = zoo_job(script, *options, "--batch-size", "5", "--global-batch-size", "24", DOUBLE="1")
    job.want(2)
    job.add(2)
    elastic = job.finished()

    assert elastic["step"] == own["step"] == 8
    assert {str(tensor.dtype) for tensor in own["model"].values()} == {"torch.float64"}
    for name, tensor in own["model"].items():
        assert (elastic["model"][name] - tensor).abs().max() < 1e-10, name
