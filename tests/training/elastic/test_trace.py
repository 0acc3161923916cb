"""The warm-up, and a body that is discarded, leave no trace of what the script does itself to tracked objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from elastrain.elastic.job import Job
from elastrain.elastic.state import capture
from fingerprints import fingerprints
from threaded_world import ThreadWorld

STEPS = 8


class Sam(torch.optim.Optimizer):
    """Sharpness-aware minimisation, as people copy it: an optimizer within an optimizer, with steps of other names."""

    def __init__(self, params: Any, base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old"] = p.data.clone()
            p.add_(p.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["old"]
        self.base_optimizer.step()
        self.zero_grad()

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        self.base_optimizer.param_groups = self.param_groups


class ScheduleFree(torch.optim.SGD):
    """``train()`` and ``eval()`` move the parameters, as those of schedule-free optimizers do."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr, momentum=0.9)
        self.param_groups[0]["train_mode"] = False

    def _move(self, mode: bool) -> None:
        group = self.param_groups[0]
        if group["train_mode"] != mode:
            for p in group["params"]:
                p.data.mul_(2.0 if mode else 0.5)
            group["train_mode"] = mode

    def train(self) -> None:
        self._move(True)

    def eval(self) -> None:
        self._move(False)


class Scale:
    """A loss scale of the script's own, with a branch for an overflow."""

    def __init__(self) -> None:
        self.value, self.good = 1.0, 0

    def update(self, *, overflow: bool) -> None:
        if overflow:
            self.value, self.good = self.value / 2, 0
        else:
            self.good += 1
        if self.good == 3:
            self.value, self.good = self.value * 2, 0

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Queue(nn.Identity):
    """Keeps outputs in a buffer that is saved; an attribute knows the next row."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3, dtype=torch.float64))
        self.next = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows[self.next] = x.detach().sum()
        self.next = (self.next + 1) % 3
        return x * (1 + self.rows.mean())


Backward = Callable[[torch.Tensor], Any]


class Script:
    """A model and what its loop body does, with job.backward or torch's own."""

    def __init__(self, kind: str) -> None:
        generator = torch.Generator().manual_seed(1)
        self.kind, self.data = kind, torch.randn(48, 4, generator=generator, dtype=torch.float64)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        for parameter in self.net.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameters = self.net.parameters()
        made: dict[str, Callable[[], torch.optim.Optimizer]] = {
            "sam": lambda: Sam(parameters, torch.optim.SGD, lr=0.1, momentum=0.9),
            "schedule-free": lambda: ScheduleFree(parameters, lr=0.05),
        }
        self.optimizer = made.get(kind, lambda: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))()
        if kind == "queue":
            self.net.append(Queue())
        self.average = nn.Linear(4, 1, bias=False).double().requires_grad_(False)
        self.average.weight.data.zero_()
        if kind == "average that begins as a copy":
            self.average = deepcopy(self.net).requires_grad_(False)
        self.scale, self.bodies = Scale(), 0
        self.tracked: dict[str, Any] = {"average": self.average, "scale": self.scale}

    def body(self, model: nn.Module, x: torch.Tensor, backward: Backward, step: int) -> None:
        net, optimizer = self.net, self.optimizer
        self.bodies += 1
        if isinstance(optimizer, ScheduleFree):
            optimizer.train()
        if self.kind == "rate":
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
        backward(model(x).square().mean() * self.scale.value)
        if isinstance(optimizer, Sam):
            optimizer.first_step()
            backward(model(x).square().mean())
            optimizer.second_step()
        elif self.kind == "by hand":
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(0.1 * p.grad)
        else:
            optimizer.step()
        optimizer.zero_grad()
        if self.kind == "clamp":
            for p in net.parameters():
                p.data.clamp_(-0.3, 0.3)
        if self.kind == "average":
            self.average.weight.data.lerp_(net[0].weight.data[:1], 0.1)
        if self.kind == "average that begins as a copy":
            with torch.no_grad():
                for e, p in zip(self.average.parameters(), net.parameters(), strict=True):
                    e.lerp_(p, 0.1)
        if self.kind == "scale":
            self.scale.update(overflow=step == 0)
        if isinstance(optimizer, ScheduleFree):
            optimizer.eval()

    def result(self) -> dict[str, str]:
        objects = {"model": self.net, "optimizer": self.optimizer, **self.tracked}
        if isinstance(self.optimizer, Sam):
            objects["inner"] = self.optimizer.base_optimizer
        return {**fingerprints(capture.capture(objects)), "bodies": str(self.bodies)}


KINDS = (
    "sam", "schedule-free", "clamp", "average", "by hand", "rate", "average that begins as a copy", "scale",
    "queue",
)  # fmt: skip


def plain(kind: str) -> dict[str, str]:
    """By torch alone, on the same batches."""
    script = Script(kind)
    for number in range(STEPS):
        (x,) = TensorDataset(script.data)[list(range(number % 6 * 8, number % 6 * 8 + 8))]
        script.body(script.net, x, lambda loss: loss.backward(), number)
    return script.result()


def elastic(job: Job, kind: str, meet: Callable[[Job], None] = lambda _: None) -> dict[str, str]:
    script = Script(kind)
    model = job.wrap(script.net, optimizer=script.optimizer)
    job.track(**script.tracked)
    loader = job.dataloader(TensorDataset(script.data), global_batch_size=8, shuffle=False)
    for (x,) in job.steps(loader, steps=STEPS):
        meet(job)
        script.body(model, x, job.backward, job.step)
    return script.result()


@pytest.fixture
def ended(tmp_path) -> Iterator[Callable[..., ThreadWorld]]:
    worlds: list[ThreadWorld] = []

    def run(size: int, script: Callable[[Job], Any]) -> ThreadWorld:
        world = ThreadWorld(Path(tmp_path) / f"{len(worlds)}", lambda job, _: script(job))
        worlds.append(world)
        ranks = [f"r{number}" for number in range(size)]
        world.train(*ranks)
        world.serve(*ranks)
        return world

    yield run
    for world in worlds:
        world.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_of_one_worker_runs_each_body_once_and_ends_as_plain_torch_whatever_that_does(kind, ended) -> None:
    assert ended(1, lambda job: elastic(job, kind)).result("r0") == plain(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_the_undisturbed_one_if_a_body_is_discarded(kind, ended) -> None:
    """The generation breaks in a body, on each of two ranks at the same moment: none commits the step."""
    undisturbed = ended(2, lambda job: elastic(job, kind))
    broken: list[int] = []

    def breaks(job: Job) -> None:
        if job.step == 4 and job.rank not in broken:
            broken.append(job.rank)
            job._world.communicator.abort("the test breaks it")

    world = ended(2, lambda job: elastic(job, kind, breaks))
    assert sorted(broken) == [0, 1]
    repeated = [{**undisturbed.result(r), "bodies": str(STEPS + 1)} for r in ("r0", "r1")]
    assert [world.result(r) for r in ("r0", "r1")] == repeated


def test_a_rank_takes_a_peers_state_and_names_the_entry_if_a_discarded_body_alone_has_moved_it(ended, capsys) -> None:
    """By a branch that no body has shown, on one of two ranks."""

    def meet(job: Job) -> None:
        if job.step == 4 and job.rank not in broken:
            broken.append(job.rank)
            job._world.communicator.abort("the test breaks it")
            if job.rank == 0:
                with torch.no_grad():
                    job._tracked["model"][0].weight.clamp_(-0.01, 0.01)

    broken = [0, 1]
    undisturbed = ended(2, lambda job: elastic(job, "plain", meet)).result("r0")
    broken.clear()
    world = ended(2, lambda job: elastic(job, "plain", meet))
    repeated = {**undisturbed, "bodies": str(STEPS + 1)}
    assert [world.result(r) for r in ("r0", "r1")] == [repeated, repeated]
    assert "entries=['model.0.weight']" in capsys.readouterr().out
