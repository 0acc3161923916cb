"""Gradients that outlive steps: the model is that of plain torch on any number of ranks, through any change."""

import itertools
import json
from pathlib import Path

import pytest
import torch

import train_kept
from conditions import eventually
from elastrain.api import messages as m
from elastrain.api.settings import CheckpointSpec
from elastrain.data.options import order_of
from elastrain_audit.judge import verify

SCRIPT = Path(train_kept.__file__)
STRATEGIES: dict[str, dict[str, str]] = {
    "exact": {},
    "micro-batches": {"LOADER": json.dumps({"micro_batch_size": 2})},
    "several": {"SEVERAL": "1"},
    "bitwise": {"NUMERICS": "bitwise", "LOADER": json.dumps({"micro_batches": 6})},
}
IN_CI = [
    ("exact", "optimizer", "end"),
    ("micro-batches", "in place", "begin"),
    ("several", "model", "some"),
    ("bitwise", "zero_", "never"),
]
ALL = [*itertools.product(STRATEGIES, train_kept.KINDS, train_kept.WHERES)]
CASES = [*IN_CI, *(pytest.param(*case, marks=pytest.mark.nightly) for case in ALL if case not in IN_CI)]


def expected(strategy: str, kind: str, where: str) -> dict[str, torch.Tensor]:
    order = order_of(train_kept.data(), global_batch_size=train_kept.BATCH, seed=3, shuffle=None, drop_last=False)
    return train_kept.plain(kind, where, lambda step: list(order.batch(step)), several=strategy == "several")


def start(world, *ranks: str, **env) -> None:
    """No step is computed meanwhile: there are few."""
    (world.folder / "hold").touch()
    world.start(*ranks, script=SCRIPT, delay=0.2, **env)
    world.ready(*ranks)
    (world.folder / "hold").unlink()


def assert_same(final: dict, plain: dict[str, torch.Tensor]) -> None:
    assert final.keys() - {"step"} == plain.keys()
    for name, value in plain.items():
        torch.testing.assert_close(final[name], value, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(("strategy", "kind", "where"), CASES)
def test_the_model_is_that_of_plain_torch_if_ranks_join_die_and_leave(world, strategy, kind, where) -> None:
    env = {"KIND": kind, "WHERE": where, **STRATEGIES[strategy]}
    start(world, "a", **env)
    world.propose("a")
    world.progressed("a", 2)
    start(world, "b", "c", **env)
    world.together("a", "b", "c")
    world.progressed("a", 3)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken", generation=world.number) for r in "ac"))
    start(world, "d", **env)
    world.together("a", "c", "d")
    world.progressed("a", 2)
    world.propose("a", "d")
    world.adopted("a", "c", "d")
    world.ranks["c"].send(m.Exit(reason="drained"))
    final = world.finished("a", "d")
    for rank in "ad":
        assert_same(final[rank], expected(strategy, kind, where))
    assert verify(world.audit).ok


@pytest.mark.parametrize(
    ("strategy", "where"), [("exact", "end"), pytest.param("bitwise", "begin", marks=pytest.mark.nightly)]
)
def test_a_job_resumes_with_the_gradients_of_its_checkpoint(world, strategy, where) -> None:
    env = {"KIND": "optimizer", "WHERE": where, **STRATEGIES[strategy]}
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=7)  # in the middle of an accumulation
    start(world, "a", checkpoint=spec, **env)
    world.propose("a")
    world.wait("a checkpoint", lambda: world.ranks["a"].saved_step() > 0)
    world.ranks["a"].kill()
    start(world, "b", "c", checkpoint=spec, **env)
    world.propose("b", "c")
    final = world.finished("b", "c")
    for rank in "bc":
        assert_same(final[rank], expected(strategy, "optimizer", where))


def test_all_ranks_fail_with_the_way_out_if_one_alone_drops_its_gradients(world) -> None:
    start(world, "a", "b", KIND="optimizer", WHERE="end", ALONE="b")
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    ranks = [world.ranks[r] for r in "ab"]
    eventually(lambda: any(r.process.poll() is not None for r in ranks), 30, "one of them fails")
    text = "".join(r.log.read_text() for r in ranks if r.process.poll() is not None)
    assert "RanksDiverged: job.backward(): in step 3 some ranks have gradients of a step before" in text
    assert "call zero_grad() on all ranks before the same steps" in text
