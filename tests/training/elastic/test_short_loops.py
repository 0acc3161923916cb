"""A joiner whose loop the job leaves before it can enter goes on to the job's loop, in its process."""

from pathlib import Path

import pytest
import torch

from conditions import eventually
from elastrain.api import messages as m
from elastrain.api.loops import LoopId
from elastrain_audit.judge import verify

SCRIPT = Path(__file__).with_name("train_short_loops.py")
EPOCHS, STEPS = 40, 3
LONG_EPOCHS, LONG = 12, 24
"""Of the script with longer loops."""


def allow(world, step: int) -> None:
    """Ranks compute no step after this one."""
    (world.folder / "allowed.new").write_text(str(step))
    (world.folder / "allowed.new").replace(world.folder / "allowed")


def start(world, *ranks: str, **env) -> None:
    world.start(*ranks, epochs=LONG_EPOCHS if "LONG" in env else EPOCHS, delay=0.005, script=SCRIPT, **env)
    world.ready(*ranks)


def trains(world, *ranks: str, **env) -> None:
    start(world, *ranks, **env)
    world.together(*ranks)


def ends_alike(world, *ranks: str, epochs: int = EPOCHS, steps: int = STEPS) -> dict[str, dict]:
    final = world.finished(*ranks)
    for rank in ranks:
        assert final[rank]["step"] == epochs * steps
        assert final[rank]["lr"] == pytest.approx(0.01 * 0.99**epochs, rel=1e-9), "a schedule missed an epoch"
        for key, value in final[ranks[0]]["model"].items():
            assert torch.allclose(final[rank]["model"][key], value, rtol=0, atol=1e-10), (rank, key)
    assert verify(world.audit).ok
    return final


def test_a_joiner_enters_by_its_first_proposal_if_loops_are_shorter_than_a_report_is_old(world):
    trains(world, "a", "b")
    world.progressed("a", 3 * STEPS)
    past = world.located()
    world.located = lambda: past
    start(world, "c")
    world.progressed("a", 5 * STEPS)
    world.together("a", "b", "c")
    final = ends_alike(world, "a", "b", "c")
    assert not any(rank.of_type("broken") for rank in world.ranks.values()), "a generation broke for the joiner"
    assert not world.ranks["c"].of_type("misplaced")
    assert [epoch for epoch, _ in final["c"]["between"]] == list(range(EPOCHS)), "its script has left out a loop"
    assert len({rank for _, rank in final["c"]["between"]} & {-1, 2}) == 2


def test_the_others_go_on_and_the_joiner_enters_in_the_end_if_code_between_loops_is_slow(world):
    """At its first attempt it is slower than the 0.2 s for which the others wait, then 0.4, 0.8 … s."""
    allow(world, 4)
    trains(world, "a", "b", LONG="1")
    start(world, "c", LONG="1", CATCH_UP="0.2")
    c, attempts, entered = world.ranks["c"], 0, False
    (hold := world.folder / "hold").touch()
    while not entered:
        attempts += 1
        assert attempts <= 5, "it starves"
        world.ready("c")
        over = world.located().loop.end
        allow(world, over + 1)
        world.wait("the loop in which it waits to be over", lambda end=over: world.located().loop.end > end)
        world.propose("a", "b", "c")
        allow(world, LONG_EPOCHS * LONG)
        number = world.number
        world.wait(
            "it enters or withdraws",
            lambda n=attempts, g=number: c.has("adopted", generation=g) or c.incarnation == n,
        )
        entered = c.incarnation < attempts
        if not entered:  # it may adopt the next generation too, as one without itself
            allow(world, world.located().step + 2)
            world.together("a", "b")
        hold.unlink(missing_ok=True)  # the others were not stopped by it
    assert attempts > 1
    allow(world, LONG_EPOCHS * LONG)
    ends_alike(world, "a", "b", "c", epochs=LONG_EPOCHS, steps=LONG)
    reports = world.ranks["a"].of_type("report")
    assert {r.progress.goal for r in reports} == {LONG_EPOCHS * LONG}
    assert {r.progress.total_steps for r in reports} <= set(range(LONG, LONG_EPOCHS * LONG + 1, LONG)), "of its loop"


def test_a_waiting_rank_goes_on_to_the_loop_that_its_agent_names(world):
    start(world, "a")
    world.ranks["a"].send(m.Located(step=4 * STEPS, training=True, loop=LoopId(5 * STEPS)))
    world.wait("it waits in that loop", lambda: world.ranks["a"].has("ready", loop=LoopId(5 * STEPS)))
    assert world.ranks["a"].of_type("ready")[0].loop == LoopId(STEPS)


def test_a_script_fails_if_it_has_no_loop_that_the_job_is_in(world):
    start(world, "a", EPOCHS="4")
    world.ranks["a"].send(m.Located(step=4 * STEPS, training=True, loop=LoopId(5 * STEPS)))
    eventually(lambda: world.ranks["a"].process.poll() == 1, 60, "it fails")
    assert f"the job is in a loop up to step {5 * STEPS}: all workers must run the same script" in (
        world.ranks["a"].log.read_text()
    )
    assert not world.ranks["a"].of_type("finished"), "the job would end"


def catching_up(world) -> None:
    """a and b wait in the entry of a generation for c, whose script is between two of its loops and stays there until
    the file ``hold`` is gone."""
    trains(world, "a", "b")
    world.progressed("a", 3 * STEPS)
    past = world.located()
    world.located = lambda: past
    start(world, "c")
    world.progressed("a", 5 * STEPS)
    (world.folder / "hold").touch()
    world.propose("a", "b", "c")
    world.wait("c's script to be between two loops", (world.folder / "held").exists)


@pytest.mark.nightly
def test_the_others_go_on_if_a_joiner_is_killed_while_it_catches_up(world):
    catching_up(world)
    world.ranks["c"].kill()
    broke = {"generation": world.number}
    world.wait("a and b to leave its generation", lambda: all(world.ranks[r].has("broken", **broke) for r in "ab"))
    world.together("a", "b")
    ends_alike(world, "a", "b")


def test_a_joiner_enters_with_the_survivor_if_another_is_killed_while_it_catches_up(world):
    catching_up(world)
    world.ranks["b"].kill()
    for rank in "ac":
        world.ranks[rank].send(m.Abort(generation=world.number, reason="worker b is lost"))
    world.wait("a to leave its generation", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.propose("a", "c")
    (world.folder / "hold").unlink()
    world.adopted("a", "c")
    assert not world.ranks["c"].incarnation, "it has withdrawn"
    final = ends_alike(world, "a", "c")
    assert [epoch for epoch, _ in final["c"]["between"]] == list(range(EPOCHS)), "its script has left out a loop"


@pytest.mark.nightly
def test_the_others_go_on_at_once_and_it_leaves_if_a_joiner_is_told_to_exit_while_it_catches_up(world):
    catching_up(world)
    world.propose("a", "b")
    world.ranks["c"].send(m.Exit(reason="SIGTERM"))
    world.adopted("a", "b")
    assert (world.folder / "hold").exists(), "they did not wait for the code between its loops"
    (world.folder / "hold").unlink()
    world.wait("c to leave", lambda: world.ranks["c"].has("left") and world.ranks["c"].process.poll() == 0)
    assert not world.ranks["c"].of_type("finished")
    ends_alike(world, "a", "b")
