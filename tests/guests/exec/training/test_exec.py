"""Scripts for torchrun, unchanged, as elastic jobs: they end with the model, the lines and the files of torchrun."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from budgets import at_night
from conditions import eventually
from elastrain_cli.local.runner import LocalJob
from elastrain_cli.local.script import job_of
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.manifest import loads
from warm import Warm

SCRIPTS = Path(__file__).parents[1] / "scripts"
PROCESSES = 2
EQUAL = 1e-10


def job(script: Path, *arguments: str) -> ElasticTrainingJob:
    document: dict[str, Any] = job_of(script, arguments).model_dump(mode="json", by_alias=True, exclude_unset=True)
    enter = ["python", "-m", "elastrain_exec.enter", "--processes", str(PROCESSES), str(script), *arguments]
    document["spec"]["template"]["spec"]["containers"][0]["command"] = enter
    return loads(yaml.safe_dump(document | {"metadata": {"name": "exec"}}), source="test")


class Pace:
    """A job whose batches take as long as the test says."""

    def __init__(self, running: LocalJob, nap: Path) -> None:
        self._job, self._nap = running, nap

    def at(self, step: int) -> None:
        self._nap.write_text("0.05")
        self._job.wait(lambda s: s.progress and s.progress.step >= step, timeout=100, what=f"step {step}")

    def scale(self, workers: int) -> None:
        self._nap.write_text("1")
        self._job.scale(workers)
        self.together(workers)

    def together(self, workers: int) -> None:
        self._nap.write_text("1")
        met = f"{workers} workers"
        self._job.wait(lambda s: s.progress and s.progress.world_size == workers, timeout=100, what=met)


def entries(folder: Path) -> Iterator[tuple[str, Any]]:
    """All values in the files that a script has left."""
    for path in sorted(folder.glob("*.pt*")):
        waiting: list[tuple[str, Any]] = [(path.name, torch.load(path))]
        while waiting:
            name, value = waiting.pop()
            if isinstance(value, dict | list | tuple):
                inner = value.items() if isinstance(value, dict) else enumerate(value)
                waiting += [(f"{name}.{key}", item) for key, item in inner]
            else:
                yield name, value


def far(one: Any, other: Any) -> float:
    if isinstance(one, torch.Tensor):
        return float((one - other).abs().max())
    return abs(one - other) if isinstance(one, float) else float(one != other)


@pytest.fixture
def by_torchrun(tmp_path: Path) -> Callable[..., tuple[Path, list[str]]]:
    def run(script: Path, *arguments: str) -> tuple[Path, list[str]]:
        environment, launch = os.environ | {"OMP_NUM_THREADS": "1"}, [sys.executable, "-m", "torch.distributed.run"]
        for attempt in range(3):  # torch's own processes abort now and then as they end ("terminate called")
            (folder := tmp_path / f"torchrun-{attempt}").mkdir()
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                options = [f"--nproc-per-node={PROCESSES}", f"--master-port={free.getsockname()[1]}"]
            command = [*launch, *options, str(script), *arguments]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode == 0:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        return folder, sorted(done.stdout.splitlines())

    return run


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("imagenet", []), *at_night(("gan", []), ("tutorial", ["6"]), ("traps", ["6", "1"]), ("traps", ["6", "2"]))],
)
def test_a_script_ends_as_under_torchrun_if_it_grows_loses_rank_0_and_shrinks(
    script: str, arguments: list[str], by_torchrun: Callable[..., Any], tmp_path: Path, warm_agents: Warm
) -> None:
    path, folder, nap, lines = SCRIPTS / f"{script}.py", tmp_path / "elastic", tmp_path / "nap", list[str]()
    expected, said = by_torchrun(path, *arguments)
    folder.mkdir()
    nap.write_text("1")
    with LocalJob(
        job(path, *arguments), directory=folder, state_dir=tmp_path / "state", replicas=1,
        environment={"NAP": str(nap), "OMP_NUM_THREADS": "1"}, on_line=lambda _, line: lines.append(line),
    ) as running:  # fmt: skip
        pace = Pace(running, nap)
        pace.at(3)
        pace.scale(2)
        pace.scale(3)
        pace.at((step := running.progress().step) + 3 + (step + 3) % 10 // 8 * 3)  # not at an epoch's end
        running.kill_worker("exec-0", "rank")
        pace.at(running.progress().step + 2)
        pace.together(3)
        pace.scale(1)
        nap.write_text("0")
        running.wait(timeout=100)
        assert str(running.result) == "finished", running.message
    assert sorted(line for line in lines if line in said) == said, lines
    mine, theirs = dict(entries(folder)), dict(entries(expected))
    assert mine.keys() == theirs.keys()
    assert {name: far(mine[name], value) for name, value in theirs.items() if far(mine[name], value) > EQUAL} == {}
    for log in expected.glob("*.txt"):
        assert (folder / log.name).read_text() == log.read_text()


TEMPLATE = """\
import itertools, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.arange(32.0).reshape(16, 2))
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
shuffled = DataLoader(data, batch_size=4, shuffle=True)
batches = DataLoader(data, batch_sampler=BatchSampler(DistributedSampler(data), 4, False))
class Mine(DistributedDataParallel):
    pass
{setup}
model = DistributedDataParallel(nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
thing, odd = 0, None
for epoch in range(2):
    for (x,) in {loop}:
        optimizer.zero_grad()
        loss = model(x).mean()
        {before}
        loss.backward()
        optimizer.step()
        {after}
    {end}
"""


@pytest.mark.parametrize(
    ("place", "line", "reason"),
    [
        ("after", "dist.all_reduce(loss.detach())", "train.py:26: torch.distributed.all_reduce() committed"),
        ("before", "dist.broadcast(x, 0)", "train.py:23: torch.distributed.broadcast()"),
        ("after", "dist.barrier()", "train.py:26: torch.distributed.barrier() in a loop body"),
        ("setup", "if rank == 0: dist.barrier()", "train.py:15: barrier() in a branch of some ranks"),
        ("setup", "dist.new_group([0])", "train.py:15: torch.distributed.new_group()"),
        ("setup", "nn.Linear(2, 1)(torch.ones(2)).sum().backward()", "train.py:15: backward() outside"),
        ("setup", "Mine(nn.Linear(2, 1))", "train.py:15: Mine: a class on top of DistributedDataParallel"),
        ("setup", "f = open('log', 'w')", "the file 'log' is open for writing"),
        ("setup", "torch.multiprocessing.spawn(print, nprocs=4)", "mp.spawn(nprocs=4): elastrain exec --processes 4"),
        ("loop", "shuffled", "train.py:20: this loop trains on a DataLoader without torch's DistributedSampler"),
        ("loop", "batches", "a DataLoader without torch's DistributedSampler"),
        ("loop", "(b for b, _ in zip(loader, itertools.count()))", "zip(…) around the training loader"),
        ("before", "open('log', 'a')", "train.py:23: open(…, 'a') before the backward"),
        ("before", "loss.backward(gradient=torch.ones(()))", "backward(gradient=…"),
        ("before", "next(iter(shuffled))", "train.py:23: a batch of another loader in the training loop"),
        ("end", "lr = 0.1 * dist.get_world_size()", "train.py:27: arithmetic with the world size between two loops"),
        ("setup", "DistributedSampler(data, 3, 0)", "DistributedSampler(num_replicas=3): elastrain exec --processes 3"),
        ("setup", "[*map(int, [os.environ['RANK']])]", "train.py:15: a rank of the environment becomes"),
        ("setup", "from torch.utils.tensorboard import SummaryWriter; SummaryWriter()", "SummaryWriter(): another"),
        ("after", "odd = iter(x) if odd is None else odd", "__main__.odd (tuple_iterator) changes in a loop"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_with_its_line(
    place: str, line: str, reason: str, tmp_path: Path, warm_agents: Warm
) -> None:
    parts = {"setup": "pass", "loop": "loader", "before": "pass", "after": "pass", "end": "pass"} | {place: line}
    path, lines = tmp_path / "train.py", list[str]()
    path.write_text(TEMPLATE.format(**parts))
    with LocalJob(
        job(path), directory=tmp_path, state_dir=tmp_path / "state", replicas=1, environment={"OMP_NUM_THREADS": "1"},
        on_line=lambda _, text: lines.append(text),
    ):  # fmt: skip
        eventually(lambda: any("refused:" in text for text in lines), 60, lambda: json.dumps(lines[-30:], indent=1))
    assert reason in "\n".join(line for line in lines if "refused:" in line), json.dumps(lines[-30:], indent=1)
