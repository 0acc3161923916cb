"""Recipes of the documentation: their additions to a loop act exactly once for each committed step."""

import json
from pathlib import Path

import pytest
import torch

from elastrain.api import messages as m
from elastrain.api.settings import CheckpointSpec
from elastrain.elastic.checkpoint import tier_at
from elastrain_audit.judge import verify

RECIPE = Path(__file__).with_name("train_recipe.py")
CARELESS = Path(__file__).with_name("train_careless.py")


@pytest.fixture
def undisturbed(world, tmp_path_factory):
    fixed = type(world)(tmp_path_factory.mktemp("undisturbed"), world.warm)
    fixed.start("f", epochs=6, script=RECIPE)
    fixed.ready("f")
    fixed.propose("f")
    return fixed.finished("f")["f"]


def test_recipe_ends_as_if_undisturbed_if_ranks_join_die_and_leave(world, undisturbed) -> None:
    world.start("a", "b", epochs=6, script=RECIPE)
    world.ready("a", "b")
    world.together("a", "b")
    world.start("c", epochs=6, script=RECIPE)
    world.ready("c")
    world.together("a", "b", "c")
    world.progressed("a", 2)
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.together("a", "c")
    world.propose("a")
    world.adopted("a", "c")
    world.ranks["c"].send(m.Exit(reason="drained"))
    final = world.finished("a")["a"]

    assert (final["step"], final["lr"]) == (undisturbed["step"], pytest.approx(undisturbed["lr"], rel=1e-12))
    assert final["scaler"] == undisturbed["scaler"]
    assert final["losses"] == pytest.approx(undisturbed["losses"], rel=1e-9), "it is not the mean loss, unscaled"
    assert max(final["losses"].values()) < 10, "the loss is scaled"
    for name in ("model", "average"):
        for key, value in undisturbed[name].items():
            assert torch.allclose(final[name][key], value, rtol=0, atol=1e-10), (name, key)
    assert verify(world.audit).ok


@pytest.mark.parametrize("form", [pytest.param("range", marks=pytest.mark.nightly), "epochs"])
def test_a_joiner_trains_in_the_loop_in_which_the_others_are(world, undisturbed, form) -> None:
    """Each epoch is a loop of its own, and the joiner's script starts at the first one."""
    env = {"EPOCHS": "1"} if form == "epochs" else {}
    world.start("a", "b", epochs=6, script=RECIPE, **env)
    world.ready("a", "b")
    world.propose("a", "b")
    world.wait("the third epoch", lambda: world.ranks["a"].step() > 2 * 9)
    world.start("c", epochs=6, script=RECIPE, **env)
    world.ready("c")
    (ready,) = world.ranks["c"].of_type("ready")
    assert ready.loop.end > 2 * 9
    world.together("a", "b", "c")
    final = world.finished("a", "b", "c")

    epochs = {r: json.loads((world.folder / f"epochs-{world.ranks[r].process.pid}").read_text()) for r in "abc"}
    assert [(epoch, step) for epoch, _, step in epochs["a"]] == [(epoch, 9 * (epoch + 1)) for epoch in range(6)]
    joined = [entry for entry in epochs["c"] if entry[1] != -1]
    assert [(e, s) for e, _, s in joined] == [(e, s) for e, _, s in epochs["a"]][-len(joined) :]
    passed = [(epoch, step) for epoch, rank, step in epochs["c"] if rank == -1]
    assert passed == ([] if form == "epochs" else [(epoch, 0) for epoch in range(6 - len(joined))])
    for rank in "abc":
        assert final[rank]["lr"] == pytest.approx(undisturbed["lr"], rel=1e-12)
        for key, value in undisturbed["average"].items():
            assert torch.allclose(final[rank]["average"][key], value, rtol=0, atol=1e-10), (rank, key)


@pytest.mark.nightly
def test_a_joiner_whose_loop_is_over_goes_on_to_the_loop_of_the_others(world, undisturbed) -> None:
    world.start("a", "b", "late", epochs=6, script=RECIPE)
    world.ready("a", "b", "late")
    world.propose("a", "b")
    world.wait("the second epoch", lambda: world.ranks["a"].step() > 9)
    world.together("a", "b", "late")
    final = world.finished("a", "b", "late")
    for rank in ("a", "b", "late"):
        assert not world.ranks[rank].of_type("broken"), "the joiner has broken a generation"
        assert (final[rank]["step"], final[rank]["lr"]) == (undisturbed["step"], pytest.approx(undisturbed["lr"]))
        for key, value in undisturbed["model"].items():
            assert torch.allclose(final[rank]["model"][key], value, rtol=0, atol=1e-10), (rank, key)
    assert verify(world.audit).ok


def test_schedules_act_once_an_epoch_and_once_a_step(undisturbed) -> None:
    steps, epochs = undisturbed["step"], 6
    assert undisturbed["lr"] == pytest.approx(0.01 * 0.99 ** (steps // 7) * 0.9**epochs)
    assert undisturbed["average"]["n_averaged"] == steps


def test_a_drained_rank_has_left_and_not_finished_if_its_script_catches_everything(world) -> None:
    world.start("a", "b", script=CARELESS)
    world.ready("a", "b")
    world.together("a", "b")
    world.propose("a")
    world.adopted("a", "b")
    world.ranks["b"].send(m.Exit(reason="drained"))
    world.wait("b ends", lambda: world.ranks["b"].process.poll() == 0)
    pid = world.ranks["b"].process.pid
    assert (world.folder / f"caught-{pid}").exists(), "the script caught nothing"
    assert world.ranks["b"].of_type("left")
    assert not world.ranks["b"].of_type("finished")
    assert not (world.folder / f"final-{pid}.pt").exists(), "the script continued as if training had ended"


def test_a_checkpoint_holds_what_the_callbacks_of_its_step_have_done(world) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=10)
    world.start("a", script=CARELESS, epochs=4, checkpoint=spec)
    world.ready("a")
    world.propose("a")
    world.wait("a checkpoint", lambda: any(r.progress.checkpoint for r in world.ranks["a"].of_type("report")))
    volume = tier_at(str(world.folder / "checkpoints"), keep=2)
    saved = volume.complete()[-1]
    tree = volume.load(saved)
    assert tree["tracked"]["average"]["step"] == saved.step == tree["position"]["step"]
