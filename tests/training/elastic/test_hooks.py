"""Hooks that a backward calls see gradients before they are summed over the ranks: they are refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from conditions import eventually
from elastrain.elastic.job import Job
from threaded_world import RankThread, thread_world

HOOKS: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "of a tensor": (lambda net: net[0].weight.register_hook(lambda g: g.clamp(-1, 1)), "parameter 0.weight"),
    "post-accumulate": (
        lambda net: net[2].bias.register_post_accumulate_grad_hook(lambda _: None),
        "parameter 2.bias",
    ),
    "of several tensors": (
        lambda net: torch.autograd.graph.register_multi_grad_hook([net[2].weight], lambda _: None),
        "parameter 2.weight",
    ),
    "of a module": (lambda net: net[1].register_full_backward_hook(lambda *_: None), "layer 1"),
    "before a module": (lambda net: net.register_full_backward_pre_hook(lambda *_: None), "layer "),
}


def train(job: Job, add: Callable[[str], None], net: nn.Module) -> None:
    add("before job.wrap()")
    model = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=0.1)))
    add("behind job.wrap()")
    loader = job.dataloader(TensorDataset(torch.ones(8, 2)), global_batch_size=2)
    for epoch in job.epochs(loader, 2):
        if epoch:
            add("between loops")
        for (x,) in job.steps(loader, epochs=epoch + 1):
            add("in a loop body")
            job.backward(model(x).mean())
            optimizer.step()


@pytest.mark.parametrize("when", ["before job.wrap()", "behind job.wrap()", "in a loop body", "between loops"])
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_that_sees_a_part_of_the_gradients_is_refused_by_name(tmp_path: Path, kind, when) -> None:
    hook, name = HOOKS[kind]

    def script(job: Job, rank: RankThread) -> None:
        net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
        train(job, lambda at: hook(net) if at == when else None, net)

    with thread_world(tmp_path, script) as world:
        with contextlib.suppress(AssertionError):  # it fails before it is ready
            world.train("a")
        eventually(lambda: not world.alive(), 20, "it fails")
        error = world.error("a")
    assert f"{name} of 'model' has a hook that runs within the backward" in str(error)
    assert "behind job.backward()" in str(error)
