"""Several models, and several backwards in a loop body: a body counts as a whole, or leaves no trace."""

import re
from pathlib import Path

import pytest

from conditions import eventually
from differences import differences
from elastrain.api import messages as m
from elastrain.api.settings import CheckpointSpec
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_several.py")
EPOCHS = 3
PATIENCE = 60.0
FURTHER = ("epochs_on_a_rollout", "accumulate", "outside")


@pytest.fixture
def undisturbed(world, tmp_path_factory):
    """What an undisturbed job of these ranks saves."""

    def run(mode: str, *ranks: str) -> dict:
        fixed = type(world)(tmp_path_factory.mktemp("undisturbed"), world.warm)
        fixed.start(*ranks, epochs=EPOCHS, script=SCRIPT, MODE=mode, WRAPPED="1")
        fixed.ready(*ranks)
        fixed.propose(*ranks)
        return fixed.finished(*ranks)[ranks[0]]

    return run


def apart(one: dict, other: dict, *, atol: float) -> str:
    """Where the results differ, beside what a rank has counted from its start."""
    own = dict.fromkeys(("counts", "losses"))
    return "\n".join(list(differences({**one, **own}, {**other, **own}, atol=atol))[:20])


@pytest.mark.parametrize(
    ("mode", "point"),
    [
        ("gan", 2),
        pytest.param("epochs_on_a_rollout", 3, marks=pytest.mark.nightly),
        pytest.param("lbfgs", 4, marks=pytest.mark.nightly),
        pytest.param("gan", 1, marks=pytest.mark.nightly),
        pytest.param("gan", 3, marks=pytest.mark.nightly),
        pytest.param("accumulate", 1, marks=pytest.mark.nightly),
        pytest.param("accumulate", 2, marks=pytest.mark.nightly),
        pytest.param("lbfgs", 1, marks=pytest.mark.nightly),
        pytest.param("closure_once", 1, marks=pytest.mark.nightly),
    ],
)
def test_result_has_the_same_bits_if_a_rank_is_killed_after_a_backward_and_replaced(
    world, undisturbed, mode, point
) -> None:
    """The survivor has applied updates of a loop body in which a later backward fails."""
    world.start("a", "b", epochs=EPOCHS, script=SCRIPT, MODE=mode)
    world.ready("a", "b")
    world.together("a", "b")
    world.progressed("a", 2)
    (world.folder / f"halt-{point}-1").touch()
    world.wait("rank 1 halts", (world.folder / f"halted-{point}-1").exists)
    world.ranks["b"].kill()
    (world.folder / f"halt-{point}-1").unlink()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.start("c", epochs=EPOCHS, script=SCRIPT, MODE=mode)
    world.ready("c")
    world.together("a", "c")
    final, expected = world.finished("a", "c"), undisturbed(mode, "f", "g")
    for result in final.values():
        assert not (found := apart(expected, result, atol=0.0)), found
    assert final["a"]["losses"] == expected["losses"]
    assert verify(world.audit).ok


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["gan", *FURTHER])
def test_result_is_that_of_one_rank_if_ranks_join_and_leave(world, undisturbed, mode) -> None:
    world.start("a", epochs=EPOCHS, script=SCRIPT, MODE=mode, WRAPPED="1")
    world.ready("a")
    world.propose("a")
    world.progressed("a", 2)
    world.start("b", "c", epochs=EPOCHS, script=SCRIPT, MODE=mode, WRAPPED="1")
    world.ready("b", "c")
    world.together("a", "b", "c")
    world.progressed("a", 2)
    world.propose("a", "c")
    world.adopted("a", "b", "c")
    world.ranks["b"].send(m.Exit(reason="drained"))
    final, expected = world.finished("a", "c"), undisturbed(mode, "f")
    for result in final.values():
        assert not (found := apart(expected, result, atol=1e-10)), found
    assert final["a"]["losses"] == pytest.approx(expected["losses"], rel=1e-9)
    assert verify(world.audit).ok


def failure(world) -> str:
    """The log of the first rank that fails for good."""
    failed = lambda: [r for r in world.ranks.values() if r.process.poll() == 1]  # noqa: E731
    eventually(failed, PATIENCE, "a rank fails for good")
    return failed()[0].log.read_text()


def test_the_job_fails_with_both_ranks_if_one_runs_fewer_backwards(world) -> None:
    world.start("a", "b", "c", script=SCRIPT, MODE="uneven")
    world.ready("a", "b", "c")
    world.together("a", "b", "c")
    world.progressed("a", 2)
    (world.folder / "less-1").touch()
    text = failure(world)
    sums = r"rank (\d) sums the control vector of step (\d+)"
    found = re.search(f"{sums} while {sums}: .* of the same models, with the same backwards", text)
    assert found, text
    steps = {int(found[1]): int(found[2]), int(found[3]): int(found[4])}
    ahead = steps.pop(1)
    assert list(steps.values()) == [ahead - 1]


@pytest.mark.parametrize(
    ("mode", "options", "remedy"),
    [
        ("late", {}, r"a further job\.backward\(\) in a loop body did not .*several_backwards=True"),
        (
            "accumulate",
            {"LOADER": '{"micro_batch_size": 5}'},
            r"needs the whole batch at once, .*leave micro_batch_size, .* out",
        ),
        ("outside", {}, r"trains parameters of no model .*job\.wrap\(nn\.ParameterList\(\[p\]\)\)"),
        ("lbfgs", {"LOADER": '{"micro_batch_size": 5}'}, r"step\(closure\) needs the whole batch at once"),
    ],
)
def test_error_names_the_remedy_if_a_script_cannot_be_trained_exactly(world, mode, options, remedy) -> None:
    world.start("a", script=SCRIPT, MODE=mode, **options)
    if mode != "outside":
        world.ready("a")
        world.propose("a")
    assert re.search(remedy, failure(world))


def test_a_body_may_have_more_backwards_than_the_warm_up_if_the_script_announces_it(world, undisturbed) -> None:
    world.start("a", "b", epochs=EPOCHS, script=SCRIPT, MODE="late", SEVERAL="1")
    world.ready("a", "b")
    world.together("a", "b")
    final = world.finished("a", "b")["b"]
    assert final["step"] == 27


@pytest.mark.parametrize("mode", ["lbfgs", pytest.param("gan", marks=pytest.mark.nightly)])
def test_job_resumes_from_a_checkpoint_to_the_same_bits(world, undisturbed, mode) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=5)
    world.start("a", epochs=EPOCHS, script=SCRIPT, checkpoint=spec, MODE=mode)
    world.ready("a")
    world.propose("a")
    world.wait("a checkpoint", lambda: world.ranks["a"].saved_step() > 0)
    world.ranks["a"].kill()
    world.start("b", epochs=EPOCHS, script=SCRIPT, checkpoint=spec, MODE=mode)
    world.ready("b")
    world.propose("b")
    final, expected = world.finished("b")["b"], undisturbed(mode, "f")
    assert min(final["losses"]) > 1, "it has begun anew"
    assert not (found := apart(expected, final, atol=0.0)), found
