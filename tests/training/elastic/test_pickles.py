"""Tracked and wrapped objects are what they look like: each is saved and copied as without a job, in every phase."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import TensorDataset

from elastrain.elastic.job import Job
from threaded_world import RankThread, thread_world


class Meter:
    """Of a script."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def saved(obj: Any) -> Any:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda obj: pickle.loads(pickle.dumps(obj)),
    "torch.save": saved,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def objects() -> dict[str, Any]:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    parts: list[Any] = [StepLR(optimizer, 2), StepLR(optimizer, 3)]
    return {
        "model": net,
        "optimizer": optimizer,
        "scheduler": SequentialLR(optimizer, parts, [4]),
        "plateau": ReduceLROnPlateau(optimizer),
        "scaler": torch.amp.GradScaler("cpu", init_scale=2.0),
        "average": AveragedModel(net),
        "meter": Meter(),
    }


def content(obj: Any) -> dict[str, Any]:
    state = dict(obj.state_dict())
    state.pop("_schedulers", None)  # holds objects
    return state


def check(obj: Any, known: type) -> None:
    for name, way in WAYS.items():
        twin = way(obj)
        assert type(twin) is known, name
        assert str(content(twin)) == str(content(obj)), name


def train(job: Job, _rank: RankThread) -> int:
    torch.manual_seed(0)
    made = objects()
    kinds = {name: type(obj) for name, obj in made.items()}
    net, optimizer, meter = made.pop("model"), made["optimizer"], made["meter"]
    model = job.wrap(net)
    job.track(**made)
    loader = job.dataloader(TensorDataset(torch.randn(16, 2)), global_batch_size=4)

    def check_all() -> None:
        for name, obj in made.items():
            check(obj, kinds[name])
        check(net, nn.Sequential)
        for way in WAYS.values():
            twin = way(model)
            assert list(twin.state_dict()) == list(model.state_dict())
            assert torch.equal(twin.eval()(torch.ones(3, 2)), model.eval()(torch.ones(3, 2)))
            twin.train()(torch.ones(3, 2)).sum().backward()
            model.train()
        AveragedModel(model).update_parameters(model)
        meter.step()

    check_all()
    for (x,) in job.steps(loader, steps=4):
        job.backward(model(x).square().mean())
        optimizer.step()
        made["scheduler"].step()
        optimizer.zero_grad()
        check_all()
    check_all()
    return job.step


def test_every_kind_of_object_is_saved_and_copied_as_without_a_job_in_every_phase(tmp_path: Path) -> None:
    with thread_world(tmp_path, train) as world:
        world.train("a")
        world.serve("a")
        assert world.error("a") is None, world.ranks["a"].log.read_text()
        assert world.result("a") == 4
