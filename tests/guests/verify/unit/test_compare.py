"""Where the record of a run parts from the reference."""

from __future__ import annotations

import pytest

from elastrain_verify import compare
from elastrain_verify.compare import ABSENT, Bounds, Parting, family, parting
from elastrain_verify.history import Committed, History, Process


def tensor(*values: float, kind: str = "float64", **about: object) -> dict:
    """The record of a small tensor, as :func:`elastrain_verify.rank.record.tensor` makes it."""
    return {
        "type": f"{kind}[{len(values)}]",
        "digest": str(values),
        "size": len(values),
        "largest": max(map(abs, values)),
        "norm": sum(v * v for v in values) ** 0.5,
        "sum": sum(values),
        "absolute": sum(map(abs, values)),
        "sample": [*values],
        **about,
    }


def process(*states: dict, worker: str = "w0", rank: int = 0, world: int = 1, first: int = 1) -> Process:
    return Process(worker, 1, [Committed(first + i, worker, s, rank, world) for i, s in enumerate(states)])


def compared(reference: list[dict], *processes: Process, bounds: Bounds | None = None) -> Parting | None:
    return parting(History([process(*reference)]), History(processes), bounds or Bounds())


def test_nothing_is_found_if_all_ranks_agree_up_to_rounding() -> None:
    reference = [{"model.w": tensor(1.0, 2.0)}, {"model.w": tensor(1.5, 2.5)}]
    one, other = {"model.w": tensor(1.0, 2.0 + 1e-13)}, {"model.w": tensor(1.5 - 1e-13, 2.5)}
    assert compared(reference, process(one, other), process(other, worker="w1", rank=1, world=2, first=2)) is None


def test_first_step_and_entry_are_named_if_later_ones_part_too() -> None:
    reference = [{"job.loss": 1.0, "model.w": tensor(1.0)}, {"job.loss": 0.5, "model.w": tensor(2.0)}]
    found = compared(reference, process(reference[0], {"job.loss": 0.6, "model.w": tensor(2.1)}))
    assert found is not None
    assert (found.step, found.entry, found.expected, found.found, found.others) == (2, "job.loss", 0.5, 0.6, 1)


def test_rank_is_named_if_the_others_agree() -> None:
    state, wrong = {"model.w": tensor(1.0)}, {"model.w": tensor(1.1)}
    found = compared([state], process(state, world=2), process(wrong, worker="w1", rank=1, world=2))
    assert found is not None
    assert (found.rank, found.worker, found.ranks, found.all_ranks) == (1, "w1", (1,), False)


def test_rounding_of_a_gradient_that_should_be_zero_is_not_a_difference() -> None:
    reference = {"model.w.grad": tensor(0.3), "model.b.grad": tensor(2e-18)}
    assert compared([reference], process({"model.w.grad": tensor(0.3), "model.b.grad": tensor(-5e-18)})) is None


def test_gradient_of_zeros_is_none() -> None:
    assert compared([{"job.loss": 1.0}], process({"job.loss": 1.0, "model.w.grad": tensor(0.0)})) is None


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (3, 4),
        (0.1, 0.2),
        ("cos", "linear"),
        (True, False),
        (None, 1.0),
        (float("nan"), 1.0),
        (tensor(1, kind="int64"), tensor(2, kind="int64")),
        (tensor(1.0), tensor(1.0, kind="float32")),
        (tensor(1.0), tensor(float("nan"))),
        (tensor(1.0), tensor(1.0, 1.0)),
    ],
)
def test_values_that_differ_are_found(expected: object, found: object) -> None:
    assert compared([{"x": expected}], process({"x": found})) is not None


def test_two_values_that_are_not_numbers_are_equal() -> None:
    nan = float("nan")
    assert compared([{"x": nan, "y": tensor(nan)}], process({"x": nan, "y": tensor(nan)})) is None


def test_entry_that_one_side_lacks_is_named() -> None:
    found = compared([{"a": 1, "b": 2}], process({"a": 1}))
    assert found is not None and (found.entry, found.found) == ("b", ABSENT)


def test_step_that_is_committed_twice_is_found() -> None:
    state = {"a": 1}
    again = Process("w0", 1, [Committed(1, "w0", state), Committed(1, "w0", state)])
    found = compared([state], again)
    assert found is not None and found.entry == "committed steps"


def test_run_that_ends_early_is_found() -> None:
    found = compared([{"a": 1}, {"a": 1}], process({"a": 1}))
    assert found is not None and (found.entry, found.expected, found.found) == ("committed steps", 2, 1)


def test_state_after_the_loop_is_judged_on_rank_0_only() -> None:
    reference = History([Process("r", 1, [Committed(1, "r", {"a": 1}), Committed(1, "r", {"a": 2}, ended=True)])])
    first = Process("w0", 1, [Committed(1, "w0", {"a": 1}, 0, 2), Committed(1, "w0", {"a": 2}, 0, 2, ended=True)])
    second = Process("w1", 2, [Committed(1, "w1", {"a": 1}, 1, 2), Committed(1, "w1", {"a": 1}, 1, 2, ended=True)])
    assert parting(reference, History([first, second])) is None
    wrong = Process("w0", 1, [Committed(1, "w0", {"a": 1}, 0, 2), Committed(1, "w0", {"a": 3}, 0, 2, ended=True)])
    found = parting(reference, History([wrong, second]))
    assert found is not None and found.ended


def test_measured_bound_replaces_that_of_float64() -> None:
    reference, run = {"model.w": tensor(1.0, kind="float32")}, {"model.w": tensor(1.0 + 1e-6, kind="float32")}
    assert compared([reference], process(run)) is not None
    assert compared([reference], process(run), bounds=Bounds(measured={"model": 2e-6})) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.fc.weight", "model"),
        ("model.fc.weight.grad", "model.grad"),
        ("optimizer.state[model.fc.weight].exp_avg", "optimizer.state.exp_avg"),
        ("model.bn.running_mean (buffer)", "model.running_mean (buffer)"),
    ],
)
def test_entries_of_one_kind_are_a_family(name: str, expected: str) -> None:
    assert family(name) == expected


def test_what_an_adapter_adds_is_not_compared_with_a_frameworks_own_loop() -> None:
    expected = {compare.OWN_LOOP: True, "model.w": 1.0, "optimizer.param_groups[0].lr": 0.1}
    found = {"callbacks of the step": 1, "model.w": 1.0, "optimizer.param_groups[0].lr": 0.2, "history.loss": 3.0}
    assert compare.differing(expected, found, compare.Bounds(), {}) == ["optimizer.param_groups[0].lr"]


def test_a_shard_is_compared_with_its_part_of_the_whole() -> None:
    whole = tensor(1.0, 2.0, parts={"0 of 2": tensor(1.0), "1 of 2": tensor(2.0)})
    for found, equal in ((tensor(2.0, part="1 of 2"), True), (tensor(1.0, part="1 of 2"), False)):
        assert compare.equal("model.w", whole, found, compare.Bounds(), {}) == equal


def test_data_of_a_step_part_if_the_same_samples_are_other_ones() -> None:
    reference = [{"batch": {"0 to 7": "a"}, "job.loss": 1.0}]
    found = compared(reference, process({"batch": {"0 to 7": "b"}, "job.loss": 2.0}))
    assert found is not None
    assert (found.entry, found.others) == ("batch", 1)
    assert compared(reference, process({"batch": {"0 to 3": "b"}, "job.loss": 1.0}, world=2)) is None, "another cut"
    cut, run = (History([process({"batch": {"0 to 3": "a", "4 to 7": b}})]) for b in "ab")
    shown = compare.data_apart(cut, run)
    assert shown is not None and (shown.entry, shown.found["4 to 7"]) == ("batch", "b")
