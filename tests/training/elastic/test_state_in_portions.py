"""Joiners of a large model, in real processes: their state comes over several steps, without an effect on training."""

from pathlib import Path

import pytest
import torch

from elastrain_audit.judge import verify

SCRIPT = Path(__file__).parent / "train_portions.py"
pytestmark = pytest.mark.timeout(300)


def start(world, *ranks: str, epochs: int = 3, delay: float = 0.1, **env: str) -> None:
    for rank in ranks:
        world.start(rank, epochs=epochs, delay=delay, script=SCRIPT, SEED=str(len(world.ranks)), **env)
    world.ready(*ranks)


def said(world, rank: str, what: str) -> bool:
    return what in world.ranks[rank].log.read_text()


def assert_same_everywhere(final: dict[str, dict], *ranks: str) -> None:
    first = final[ranks[0]]
    for rank in ranks[1:]:
        other = final[rank]
        for name, value in first["model"].items():
            assert torch.equal(value, other["model"][name]), f"{name} of {rank}"
        for index, kept in first["optimizer"].items():
            for name, value in kept.items():
                assert torch.equal(value, other["optimizer"][index][name]), f"{name} of {index} of {rank}"


def test_model_is_that_of_the_fixed_size_run_if_joiners_got_it_over_several_steps(world, tmp_path_factory) -> None:
    fixed = type(world)(tmp_path_factory.mktemp("fixed"), world.warm)
    start(fixed, "f")
    fixed.propose("f")
    expected = fixed.finished("f")["f"]

    start(world, "a", "b")
    world.together("a", "b")
    world.progressed("a", 2)
    start(world, "c", "d")  # a worker that was ready before the job has run no warm-up, and gets its state at once
    world.together("a", "b", "c", "d")
    world.wait("both have the state", lambda: all(said(world, r, "state is complete") for r in "cd"))
    for complete in (False, True):
        reported = {"generation": world.number, "complete": complete}
        world.wait("both say so", lambda said=reported: all(world.ranks[r].has("adopted", **said) for r in "cd"))
    world.progressed("a", 3)
    final = world.finished(*"abcd")

    assert_same_everywhere(final, *"abcd")
    for name, value in expected["model"].items():
        assert torch.allclose(final["a"]["model"][name], value, rtol=0, atol=1e-5), name
    assert final["c"]["lr"] == expected["lr"]
    first, *_ = final["c"]["commits"]
    assert final["c"]["commits"] == list(range(first, final["c"]["step"] + 1))
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert verdict.redone == 0


@pytest.mark.nightly
def test_a_joiner_of_a_script_with_a_loop_for_each_epoch_gets_its_state_over_several_steps(world) -> None:
    start(world, "a", "b", epochs=4, NESTED="1", ONE_BY_ONE="1")
    world.propose("a", "b")
    world.wait("the second epoch", lambda: world.ranks["a"].step() > 17)
    start(world, "c", epochs=4, NESTED="1", ONE_BY_ONE="1")
    world.together("a", "b", "c")
    world.wait("it has the state", lambda: said(world, "c", "state is complete"))
    final = world.finished(*"abc")
    _, *bodies = final["c"]["bodies"]  # without the warm-up
    learning = [forwards for _, committed, forwards in bodies if not committed]
    assert len(learning) > 1
    assert not any(learning), "the model was run while a part of it was missing"
    assert all(forwards == 1 for _, committed, forwards in bodies[len(learning) + 1 :])
    assert final["c"]["step"] == final["a"]["step"] == 4 * 17
    assert_same_everywhere(final, *"abc")
    assert verify(world.audit).ok


def test_a_learning_rate_that_the_loop_body_sets_holds_in_the_step_that_completes_the_state(world) -> None:
    start(world, "a", "b", RATE="1", ONE_BY_ONE="1")
    world.together("a", "b")
    world.progressed("a", 2)
    start(world, "c", RATE="1", ONE_BY_ONE="1")
    world.together("a", "b", "c")
    world.wait("it has the state", lambda: said(world, "c", "state is complete"))
    assert_same_everywhere(world.finished(*"abc"), *"abc")


def test_state_is_sent_whole_if_other_code_than_the_optimizer_changes_the_model(world) -> None:
    start(world, "a", "b", FOLLOWER="1", ONE_BY_ONE="1")
    world.together("a", "b")
    world.progressed("a", 4)
    start(world, "c", FOLLOWER="1", ONE_BY_ONE="1")
    world.propose("a", "b", "c")
    world.wait("it is found out", lambda: all(world.ranks[r].has("broken") for r in "abc"))
    assert said(world, "c", "changes the model")
    world.together("a", "b", "c")
    final = world.finished(*"abc")
    assert_same_everywhere(final, *"abc")
    assert final["a"]["commits"] == list(range(1, final["a"]["step"] + 1)), "a committed step was lost"


@pytest.mark.parametrize("victim", ["b", pytest.param("c", marks=pytest.mark.nightly)])
def test_nothing_is_lost_if_a_sender_or_the_joiner_is_killed_during_the_transfer(world, victim) -> None:
    start(world, *"abcd", delay=0.3, ONE_BY_ONE="1")
    world.together("a", "b")
    world.progressed("a", 2)
    world.together("a", "b", "c")
    world.ranks[victim].kill()
    left = [r for r in "abc" if r != victim]
    world.wait("the loss is reported", lambda: all(world.ranks[r].has("broken") for r in left))
    assert not said(world, "c", "state is complete"), "too late: the state had arrived"
    world.propose(*left, "d")
    final = world.finished(*left, "d")
    assert_same_everywhere(final, *left, "d")
    assert final["a"]["commits"] == list(range(1, final["a"]["step"] + 1)), "a committed step was lost or redone"
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
