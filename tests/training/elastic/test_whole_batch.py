"""Each message on the way from a collective call in a loop body names a call, and that call is accepted next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import threaded_world
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.job import Job
from elastrain.hints import hint_for
from threaded_world import thread_world

DATA = TensorDataset(torch.randn(24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
STEPS = 6


class Queue:
    """The newest keys, tracked."""

    def __init__(self) -> None:
        self.keys: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"keys": list(self.keys)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.keys = list(state["keys"])


def train(
    job: Job, body: Callable[..., torch.Tensor], behind: Callable[[], object] = lambda: None, **loader: Any
) -> Any:
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    with torch.no_grad():
        [p.fill_(0.1) for p in net.parameters()]
    model = job.wrap(net, optimizer=(optimizer := torch.optim.SGD(net.parameters(), lr=0.1)))
    data = job.dataloader(DATA, global_batch_size=8, shuffle=False, **loader)
    for (x,) in job.steps(data, steps=STEPS):
        body(x, model(x))
        optimizer.step()
        optimizer.zero_grad()
        behind()
    return [p.detach().clone() for p in net.parameters()]


def run(tmp_path: Path, script: Callable[[Job], Any], *ranks: str) -> list[Any]:
    """What the ranks return."""
    with thread_world(tmp_path / "".join(ranks), lambda job, _rank: script(job)) as world:
        world.train(*ranks)
        world.wait("they end", lambda: not world.alive())
        return [world.result(rank) for rank in ranks]


def text_of(call: Callable[[], object]) -> str:
    """The error of ``call``, with what a script's log adds to it."""
    with pytest.raises(Exception) as caught:
        call()
    return f"{caught.value} {hint_for(caught.value) or ''}"


def test_the_sum_that_each_message_names_is_accepted_in_the_body_where_the_collective_was(tmp_path: Path) -> None:
    def script(job: Job) -> tuple[list[float], list[str]]:
        sums: list[float] = []
        texts: list[str] = []

        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            texts.append(text_of(lambda: dist.all_reduce(x)))
            texts.append(text_of(lambda: job.all_reduce(x.sum())))
            texts.append(text_of(lambda: job.add(x=x)))
            job.add(**{f"x{i}": n for i, n in enumerate(x.sum(0))})
            job.backward(y.square().mean())
            texts.append(text_of(lambda: job.add(late=1)))

        train(job, body, lambda: sums.append(sum(job.sums.values())) if job.committed else None)
        return sums, texts

    expected = [float(batch.sum()) for batch in DATA.tensors[0].split(8)] * 2
    for sums, (first, second, third, fourth, *_) in run(tmp_path, script, "a", "b"):
        assert sums == pytest.approx(expected)
        assert "job.add() a sum in a loop body" in first
        assert "summed over its batch by job.add() before job.backward()" in second
        assert "each entry under a name: job.add(**{" in third
        assert "call it in a loop body, before job.backward()" in fourth


def test_a_sum_over_tokens_is_the_same_at_any_size_if_it_is_counted_as_the_messages_say(tmp_path: Path) -> None:
    texts: list[str] = []

    def script(job: Job) -> Any:
        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            tokens = x > 0  # some samples have one, others three
            losses = y.sum(1, keepdim=True).expand(-1, 3).square()[tokens]
            texts.append(text_of(lambda: job.all_reduce(int(tokens.sum()))))
            texts.append(text_of(lambda: job.backward(losses, count=tokens.sum())))
            texts.append(text_of(lambda: job.backward(losses.sum(), count=1.5)))
            job.backward(losses.sum(), count=int(tokens.sum()))

        return train(job, body)

    alone, first, second = *run(tmp_path, script, "a"), *run(tmp_path, script, "b", "c")
    for one, other, third in zip(alone, first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        assert other.equal(third)
    assert "losses of tokens by job.backward(loss, count=n)" in texts[0]
    assert "loss.sum(), with count=…" in texts[1]
    assert "must be a whole number, of the summands of the loss" in texts[2]


def test_a_loss_that_compares_samples_is_the_same_at_any_size_as_the_message_says(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(threaded_world, "strategy_for", lambda _, session: strategy_for("bitwise", session))
    texts: list[str] = []

    def script(job: Job) -> Any:
        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            texts.append(text_of(lambda: job.all_gather_object(y.detach())))
            keys = F.normalize(y, dim=-1)
            job.backward(F.cross_entropy(keys @ keys.T / 0.1, torch.arange(len(keys))))

        return train(job, body, micro_batches=2)

    alone, first, second = *run(tmp_path, script, "a"), *run(tmp_path, script, "b", "c")
    assert "elastrain.join(numerics='bitwise') with micro_batches=n" in texts[0]
    for one, other, third in zip(alone, first, second, strict=True):
        assert one.equal(other) and one.equal(third)


def test_a_queue_of_keys_is_the_same_on_all_ranks_if_it_is_gathered_as_the_message_says(tmp_path: Path) -> None:
    texts: list[str] = []

    def script(job: Job) -> list[float]:
        job.track(queue=(queue := Queue()))
        mine: list[float] = []

        def gather() -> None:
            queue.keys += [key for keys in job.all_gather_object(mine) for key in keys]

        def body(x: torch.Tensor, y: torch.Tensor) -> None:
            texts.append(text_of(lambda: job.all_gather_object(x)))
            texts.append(text_of(lambda: job.every(1, gather)))
            mine[:] = x[:, 0].tolist()
            job.backward(y.square().mean())

        job.every(1, gather)
        train(job, body)
        return queue.keys

    expected = DATA.tensors[0][:, 0].tolist() * 2
    assert run(tmp_path, script, "a", "b") == [expected, expected]
    assert "in a function that job.every(), before the loop, is given" in texts[0]
    assert "call it before the loop" in texts[1]
