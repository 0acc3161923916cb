"""The undo of a loop body: whatever a program does to the tracked state, discarded at any moment, leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from elastrain.elastic.state import capture, host_copy, parts
from elastrain.elastic.undo import tensors
from elastrain.elastic.undo.leaves import UPDATE, Leaves
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


class Table(nn.Identity):
    """A layer with a buffer, whose length and next row its attributes know."""

    def __init__(self, *, saved: bool) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(3), persistent=saved)
        self.length, self.next, self.lengths = 3, 0, [3]

    def add(self) -> None:
        self.rows[self.next] += 1
        self.next = (self.next + 1) % self.length

    def grow(self) -> None:
        self.length += 1
        self.lengths.append(self.length)
        self.register_buffer("rows", torch.ones(self.length), persistent="rows" in self.state_dict())


class State:
    """All that a job tracks."""

    def __init__(self, *, sharded: bool = False) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(Counting(2, 2), nn.BatchNorm1d(2), Table(saved=True), Table(saved=False))
        self.net.register_buffer("queue", torch.zeros(2, 2))
        self.net.register_buffer("cache", torch.zeros(1, 2), persistent=False)
        self.average = deepcopy(self.net).requires_grad_(False)
        if sharded:
            mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("shards",))
            fully_shard(self.net, mesh=mesh), fully_shard(self.average, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.net[0].parameters(), lr=0.2, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.metric = Metric()
        self.tracked: dict[str, Any] = {
            "model": self.net, "average": self.average, "optimizer": self.optimizer, "scheduler": self.scheduler,
            "metric": self.metric,
        }  # fmt: skip
        self.leaves = Leaves(self.tracked)

    def prints(self) -> dict[str, str]:
        """Of all, but the cache."""
        table, cache = self.net[2:]
        assert [len(table.rows), len(cache.rows)] == [table.length, cache.length]
        saved = {
            path: each for path, each in fingerprints(capture.capture(self.tracked)).items() if "3.rows" not in path
        }
        trains = [p.requires_grad for p in self.net.parameters()], [m.training for m in self.net.modules()]
        return saved | {"table": f"{table.next} {table.lengths}", "trains": f"{trains}"}

    def forward(self) -> None:
        self.net(torch.ones(4, 2)).sum().backward()

    def update(self, *, counts: bool) -> None:
        """As the gate: it acts in a step that counts."""
        if counts:
            with self.leaves.gated():
                self.optimizer.step()
            self.scheduler.step()
        self.net.zero_grad()


def of_metric(name: str, value: Callable[[Any], Any]) -> Callable[[State], None]:
    return lambda s: setattr(s.metric, name, value(getattr(s.metric, name)))


def by_data(tensor: torch.Tensor) -> None:
    tensor.data.mul_(0.5).add_(0.25)


def renew(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data + 1


def group(state: State) -> dict[str, Any]:
    return state.optimizer.param_groups[0]


def add_group(state: State) -> None:
    if len(state.optimizer.param_groups) == 1:
        state.optimizer.add_param_group({"params": [*state.net[1].parameters()]})


OPERATIONS: dict[str, Callable[[State], object]] = {
    "row": lambda s: s.net[2].add(),
    "longer": lambda s: s.net[2].grow(),
    "longer cache": lambda s: s.net[3].grow(),
    "mode": lambda s: s.net[1].train(not s.net[1].training),
    "frozen": lambda s: s.net[0].bias.requires_grad_(not s.net[0].bias.requires_grad),
    "group": add_group,
    "this rank's part": lambda s: parts.local_of(s.net[0].weight).mul_(0.5),
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
rounds = st.tuples(*[st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=3)] * 2)
"""What a body does before an update, and behind it."""
steps = st.lists(rounds, min_size=1, max_size=3)
FORMS = ("one", "micro-batches", "several backwards")
"""Of a step: its first round only; a body for each round, of which the last one updates; or all in one body."""


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


Atoms = Iterator[Callable[[bool], object]]
"""What a step does, one after the other; each is given whether the step counts."""


def atoms(state: State, step: list[tuple[list[str], list[str]]], form: str) -> Atoms:
    for number, (before, behind) in enumerate(step := step[: 1 if form == "one" else None], 1):
        updates = number == len(step) or form == "several backwards"
        yield from (lambda _, each=each: make(state, [each]) for each in before)
        yield lambda _: state.forward()
        yield lambda counts, updates=updates: state.update(counts=counts and updates)
        yield from (lambda _, each=each: make(state, [each]) for each in behind)


def run(program: list[list[tuple[list[str], list[str]]]], discards: list[tuple[int, int, bool]], form: str, **of: bool):
    """The state at the end. A step that is discarded, by its number, at this atom, runs on or is left, and begins
    again. What cannot be put back is taken from a peer, and but for updates never the same twice."""
    state, taken = State(**of), set[str]()
    for number, step in enumerate(program):
        whole = form == "several backwards" or number == 0
        for _, moment, left in [*(discard for discard in discards if discard[0] == number), (number, 999, False)]:
            state.leaves.begin(whole=whole)
            held, peer = state.prints(), capture.copied(capture.capture(state.tracked))
            for at, atom in enumerate(atoms(state, step, form)):
                if left and at >= moment:
                    break
                atom(at < moment)
            if moment == 999:
                state.leaves.end()
                continue
            state.net.zero_grad()  # gradients are the part of KeptGradients
            if lost := state.leaves.restore():
                assert not (whole or taken & {*lost} - {UPDATE})
                taken |= {*lost}
                capture.restore(state.tracked, peer)
                state.net[3].length = len(state.net[3].rows)  # a cache of a peer
            assert state.prints() == held
    return state.prints()


@pytest.fixture(scope="module")
def _world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.timeout(1200)  # 1,000 programs at night
@pytest.mark.usefixtures("_world_of_one")
@given(
    program=st.lists(steps, min_size=1, max_size=4),
    discards=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=4),
    form=st.sampled_from(FORMS),
    sharded=st.booleans(),
    on_host=st.booleans(),
)
@example([[([], [])], [(["group"], [])]], [(1, 9, False)], "one", True, False)  # the state of a group that is put back
@example([[([], [])], [([], ["foreach"])]], [(1, 0, False)], "one", True, False)  # a list of sharded tensors
def test_any_program_ends_to_the_bit_as_if_no_body_was_discarded(program, discards, form, sharded, on_host) -> None:
    """``on_host``: the copies are in the memory of the host, as those of a device that is crowded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_copy, "_memory_of", lambda _: 1 if on_host else None)
        assert run(program, discards, form, sharded=sharded) == run(program, [], form, sharded=sharded)


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


@pytest.mark.parametrize("kind", ["data", "flat", "array"])
def test_what_is_written_by_way_of_shared_memory_is_put_back(kind) -> None:
    """It raises no version. A script has made the other tensor, or the array, before its loop or between two loops."""
    state = State()
    for loop in range(2):
        state.leaves.begin(whole=False)
        state.leaves.end()
        weight = state.net[loop].weight
        if kind == "flat":
            other = weight.data = weight.detach().clone()
        else:
            other = weight.data if kind == "data" else weight.data.numpy()
        for _ in range(2):
            state.leaves.begin(whole=False)
            held = state.prints()
            other *= 2
            assert state.prints() != held
            assert not state.leaves.restore()
            assert state.prints() == held


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


def test_an_update_cannot_be_put_back_without_a_copy_of_the_whole_state() -> None:
    state = State()
    state.leaves.tensors.shown = True
    for whole, lost in ((False, [UPDATE]), (True, [])):
        state.leaves.begin(whole=whole)
        state.forward()
        state.update(counts=True)
        assert state.leaves.restore() == lost


def test_a_table_and_what_its_module_knows_of_it_go_back_together_or_not_at_all() -> None:
    """Beside a buffer that is saved they go back, in every body. One that is not saved, and has grown, is a cache."""
    state = State()
    table, cache = state.net[2:]
    for number in range(3):
        state.leaves.begin(whole=number == 0)
        for each in (table, cache):
            each.add(), each.grow(), each.add()
            each.new = True
        assert not state.leaves.restore()
        assert (table.rows.tolist(), table.length, table.next, table.lengths) == ([0.0] * 3, 3, 0, [3])
        assert (len(cache.rows), cache.length, cache.new) == (4 + number, 4 + number, True)
        assert not hasattr(table, "new")


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


def test_the_object_is_named_if_it_does_not_load_what_it_has_given() -> None:
    class Counts(Metric):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            """Counts on."""
            self.good = max(self.good, state["good"])

    counts = Counts()
    tracked = {"metric": counts}
    undo = Leaves(tracked)
    undo.begin(whole=True)
    counts.good = 3
    assert undo.restore() == ["metric"]
