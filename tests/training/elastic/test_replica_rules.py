"""What follows from the digests of all ranks, when they are compared, and what a digest sees: pure functions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastrain.elastic.encoding.leaves import raw_bytes
from elastrain.elastic.replicas.compare import Outcome, Row, differ, judge
from elastrain.elastic.replicas.entries import LEFT_OUT, Entries, combined
from elastrain.elastic.replicas.schedule import Schedule
from elastrain.elastic.state.digest import on_device

# -- the decision ------------------------------------------------------------------------------------------------------
STATES = st.sampled_from([{"w": 1, "m": 1}, {"w": 2, "m": 1}, {"w": 1, "m": 2}, {"w": 3}, {}])
ROWS = st.builds(Row, STATES, st.integers(0, 1), st.integers(-1, 9), st.booleans(), st.booleans())


def by_shard(rows: list[Row]) -> Iterator[dict[int, frozenset]]:
    for shard in {row.shard for row in rows}:
        yield {r: frozenset(row.digests.items()) for r, row in enumerate(rows) if row.shard == shard and row.digests}


@given(st.lists(ROWS, min_size=1, max_size=7))
def test_a_strict_majority_of_ranks_that_discarded_no_body_decides_and_else_no_rank_is_taken_for_right(rows):
    judgement = judge(rows, 10)
    wrong, decided = set(), True
    for states in by_shard(rows):
        counts = Counter(state for r, state in states.items() if not rows[r].suspect).most_common()
        if len(set(states.values())) > 1:
            right, votes = counts[0] if counts else (None, 0)
            decided &= 2 * votes > sum(count for _, count in counts)
            wrong |= {r for r, state in states.items() if state != right}
    back = all(row.may_go_back for row in rows) and max(row.equal_at for row in rows) >= 0
    otherwise = Outcome.GO_BACK if back else Outcome.FAIL
    expected = Outcome.EQUAL if not wrong else Outcome.TAKE if decided else otherwise
    assert judgement.outcome is expected
    assert set(judgement.minority) == (wrong if expected is Outcome.TAKE else set())


@given(st.lists(ROWS, min_size=1, max_size=7))
def test_numbers_differ_if_and_only_if_replicas_of_a_shard_do(rows):
    numbers = [combined(row.digests) if row.digests else 0 for row in rows]
    assert differ(numbers, [row.shard for row in rows]) == (judge(rows, 1).outcome is not Outcome.EQUAL)


def test_entries_ranks_and_steps_are_named_if_a_rank_differs():
    right, wrong = {"model.w": 1, "optimizer.state[0].exp_avg": 5}, {"model.w": 2, "optimizer.state[0].exp_avg": 5}
    why = judge([Row(right, equal_at=100), Row(wrong), Row(right)], 200).why
    assert why.startswith("the ranks' states of step 200 differ: rank 1 from ranks 0, 2 in model.w; they were equal")
    assert "after step 100" in why


def test_the_one_rank_that_discarded_no_body_is_right_and_none_if_all_have():
    right, wrong = {"scale": 1}, {"scale": 2}
    kept, suspects = Row(right, equal_at=9, may_go_back=True), [Row(wrong, 0, 9, True, suspect=True)] * 2
    judgement = judge([kept, *suspects], 12)
    assert (judgement.outcome, judgement.minority) == (Outcome.TAKE, [1, 2])
    assert "ranks 1, 2 may hold what a discarded loop body has left" in judgement.why
    assert judge([Row(right, 0, 9, True, suspect=True), *suspects], 12).outcome is Outcome.GO_BACK


def test_an_entry_is_left_out_on_all_ranks_if_one_says_that_it_may_differ():
    rows = [Row({"w": 1, "mean": LEFT_OUT}), Row({"w": 1, "mean": 7})]
    assert judge(rows, 1).outcome is Outcome.EQUAL
    assert judge(rows, 1).own == {"mean"}


def test_an_entry_differs_if_a_rank_lacks_it():
    judgement = judge([Row({"w": 1, "m": 1}), Row({"w": 1, "m": 1}), Row({"w": 1})], 1)
    assert (judgement.outcome, judgement.minority) == (Outcome.TAKE, [2])
    assert "in m;" in judgement.why


# -- when --------------------------------------------------------------------------------------------------------------
@given(st.integers(1, 50), st.integers(1, 200))
def test_no_more_steps_than_the_interval_lie_between_two_comparisons(every, steps):
    schedule, compared = Schedule(every), [0]
    schedule.enter()
    for step in range(steps):
        if schedule.due:
            compared.append(step)
            schedule.compared()
        schedule.stepped(receiving=False)
    assert 0 not in compared[1:]  # the first step of a generation ends a pause
    assert all(b - a <= every for a, b in itertools.pairwise(compared[1:]))
    assert steps == 1 or compared[1] == 1


def test_ranks_compare_as_soon_as_a_state_is_complete_that_travelled_beside_the_steps():
    schedule = Schedule(100)
    schedule.enter()
    schedule.stepped(receiving=True)
    schedule.compared()
    schedule.stepped(receiving=True)
    assert not schedule.due
    schedule.stepped(receiving=False)
    assert schedule.due


def test_nothing_is_compared_if_the_interval_is_0():
    schedule = Schedule(0)
    schedule.enter()
    for _ in range(3):
        schedule.stepped(receiving=False)
        assert not schedule.due
        assert not schedule.due_at_boundary


# -- what is seen ------------------------------------------------------------------------------------------------------
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = nn.Sequential(nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last), nn.BatchNorm2d(3))
    net.register_buffer("scale", torch.ones(()))
    net.register_parameter("halves", nn.Parameter(torch.ones(5, dtype=torch.bfloat16), requires_grad=False))
    optimizer = torch.optim.Adam(net.parameters(), amsgrad=True)
    net(torch.ones(2, 2, 3, 3)).square().sum().backward()
    optimizer.step()
    return net, optimizer


def tensors(net: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    yield from ((f"model.{name}", p.data) for name, p in net.named_parameters())
    yield "model.scale", net.scale
    numbered = {p: i for i, p in enumerate(net.parameters())}
    for parameter, state in optimizer.state.items():
        yield from ((f"optimizer.state[{numbered[parameter]}].{key}", value) for key, value in state.items())


def test_any_flipped_bit_is_seen_in_its_entry_and_in_no_other():
    net, optimizer = trained()
    entries = Entries({"model": net, "optimizer": optimizer})
    entries.loaded()
    before = entries.digests()
    generator = torch.Generator().manual_seed(1)
    for name, tensor in tensors(net, optimizer):
        data = raw_bytes(tensor)
        for _ in range(8):
            bit = 1 << int(torch.randint(8, (), generator=generator))
            at = int(torch.randint(data.numel(), (), generator=generator))
            data[at] ^= bit
            entries.loaded()  # the test's own change has raised the version of a buffer
            after = entries.digests()
            assert {n for n in before if before[n] != after[n]} == {name}
            assert combined(after) != combined(before)
            data[at] ^= bit
    entries.loaded()
    assert entries.digests() == before


def test_the_learning_rate_is_an_entry():
    net, optimizer = trained()
    entries = Entries({"model": net, "optimizer": optimizer})
    before = entries.digests()
    optimizer.param_groups[0]["lr"] *= 2
    after = entries.digests()
    assert [n for n in before if before[n] != after[n]] == ["optimizer.param_groups[0].lr"]


def test_buffers_that_forward_changes_are_left_out_and_constant_ones_are_not():
    net, optimizer = trained()
    entries = Entries({"model": net, "optimizer": optimizer})
    entries.loaded()
    net(torch.ones(2, 2, 3, 3))
    left_out = {name for name, number in entries.digests().items() if number == LEFT_OUT}
    assert left_out == {"model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("size", [0, 1, 7, 4096, 10_001])
def test_a_flipped_bit_and_exchanged_rows_change_the_digest_that_a_device_makes(dtype, size):
    tensor = torch.arange(size).to(dtype)
    before = on_device(tensor)
    assert before.dtype is torch.int64
    data = tensor.view(torch.uint8)
    for at in range(0, data.numel(), max(data.numel() // 50, 1)):
        for bit in (1, 128):
            data[at] ^= bit
            assert on_device(tensor) != before
            data[at] ^= bit
    if size > 8192 and dtype is torch.float32:
        assert on_device(tensor.roll(4096)) != before
