"""State over several steps, with all ranks as threads of the test: real sockets, real optimizers."""

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.state import capture, digest, portions, transfer
from elastrain.elastic.state.portions import Transfer
from elastrain.elastic.state.receiver import NotKept, StateReceiver
from elastrain.elastic.state.sender import StateSender

SIDE = 40


@pytest.fixture
def small_pieces(monkeypatch) -> None:
    monkeypatch.setattr(transfer, "PIECE_BYTES", 2000)
    monkeypatch.setattr(transfer, "SMALL_BYTES", 1000)


class Trainee:
    """A model with some large tensors, an optimizer with a state for each, and a schedule."""

    def __init__(self, seed: int, optimizer: Callable = torch.optim.AdamW) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.BatchNorm1d(SIDE), *(nn.Linear(SIDE, SIDE) for _ in "abc"))
        self.model[0].requires_grad_(False)
        self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad], lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.in_place: list[bool] = []
        """Of each large tensor of the model, whether it arrives where it is."""
        self.tracked = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

    def tree(self) -> dict:
        return capture.capture(self.tracked)

    def step(self, number: int) -> None:
        """The same update on all ranks, from the same gradients."""
        generator = torch.Generator().manual_seed(number)
        for p in self.model.parameters():
            p.grad = torch.randn(p.shape, generator=generator) if p.requires_grad else None
        self.optimizer.step()
        self.schedule.step()
        assert all(p.grad is not None for p in self.model.parameters() if p.requires_grad), "a gradient stays hidden"


def sends(c: Communicator, t: Trainee, sources: list[int], receivers: list[int], steps: int) -> None:
    parts = portions.cut(t.tracked)
    assert parts is not None
    sender = StateSender(t.tree(), c, Transfer(sources, receivers), parts)
    for number in range(steps):
        sender.resume(t.tree, step_seconds=0.0)
        c.all_gather_ints([0], Kind.BARRIER)  # the collective of a step
        sender.pause()
        t.step(number)
        t.model[1].running_mean.fill_(number)  # as a forward does
        c.all_gather_ints([0], Kind.BARRIER)
    sender.finish(t.tree)


def receives(c: Communicator, t: Trainee, sources: list[int], receivers: list[int], steps: int) -> int | None:
    """Returns the number of steps after which the state was complete; None if it was not complete at the end."""
    mine = t.tree()
    receiver: StateReceiver | None = StateReceiver(mine, c, Transfer(sources, receivers))
    here, there = (transfer.tensors_of(tree["model"]) for tree in (mine, receiver.opening))
    t.in_place = [a.data_ptr() == b.data_ptr() for a, b in zip(here, there, strict=True) if a.nbytes > 1000]
    capture.restore(t.tracked, receiver.opening)
    receiver.begin(portions.cut(t.tracked), t.tracked, t.tree)
    complete = None
    for number in range(steps):
        c.all_gather_ints([0], Kind.BARRIER)
        if receiver is not None and (closing := receiver.receive_round()) is not None:
            capture.restore(t.tracked, closing)
            receiver, complete = None, number
        t.step(number)
        c.all_gather_ints([0], Kind.BARRIER)
        if receiver is None:
            t.model[1].running_mean.fill_(number)
    while receiver is not None:
        if (closing := receiver.receive_round()) is not None:
            capture.restore(t.tracked, closing)
            receiver = None
    return complete


@pytest.mark.parametrize("given", ["an optimizer", "none"])
def test_a_frozen_parameter_is_one_that_no_optimizer_updates_whoever_holds_it(given, small_pieces):
    t = Trainee(seed=0)
    if given == "an optimizer":
        t.optimizer.add_param_group({"params": [t.model[0].weight]})
    frozen = [part for part in portions.cut(t.tracked) if part.parameter is None]
    assert sum(part.nbytes for part in frozen) == t.model[0].weight.nbytes
    t.model[0].weight.requires_grad_()
    if given == "an optimizer":
        assert not any(part.parameter is None for part in portions.cut(t.tracked))


@pytest.mark.parametrize(("sources", "receivers"), [([0], [1]), ([0, 1], [2]), ([0, 2], [1, 3])])
@pytest.mark.parametrize("steps", [0, 1, 3, 40])
def test_joiners_end_with_the_state_of_the_others_for_any_end_of_training(
    sources, receivers, steps, small_pieces, connect, each
) -> None:
    trainees = [Trainee(seed=r if r in receivers else 0) for r in range(4)]
    for number in (100, 101):
        for r in sources:
            trainees[r].step(number)

    def run(c: Communicator) -> int | None:
        if c.rank in sources:
            sends(c, trainees[c.rank], sources, receivers, steps)
        elif c.rank in receivers:
            return receives(c, trainees[c.rank], sources, receivers, steps)
        else:
            for _ in range(2 * steps):
                c.all_gather_ints([0], Kind.BARRIER)
        return None

    complete = each(run, connect(4))
    for r in receivers:
        assert complete[r] is not None or steps < 40
        assert complete[r] is None or complete[r] > 0, "it did not take several steps"
        assert_same(trainees[r].tree(), trainees[sources[0]].tree())
        assert trainees[r].in_place == [True] * 4, "the model was copied into new memory"


def assert_same(a: object, b: object) -> None:
    for x, y in zip(torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b), strict=True):
        assert torch.equal(x, y) if isinstance(y, torch.Tensor) else x == y


def test_portions_of_a_device_go_through_one_buffer_per_connection(small_pieces, monkeypatch, pair, each) -> None:
    buffers: list[int] = []

    def page_locked(size: int, _device: torch.device) -> torch.Tensor:
        buffers.append(size)
        return torch.empty(size, dtype=torch.uint8)

    monkeypatch.setattr(digest, "on_host", lambda _tensor: False)
    monkeypatch.setattr(transfer, "page_locked", page_locked)
    trainees = [Trainee(0), Trainee(1)]
    trainees[0].step(100)
    each(lambda c: (sends, receives)[c.rank](c, trainees[c.rank], [0], [1], 5), pair)
    assert_same(trainees[1].tree(), trainees[0].tree())
    assert buffers == [2000, 2000], "one of the source, one of the joiner"


def test_joiner_reports_that_other_code_than_the_optimizers_changes_the_model(small_pieces, pair, each) -> None:
    source, joiner = Trainee(0), Trainee(1)
    source.step(100)

    def run(c: Communicator) -> object:
        if c.rank == 0:
            with torch.no_grad():  # like an average of the weights, which differs on the other side
                source.step = lambda number: source.model[0].weight.add_(source.model[3].weight)  # type: ignore[method-assign]
                return sends(c, source, [0], [1], 20)
        joiner.step = lambda number: None  # type: ignore[method-assign]
        with pytest.raises(NotKept):
            receives(c, joiner, [0], [1], 20)
        c.abort("it has to be sent whole")
        return None

    with pytest.raises(GenerationBroken):
        each(run, pair)


@pytest.mark.parametrize("silent", [0, 1])
def test_no_rank_waits_longer_than_the_generation_lives(silent, small_pieces, pair, each) -> None:
    trainees = [Trainee(0), Trainee(1)]
    trainees[0].step(100)
    gone = threading.Event()

    def run(c: Communicator) -> None:
        if c.rank == silent:
            gone.wait(10)
            return
        threading.Timer(0.1, c.abort, ["the peer is silent"]).start()
        try:
            if c.rank == 0:
                parts = portions.cut(trainees[0].tracked)
                assert parts is not None
                sender = StateSender(trainees[0].tree(), c, Transfer([0], [1]), parts)
                sender.resume(trainees[0].tree, step_seconds=0.0)
                sender.pause()
                sender.end()
                raise GenerationBroken(1, c.broken or "")
            StateReceiver(trainees[1].tree(), c, Transfer([0], [1]))
        except GenerationBroken as e:
            assert e.cause in ("the peer is silent", "")
        finally:
            gone.set()

    each(run, pair)


@pytest.mark.parametrize("several", [False, True])
def test_both_ends_give_a_transfer_up_if_it_is_cut_in_the_middle_of_a_portion(
    several, small_pieces, pair, each, monkeypatch
) -> None:
    trainees = [Trainee(0), Trainee(1)]
    trainees[0].step(100)

    def send_half(tensors: tuple[torch.Tensor, ...], connection: socket.socket, _stage: object) -> None:
        connection.sendall(tensors[0].numpy().tobytes()[:500])
        connection.shutdown(socket.SHUT_RDWR)
        connection.sendall(b"the rest")

    monkeypatch.setattr(transfer, "send_tensors", send_half)

    def run(c: Communicator) -> None:
        if several:
            (sends, receives)[c.rank](c, trainees[c.rank], [0], [1], 5)
        elif c.rank == 0:
            StateSender(trainees[0].tree(), c, Transfer([0], [1])).pause()
        else:
            StateReceiver(None, c, Transfer([0], [1])).complete()

    def gives_up(c: Communicator) -> str | None:
        with contextlib.suppress(GenerationBroken):
            run(c)
        return c.broken

    assert all(each(gives_up, pair))
    assert not any(c.failure for c in pair), "a lost peer is no failure of this rank"


def test_a_state_is_cut_by_parameters_if_torchs_optimizers_step_them(small_pieces) -> None:
    t = Trainee(0)
    t.step(0)
    parts = portions.cut(t.tracked)
    assert parts is not None
    frozen = [part for part in parts if part.parameter is None]
    assert [len(p.tensors) for p in parts if p.parameter is not None] == [4, 4, 4], "with what AdamW keeps"
    assert len(frozen) > 1 and all(part.nbytes <= transfer.PIECE_BYTES for part in frozen), "the frozen weight"
    assert sum(part.nbytes for part in frozen) == t.model[0].weight.nbytes
    assert portions.may_take_several_rounds(t.tracked)


class Own(torch.optim.SGD):
    """An optimizer whose step may read any parameter."""


@pytest.mark.parametrize("optimizer", [torch.optim.LBFGS, Own])
def test_a_state_travels_whole_if_an_optimizer_may_look_at_several_parameters(optimizer) -> None:
    assert not portions.may_take_several_rounds(Trainee(0, optimizer).tracked)


def test_a_state_travels_whole_if_a_large_tensor_belongs_to_no_parameter(small_pieces) -> None:
    t = Trainee(0)
    t.step(0)
    average = torch.optim.swa_utils.AveragedModel(t.model)
    assert portions.cut({**t.tracked, "average": average}) is None
    again = torch.optim.SGD(t.model[4].parameters(), lr=0.1)
    assert portions.cut({**t.tracked, "again": again}) is None, "two optimizers step the same parameter"
