"""Means over tokens: gradients are those of the mean over all tokens of the global batch, however it is cut."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from budgets import at_night
from conditions import eventually
from elastrain.data.order import Order
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_tokens.py")
EPOCHS = 5
OPTIONS = {
    "whole parts": {},
    "micro-batches": {"LOADER": json.dumps({"micro_batch_size": 3})},
    "bitwise": {"NUMERICS": "bitwise", "LOADER": json.dumps({"micro_batches": 4})},
}


def start(world, *ranks: str, delay: float = 0.05, **env: str) -> None:
    world.start(*ranks, epochs=EPOCHS, delay=delay, script=SCRIPT, **env)
    world.ready(*ranks)


@pytest.fixture(scope="module")
def expected() -> dict:
    """Plain torch in one process: the mean over all tokens of each batch."""
    script = runpy.run_path(str(SCRIPT))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 11)).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    sequences, order, losses, norms = script["Sequences"](), Order(83, 16, seed=3), {}, {}
    for step in range(EPOCHS * order.steps_per_epoch):
        tokens = torch.stack([sequences[i] for i in order.batch(step)])
        optimizer.zero_grad()
        loss, count = script["loss_of"](net, tokens)
        (loss / count).backward()
        norms[step + 1] = nn.utils.clip_grad_norm_(net.parameters(), 0.5).item()
        optimizer.step()
        losses[step + 1] = (loss / count).item()
    return {"model": net.state_dict(), "losses": losses, "norms": norms}


def assert_same(final: dict, expected: dict) -> None:
    assert list(final["losses"]) == list(expected["losses"])
    assert final["losses"] == pytest.approx(expected["losses"], rel=1e-9), "not the mean over the tokens"
    assert final["norms"] == pytest.approx({s: expected["norms"][s] for s in final["norms"]}, rel=1e-9)
    for name, value in expected["model"].items():
        torch.testing.assert_close(final["model"][name], value, rtol=0, atol=1e-10, msg=name)


@pytest.mark.parametrize("size", [3, *at_night(1, 2)])
@pytest.mark.parametrize("options", ["bitwise", *at_night("whole parts", "micro-batches")])
def test_gradients_are_those_of_the_mean_over_all_tokens_at_any_size(world, expected, size, options) -> None:
    ranks = "abc"[:size]
    start(world, *ranks, **OPTIONS[options])
    (world.folder / "run-free").touch()
    world.propose(*ranks)
    assert_same(world.finished(*ranks)["a"], expected)


@pytest.mark.parametrize("options", ["bitwise", *at_night("whole parts", "micro-batches")])
def test_the_mean_is_exact_if_ranks_are_killed_and_join(world, tmp_path_factory, expected, options) -> None:
    start(world, "a", "b", **OPTIONS[options])
    world.propose("a", "b")
    world.progressed("a", 2)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    start(world, "c", "d", **OPTIONS[options])
    world.propose("a", "c", "d")  # learners in their first step, of which the script gives a count
    world.adopted("a", "c", "d")
    final = world.finished(*"acd")
    for rank in "acd":
        assert final[rank]["model"].keys() == expected["model"].keys()
        assert all(torch.equal(final[rank]["model"][n], final["a"]["model"][n]) for n in expected["model"])
    assert_same(final["a"], expected)
    assert verify(world.audit).ok
    if options == "bitwise":
        alone = type(world)(tmp_path_factory.mktemp("alone"), world.warm)
        start(alone, "f", **OPTIONS[options])
        (alone.folder / "run-free").touch()
        alone.propose("f")
        fixed = alone.finished("f")["f"]
        assert fixed["losses"] == final["a"]["losses"]
        assert all(torch.equal(value, final["a"]["model"][name]) for name, value in fixed["model"].items())


@pytest.mark.parametrize("options", ["micro-batches", *at_night("bitwise")])
def test_a_batch_without_any_token_has_no_gradient_and_a_loss_of_0(world, options) -> None:
    start(world, "a", "b", EMPTY="2", **OPTIONS[options])
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    final = world.finished("a", "b")["a"]
    assert final["losses"][3] == final["norms"][3] == 0.0
    assert final["losses"][4] > 0


@pytest.mark.parametrize(
    ("options", "means"), [("micro-batches", "second"), *at_night(("whole parts", "b"), ("bitwise", "b"))]
)
def test_every_rank_raises_if_only_some_calls_of_a_step_have_a_count(world, options, means) -> None:
    start(world, "a", "b", MEANS=means, AT="2", **OPTIONS[options])
    (world.folder / "run-free").touch()
    world.propose("a", "b")
    for rank in (world.ranks["a"], world.ranks["b"]):
        eventually(lambda rank=rank: rank.process.poll() is not None, 30, f"{rank.name} raises")
        text = rank.log.read_text().splitlines()[-1]
        assert "RanksDiverged: job.backward(): in step 3 some calls had a count=… and others had none: give it" in text


def test_the_tokens_of_a_placeholder_do_not_count(world, expected) -> None:
    """The last batch of an epoch has 3 samples: the fourth rank computes a placeholder."""
    start(world, *"abcd")
    (world.folder / "run-free").touch()
    world.propose(*"abcd")
    assert_same(world.finished(*"abcd")["d"], expected)
