"""The command on real scripts: what is safe is called safe, and a planted fault is found in the run that shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bugs import applied, read_all

ROOT = Path(__file__).parents[4]
SECONDS = 600.0
HEAD = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import elastrain

torch.manual_seed(0)
x, y = torch.randn(160, 10), torch.randint(0, 3, (160,))
with elastrain.join() as job:
    net = nn.Linear(10, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    model = job.wrap(net, optimizer=optimizer)
    loader = job.dataloader(TensorDataset(x, y), global_batch_size=16)
"""


def verify(script: Path, *options: str, product: Path | None = None) -> dict:
    """The answer of ``elastrain verify script --json``, with its exit code. ``product``: the folder of its code."""
    command = [sys.executable, "-m", "elastrain", "verify", str(script), "--json", "--time", "900", *options]
    environment = {**os.environ, **({"PYTHONPATH": str(product)} if product else {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, env=environment)
    assert done.stdout, done.stderr
    return {**json.loads(done.stdout), "exit": done.returncode}


def written(folder: Path, body: str) -> Path:
    path = folder / "train.py"
    path.write_text(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    return path


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


def test_value_kept_on_one_rank_is_named_with_entry_step_and_kind(elastrain, tmp_path: Path) -> None:
    script = written(
        tmp_path,
        """
        seen = 0.0
        for a, b in job.steps(loader, steps=1000):
            optimizer.zero_grad()
            job.backward(nn.functional.cross_entropy(model(a - seen), b))
            optimizer.step()
            seen = seen + a.mean().item() if job.committed else seen
        """,
    )
    done = elastrain("verify", script, "--json", "--only", "workers-2", "--steps", "6")
    answer = {**json.loads(done.stdout), "exit": done.exit_code}
    assert (answer["exit"], answer["run"], answer["step"], answer["entry"]) == (1, "workers-2", 2, "job.loss")
    assert answer["kind"] == "one rank"


def test_way_out_is_named_if_the_script_is_none_of_elastrain(tmp_path: Path) -> None:
    """As one for torchrun."""
    script = tmp_path / "train.py"
    script.write_text("import os; os.environ['RANK']")
    answer = verify(script)
    assert (answer["exit"], answer["run"]) == (2, "reference"), answer
    assert any("elastrain convert" in note for note in answer["notes"]), answer


@pytest.mark.nightly
@pytest.mark.parametrize("script", ["01-digits/train.py", "zoo/mnist/elastic.py", "zoo/nanogpt/elastic.py"])
def test_example_is_safe_through_all_runs(script: str) -> None:
    answer = verify(ROOT / "examples" / script)
    assert (answer["exit"], answer["notes"]) == (0, []), answer


PLAIN_LOOP = """
for a, b in job.steps(loader, steps=1000):
    optimizer.zero_grad()
    job.backward(nn.functional.cross_entropy(model(a), b))
    optimizer.step()
"""
STATISTICS = """
net = nn.Sequential(net, nn.BatchNorm1d(3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
model = job.wrap(net, optimizer=optimizer, name="normalised")
"""
TWO_BACKWARDS = """
other = nn.Linear(3, 3)
second = torch.optim.Adam(other.parameters(), lr=0.05)
head = job.wrap(other, optimizer=second)
for a, b in job.steps(loader, steps=1000):
    optimizer.zero_grad()
    job.backward(nn.functional.cross_entropy(head(model(a)), b))
    optimizer.step()
    second.zero_grad()
    job.backward(nn.functional.cross_entropy(head(model(a).detach()), b))
    second.step()
"""
PRODUCT_FAULTS = {
    "27-uneven-batches-weigh-the-same": ("workers-3", PLAIN_LOOP),
    "31-joiners-counted-among-the-parts": ("growth", PLAIN_LOOP),
    "36-discarded-step-leaves-its-statistics": ("kill-within", STATISTICS + PLAIN_LOOP),
    "37-peers-beyond-the-window-not-added": ("workers-3", PLAIN_LOOP),
    "95-discarded-body-keeps-its-first-updates": ("kill-backwards", TWO_BACKWARDS),
    "96-summed-gradients-summed-again": ("workers-2", TWO_BACKWARDS),
    "35-gradients-cleared-between-micro-batches": (
        "one",
        "loader = job.dataloader(TensorDataset(x, y), global_batch_size=16, micro_batch_size=4)" + PLAIN_LOOP,
    ),
}
"""Seeded bugs that change a model, the run that shows each, and a right script."""


@pytest.mark.nightly
@pytest.mark.parametrize("bug", PRODUCT_FAULTS)
def test_fault_of_the_product_is_found_on_a_right_script(tmp_path: Path, bug: str) -> None:
    run, body = PRODUCT_FAULTS[bug]
    shutil.copytree(ROOT / "trainer", tmp_path / "trainer")
    seeded = next(b for b in read_all() if b.name == bug)
    for file, text in applied(seeded, {file: (ROOT / file).read_text() for file in seeded.files}).items():
        (tmp_path / file).write_text(text)
    script = written(tmp_path, body)
    answer = verify(script, "--steps", "6", "--only", run, product=tmp_path / "trainer")
    assert (answer["exit"], answer["run"]) == (1, run), answer
