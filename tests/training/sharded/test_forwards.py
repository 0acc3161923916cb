"""Evaluation and micro-batches of sharded models: all ranks of a group run equally many forwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sharded_model import STEPS, alone, assert_same_model, script

EVERY = 20


def expected(step: int) -> float:
    """The mean loss over all data after ``step`` steps of one process."""
    model = script().net()
    model.load_state_dict(alone(step)[0])
    x, y = script().data().tensors
    with torch.no_grad():
        return nn.functional.cross_entropy(model(x), y).item()


def assert_evaluated(ends: list[dict]) -> None:
    """In full, with the same sums on all ranks, by those that were there."""
    assert any(EVERY in end["evaluations"] for end in ends)
    for end in ends:
        assert STEPS in end["evaluations"]
        for step, sums in end["evaluations"].items():
            assert sums["seen"] == 203, "a batch was lost or counted twice"
            assert sums["loss"] == pytest.approx(expected(step), abs=1e-9)
            assert [sums] == [e["evaluations"][step] for e in ends if step in e["evaluations"]][:1]


def test_groups_evaluate_and_add_micro_batches_up_if_a_rank_dies_in_either(job) -> None:
    options = {"EVALUATE": str(EVERY), "MICRO": "2"}
    job.want(2)
    job.start("a", "b", **options)
    first = job.together("a", "b")
    pids = job.pids("a")
    job.order("die-in-backward", ("b", 1))
    second = job.together("a", "b", after=first)
    orders = job.ask("die-in-evaluation", ("b", 0))
    job.wait("it to die", lambda: not orders[0].exists())
    job.together("a", "b", after=second)
    ends = job.finish("a", "b")
    assert_same_model(ends)
    assert job.pids("a") == pids, "a survivor's process changed"
    assert_evaluated([end for shards in ends.values() for end in shards])
    norms = ends["a"][0]["norms"]
    assert norms == pytest.approx(alone(STEPS)[1][-len(norms) :], rel=1e-9)
    job.verdict()


@pytest.mark.nightly
def test_ranks_of_one_copy_evaluate_and_add_micro_batches_up_while_their_number_changes(one_copy) -> None:
    job, options = one_copy, {"EVALUATE": str(EVERY), "MICRO": "2"}
    job.want(2)
    job.start("a", "b", **options)
    first = job.together("a", "b")
    job.start("c", **options)
    job.want(3)
    job.together("a", "b", "c", after=first)
    ends = job.parts("a", "b", "c")
    assert_same_model({"all": ends})
    assert_evaluated(ends)
    job.verdict()
