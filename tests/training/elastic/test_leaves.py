"""The undo of a loop body: whatever a program does to the tracked state, discarded at any moment, leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastrain.elastic.state import capture, tensors
from elastrain.elastic.state.leaves import UPDATE, Leaves
from elastrain.elastic.state.trained import TrainedSet
from fingerprints import fingerprints


class Metric:
    """Tracked by a script: numbers, lists and tensors, which it replaces or changes in place."""

    def __init__(self) -> None:
        self.value, self.good, self.losses = 8.0, 0, [0.5]
        self.small, self.large = torch.zeros(2), torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Counting(nn.Linear):
    """A layer with a state beside its tensors."""

    seen = 0

    def get_extra_state(self) -> int:
        return self.seen

    def set_extra_state(self, state: int) -> None:
        self.seen = state


class State:
    """All that a job tracks."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(Counting(2, 2), nn.BatchNorm1d(2))
        self.net.register_buffer("queue", torch.zeros(2, 2))
        self.net.register_buffer("cache", torch.zeros(1, 2), persistent=False)
        self.average = deepcopy(self.net).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.2, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.metric = Metric()
        self.tracked: dict[str, Any] = {
            "model": self.net, "average": self.average, "optimizer": self.optimizer, "scheduler": self.scheduler,
            "metric": self.metric,
        }  # fmt: skip
        self.leaves = Leaves(self.tracked, TrainedSet(self.tracked))

    def prints(self) -> dict[str, str]:
        return fingerprints(capture.capture(self.tracked))

    def forward(self) -> None:
        self.net(torch.ones(4, 2)).sum().backward()

    def update(self, *, counts: bool) -> None:
        """As the gate: it acts in a step that counts."""
        if counts:
            with self.leaves.gated():
                self.optimizer.step()
            self.scheduler.step()
        self.optimizer.zero_grad()


def of_metric(name: str, value: Callable[[Any], Any]) -> Callable[[State], None]:
    return lambda s: setattr(s.metric, name, value(getattr(s.metric, name)))


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(0.5).add_(0.25)


def renew(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data + 1


def group(state: State) -> dict[str, Any]:
    return state.optimizer.param_groups[0]


OPERATIONS: dict[str, Callable[[State], object]] = {
    "clamp": lambda s: s.net[0].weight.clamp_(-0.1, 0.1),
    "clamp by data": lambda s: by_data(s.net[0].weight),
    "other data": lambda s: renew(s.net[0].bias),
    "lerp": lambda s: [e.lerp_(p, 0.1) for e, p in zip(s.average.parameters(), s.net.parameters(), strict=True)],
    "lerp by data": lambda s: [
        e.data.lerp_(p.data, 0.1) for e, p in zip(s.average.parameters(), s.net.parameters(), strict=True)
    ],
    "foreach": lambda s: torch._foreach_mul_([*s.average.parameters()], 0.5),
    "through the state_dict": lambda s: [s.average.state_dict()[f"0.{n}"].add_(1) for n in ("weight", "bias")],
    "a view": lambda s: s.net[0].weight[0].add_(1),
    "queue in place": lambda s: s.net.queue[0].add_(1),
    "queue renewed": lambda s: setattr(s.net, "queue", s.net.queue + 1),
    "rate": lambda s: group(s).update(lr=group(s)["lr"] * 0.5),
    "option": lambda s: group(s).update(own=group(s).get("own", 0) + 1),
    "momentum": lambda s: [of_p["momentum_buffer"].zero_() for of_p in s.optimizer.state.values() if of_p],
    "momentum renewed": lambda s: [
        of_p.update(momentum_buffer=of_p["momentum_buffer"] * 0.5) for of_p in s.optimizer.state.values() if of_p
    ],
    "schedule": lambda s: s.scheduler.base_lrs.__setitem__(0, s.scheduler.base_lrs[0] * 0.5),
    "extra state": lambda s: setattr(s.net[0], "seen", s.net[0].seen + 1),
    "halved": of_metric("value", lambda v: v / 2),
    "good": of_metric("good", lambda v: v + 1),
    "bad": of_metric("good", lambda _: 0),
    "appended": lambda s: s.metric.losses.append(s.metric.value),
    "metric in place": lambda s: s.metric.large.add_(1),
    "metric renewed": of_metric("large", lambda v: v * 0.5 + 1),
    "small in place": lambda s: s.metric.small.add_(1),
}
bodies = st.tuples(*[st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=3)] * 2)
"""What a body does before its update, and behind it."""


@pytest.fixture(autouse=True, scope="module")
def _large() -> Iterator[None]:
    """Tensors of more than two values are large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "SMALL_BYTES", 2 * 4 + 1)
        yield


@torch.no_grad()
def make(state: State, operations: list[str]) -> None:
    for operation in operations:
        OPERATIONS[operation](state)


def run(program: list[tuple[list[str], list[str]]], discards: list[int], *, whole: bool) -> dict[str, str]:
    """The state at the end. Bodies of these numbers are discarded, and begin again; what cannot be put back is taken
    from a peer, and is never the same twice."""
    state, taken = State(), set[str]()
    for number, (before, behind) in enumerate(program):
        for counts in [False] * discards.count(number) + [True]:
            state.leaves.begin(whole=whole or number == 0)
            held, peer = state.prints(), capture.copied(capture.capture(state.tracked))
            make(state, before)
            state.forward()
            state.update(counts=counts)
            make(state, behind)
            if counts:
                state.leaves.end()
            elif lost := state.leaves.restore():
                assert not (whole or number == 0 or taken & {*lost})
                taken |= {*lost}
                capture.restore(state.tracked, peer)
            assert counts or state.prints() == held
    return state.prints()


@given(
    program=st.lists(bodies, min_size=1, max_size=4),
    discards=st.lists(st.integers(0, 3), max_size=4),
    whole=st.booleans(),
)
def test_any_program_ends_to_the_bit_as_if_no_body_was_discarded(program, discards, whole) -> None:
    assert run(program, discards, whole=whole) == run(program, [], whole=whole)


@pytest.mark.parametrize("operation", sorted({*OPERATIONS} - {"momentum", "momentum renewed"}))
def test_nothing_is_lost_if_a_body_before_has_shown_it(operation) -> None:
    """Also if it has left the values equal."""
    for program in ([([operation], []), ([operation], [])], [([], [operation]), ([], [operation])]):
        state = State()
        for number, (before, behind) in enumerate(program):
            state.leaves.begin(whole=number == 0)
            make(state, before)
            state.forward()
            state.update(counts=number == 0)
            make(state, behind)
            if number == 0:
                state.leaves.end()
        assert not state.leaves.restore()


def test_a_script_that_changes_nothing_itself_pays_for_copies_of_small_buffers_only() -> None:
    state = State()
    for _ in range(2):
        state.leaves.begin(whole=False)
        copied = [state.leaves._begun.names[n] for n in state.leaves._begun.copied]
        state.forward()
        state.update(counts=True)
        state.leaves.end()
    norms = [f"1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")]
    copies = [f"{model}.{name}" for model in ("model", "average") for name in ("cache", *norms)]
    assert copied == [*copies, "metric", "metric"]


def test_the_entry_is_named_if_a_branch_that_no_body_has_shown_has_moved_it() -> None:
    state = State()
    for number, operations in enumerate(([], ["lerp"])):
        state.leaves.begin(whole=number == 0)
        state.forward()
        state.update(counts=number == 0)
        make(state, operations)
        if number == 0:
            state.leaves.end()
    assert state.leaves.restore() == ["average.0.weight", "average.0.bias", "average.1.weight", "average.1.bias"]


def test_an_update_cannot_be_put_back_without_a_copy_of_the_whole_state() -> None:
    state = State()
    state.leaves.tensors.shown = True
    for whole, lost in ((False, [UPDATE]), (True, [])):
        state.leaves.begin(whole=whole)
        state.forward()
        state.update(counts=True)
        assert state.leaves.restore() == lost


def test_a_buffer_that_is_not_saved_and_has_another_shape_is_a_cache() -> None:
    """Its module knows its length by an attribute, which is no state: both stay. Any other buffer is put back."""
    state = State()
    for number in range(2):
        state.leaves.begin(whole=number == 0)
        state.net.register_buffer("cache", torch.ones(3 + number, 2), persistent=False)
        state.net.queue = torch.ones(5 + number, 2)
        assert not state.leaves.restore()
        assert (state.net.cache.shape, state.net.queue.tolist()) == ((3 + number, 2), [[0.0, 0.0]] * 2)


def test_a_schedule_for_each_epoch_behind_the_last_loop_is_put_back() -> None:
    """The scripts run again from the state behind the last step if rank 0 is lost before its own has ended."""
    state = State()
    state.leaves.tensors.shown = True
    state.optimizer.step()
    state.leaves.begin(whole=False, body=False)
    held = state.prints()
    state.scheduler.step()
    state.scheduler.step()
    assert state.prints() != held
    assert not state.leaves.restore()
    assert state.prints() == held


def test_the_modes_of_modules_are_put_back() -> None:
    state = State()
    state.leaves.begin(whole=True)
    state.net[1].eval()
    assert not state.leaves.restore()
    assert state.net[1].training


def test_the_object_is_named_if_it_does_not_load_what_it_has_given() -> None:
    class Counts(Metric):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Counts on."""
            self.good = max(self.good, state["good"])

    counts = Counts()
    tracked = {"metric": counts}
    undo = Leaves(tracked, TrainedSet(tracked))
    undo.begin(whole=True)
    counts.good = 3
    assert undo.restore() == ["metric"]
