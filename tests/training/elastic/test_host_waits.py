"""How often the host waits for the device in a plain step: once, for the sums by whose end a rank may vote.

There is no device here. A read of a tensor's number, at which a host would wait, is counted; streams and events are
stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from elastrain.data.order import Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.comm import tcp_allreduce, transport
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.tcp_allreduce import StagedAllreduce
from elastrain.elastic.comm.transport import OnHost
from elastrain.elastic.commit.step import Step
from elastrain.elastic.group.device_time import DeviceTime
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.job import Job
from elastrain.elastic.reduction import queued, sum_of_squares
from elastrain_shares.follow import WHOLE, WINDOW
from elastrain_shares.measured import MeasuredShares
from played_card import OnCard
from threaded_world import RankThread, ThreadWorld

STEPS = 3


class Reads(TorchDispatchMode):
    """Of numbers of tensors, one by one, by this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, call: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += call is torch.ops.aten._local_scalar_dense.default
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize("micro", [None, 2])
def test_a_plain_step_reads_no_number_of_the_model_beside_the_wait_for_its_sums(tmp_path: Path, micro) -> None:
    def train(job: Job, rank: RankThread) -> list[int]:
        data = TensorDataset(torch.arange(48.0)[:, None])
        net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
        model = job.wrap(net, optimizer=optimizer)
        reads = list[int]()
        loader = job.dataloader(data, global_batch_size=8, micro_batch_size=micro)
        for (x,) in job.steps(loader, steps=STEPS):
            rank.body()
            with Reads() as seen:
                job.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            reads += [seen.count] if job.committed else []
        return reads

    with closing(ThreadWorld(tmp_path, train)) as world:
        world.train("a", "b")
        world.serve("a", "b")
        for name in "ab":
            assert world.error(name) is None, world.ranks[name].log.read_text()
            assert world.result(name) == [0] * STEPS


# -- the loss ----------------------------------------------------------------------------------------------------------
def test_the_loss_leaves_the_device_without_a_wait_and_is_read_behind_its_event(card) -> None:
    loss = OnHost(torch.tensor(0.1 + 1e-9, dtype=torch.float64).as_subclass(OnCard))
    assert card.asked == ["event on the step's stream"]
    assert loss.number() == 0.1 + 1e-9
    assert card.asked[1:] == ["wait"]


def test_a_loss_in_the_hosts_memory_asks_no_device(card) -> None:
    assert OnHost(torch.tensor(2.5, requires_grad=True)).number() == 2.5
    assert card.asked == []


def test_the_loss_of_a_reduced_type_is_weighed_in_full_precision() -> None:
    part, loss = Slice((0,), (0,), weight=1 / 7, epoch=0), torch.tensor(2.71875, dtype=torch.bfloat16)
    step = Step(0, Place(0, 0, 1), Share(0, 1), (part,))
    step.add_loss(part, loss)
    step.add_loss(part, loss)
    assert step.losses is not None
    assert OnHost(step.losses).number() == pytest.approx(2 * 2.71875 / 7, rel=1e-15)


# -- the time that a rank computes on a device, for shares by speed --------------------------------------------------
class Card:
    """One stream of a played device: work follows what was queued before, and begins when the host has queued it."""

    def __init__(self) -> None:
        self.host = self.busy_until = 0.0

    def queue(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.host) + seconds

    def wait(self) -> None:
        self.host = max(self.host, self.busy_until)


@pytest.fixture
def played_card(monkeypatch) -> Card:
    """Times of events are those at which the device reaches them. No call of the host waits for one."""
    card = Card()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: Card) -> None:
            self.at = max(stream.busy_until, stream.host)

        def query(self) -> bool:
            return self.at <= card.host

        def elapsed_time(self, end: Event) -> float:
            assert self.query() and end.query(), "CUDA raises"
            return 1e3 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: card)
    return card


@pytest.fixture
def beat(tmp_path, played_card) -> Heartbeat:
    """Of a rank with a model on the card."""
    heartbeat = Heartbeat(str(tmp_path / "page"), clock=lambda: played_card.host)
    heartbeat.device = DeviceTime(torch.device("cuda"))
    return heartbeat


@pytest.mark.parametrize(("loads", "computes"), [(0.01, 0.5), (0.3, 0.5), (0.5, 0.01)])
def test_a_ranks_time_on_a_device_is_that_of_its_batch_and_computation_without_the_wait_for_others(
    beat, played_card, loads, computes
) -> None:
    for optimizer in (0.0, 0.2, 0.2):
        played_card.queue(optimizer)  # of the step before
        beat.body(1, 2)
        played_card.host += loads  # the host loads a batch, and queues
        played_card.queue(computes)
        beat._gradients_done()
        played_card.queue(4.0)  # sums, until the slowest rank has its part
        assert beat.spent == 0.0, "it is not known before the host has waited"
        played_card.wait()
        assert beat.spent == pytest.approx(max(loads - optimizer, 0.0) + computes)
        beat.resumed(1.0)
        beat.runtime()
        beat.committed()


def test_a_ranks_time_on_a_device_is_that_of_all_its_micro_batches_and_backwards(beat, played_card) -> None:
    beat.body(1, 2)
    for waits in (0.0, 0.0, 3.0, 0.0):  # the third one sums, and another backward of the body follows
        played_card.queue(0.25)
        beat._gradients_done()
        played_card.queue(waits)
        played_card.host += 0.001
        beat.resumed(None)
    beat.runtime()
    played_card.wait()
    assert beat.spent == pytest.approx(1.0, abs=0.02)


def test_shares_are_decided_by_the_times_of_devices(beat, played_card) -> None:
    shares = MeasuredShares()
    shares.enter([0, 0])
    for _ in range(WINDOW):
        beat.body(1, 2)
        played_card.queue(0.6)
        beat._gradients_done()
        played_card.wait()
        mine = shares.votes(Share(0, 2), Place(1, 0, 2), seconds=beat.spent, samples=30)
        assert mine[:2] == pytest.approx([0.02, 0.0])
        shares.commit([mine[0], 0.01, mine[2], 2.0], learning=False)
        beat.resumed(1.0)
    assert [round(w / WHOLE, 2) for w in shares.now.weights] == [0.33, 0.67]


def test_a_ranks_time_on_a_device_lacks_the_sums_over_groups_in_the_middle_of_its_backward(beat, played_card) -> None:
    """They block the host, and the device runs dry."""
    beat.body(1, 2)
    for computes in (0.5, 0.25):
        played_card.queue(computes)
        with beat.in_sum():
            played_card.wait()
            played_card.host += 3.0
    played_card.queue(0.125)
    beat._gradients_done()
    with beat.in_sum():  # of the outermost layer: FSDP's own end of the backward
        played_card.wait()
        played_card.host += 1.0
    assert beat.spent == pytest.approx(0.875)


# -- sums through the host ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fails", [False, True])
def test_a_sum_through_the_host_ends_also_if_the_copy_back_fails(card, monkeypatch, fails) -> None:
    """torch only logs what a callback raises: whoever waits for its future would wait for ever."""
    error = RuntimeError("CUDA error: unspecified launch failure")

    class OnHostAlone:
        def sum_together(self, staged: torch.Tensor, *, label: Label, before: Callable[[], None]) -> list[Any]:
            before()
            return [transport.completed(staged.mul_(2))]

    @contextmanager
    def stream(_stream: str) -> Iterator[None]:
        if fails:
            raise error
        yield

    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "a stream of its own")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(tcp_allreduce, "future_on", lambda _: torch.futures.Future())
    failed, buffer = list[Exception](), torch.ones(3).as_subclass(OnCard)
    summed = StagedAllreduce(OnHostAlone(), failed.append).sum(buffer, Label())  # type: ignore[arg-type]
    assert summed.done()
    assert failed == [error] * fails
    if fails:
        with pytest.raises(RuntimeError, match="launch failure"):
            summed.wait()
    else:
        summed.wait()
        card.run()
        assert buffer.tolist() == [2.0] * 3


# -- the norm that a sharded model's votes carry -----------------------------------------------------------------------
def test_products_on_a_device_are_queued_and_none_is_read() -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(70_000), torch.randn(70_000)) for _ in range(4)]
    with Reads() as seen:
        products = [part for one, other in pairs for part in queued(one, other)]
        squares = [part for one, _ in pairs for part in queued(one, one)]
    assert seen.count == 0
    expected = sum(torch.dot(one.double(), other.double()).item() for one, other in pairs)
    assert torch.stack(products).sum().item() == pytest.approx(expected, rel=1e-12)
    assert torch.stack(squares).sum().item() == pytest.approx(sum_of_squares(one for one, _ in pairs), rel=1e-12)
