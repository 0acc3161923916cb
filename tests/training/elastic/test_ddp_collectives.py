"""Options of DDP in a generation that breaks: unused parameters add a sum of their own."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from budgets import at_night
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.strategies.replicated import ReplicatedModule
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).parent / "train_ddp_options.py"
OPTIONS = [{"find_unused_parameters": True}, {"static_graph": True}]


@pytest.mark.parametrize(
    ("options", "steps"),
    [(OPTIONS[0], 0), *at_night((OPTIONS[1], 3), (OPTIONS[0], 3), (OPTIONS[1], 0))],
)
def test_survivors_go_on_if_a_rank_is_killed_within_a_backward(world, tmp_path_factory, options, steps) -> None:
    run = {"epochs": 3, "script": SCRIPT, "DDP_OPTIONS": json.dumps(options)}
    fixed = type(world)(tmp_path_factory.mktemp("fixed"), world.warm)
    fixed.start("f0", **run)
    fixed.ready("f0")
    fixed.propose("f0")
    expected = fixed.finished("f0")["f0"]

    world.start("a", "b", "c", **run)
    world.ready("a", "b", "c")
    if not steps:
        (world.folder / "die-2").touch()
    lost = world.propose("a", "b", "c")
    if steps:
        world.adopted("a", "b", "c")
        world.progressed("a", steps)
        (world.folder / "die-2").touch()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken", generation=lost) for r in "ab"))
    assert world.ranks["c"].process.wait(10) == -signal.SIGKILL
    world.together("a", "b")
    ends = world.finished("a", "b")
    for end in ends.values():
        assert end["commits"] == list(range(1, expected["step"] + 1))
        for name, value in expected["model"].items():
            assert value.allclose(end["model"][name], rtol=0, atol=1e-9), name
    assert verify(world.audit).ok


class Branches(nn.Module):
    """Two layers, of which a step uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, both: bool) -> torch.Tensor:
        x = self.trunk(x)
        return self.left(x) + self.right(x) if both else self.left(x)


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
@pytest.mark.parametrize("end", [Communicator.abort, Communicator.call_off])
@pytest.mark.parametrize("number", range(7))
def test_nothing_raises_if_a_collective_fails_whichever_it_is(pair, each, options, end, number) -> None:
    """Rank 1 ends before its sum ``number``, as many steps as the sums reach: bucket, used parameters, bucket …"""

    def rank(c: Communicator) -> str | None:
        model = ReplicatedModule(Branches(), **options)
        sums = 0

        def counted(begin: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*buffers: Any, **options: Any) -> Any:
                nonlocal sums
                if c.rank == 1 and sums == number:
                    end(c, "lost")
                sums += 1
                return begin(*buffers, **options)

            return counting

        c.sum_together, c.sum_bucket = counted(c.sum_together), counted(c.sum_bucket)
        model.attach(c, keep=False)
        while c.over is None:
            model.zero_grad()
            loss = model(torch.ones(2, 3), both="static_graph" in options).sum()
            model.begin_backward()
            loss.backward()
            model.end_backward(c)
        return c.over

    assert all(each(rank, pair))
