"""Ranks under a scripted leader: real processes, real gloo, planned and unplanned changes."""

import re
import signal

import torch

from conditions import eventually
from elastrain.agent.core.endings import error_line
from elastrain.api import messages as m
from elastrain.api.settings import CheckpointSpec
from elastrain_audit.judge import verify

PATIENCE = 60.0
"""Seconds."""


def assert_same_parameters(a: dict, b: dict, tolerance: float = 1e-5) -> None:
    for name, value in a["model"].items():
        assert torch.allclose(value, b["model"][name], rtol=0, atol=tolerance), name


def test_parameters_equal_the_fixed_size_run_if_the_world_grows_shrinks_and_loses_a_rank(
    world, tmp_path_factory
) -> None:
    fixed = type(world)(tmp_path_factory.mktemp("fixed"), world.warm)
    fixed.start("f0")
    fixed.ready("f0")
    fixed.propose("f0")
    expected = fixed.finished("f0")["f0"]

    world.start("a", "b")
    world.ready("a", "b")
    world.together("a", "b")
    world.start("c")
    world.ready("c")
    world.together("a", "b", "c")
    world.start("d")
    world.ready("d")
    world.together("a", "b", "c", "d")
    world.propose("a", "b")
    world.adopted("a", "b", "c", "d")
    for leaver in ("c", "d"):
        world.ranks[leaver].send(m.Exit(reason="drained"))
    world.wait("leavers have left", lambda: all(world.ranks[r].process.poll() == 0 for r in "cd"))
    assert all(world.ranks[r].of_type("left") for r in "cd")
    world.ranks["b"].kill()
    world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
    world.together("a")
    final = world.finished("a")["a"]

    assert_same_parameters(final, expected)
    assert final["lr"] == expected["lr"], "the scheduler saw another number of steps"
    assert final["commits"] == list(range(1, final["step"] + 1)), "a committed step was lost or redone"
    assert final["beside"] == ["elastrain_torchrun"], "torch loads the entry point; other packages are no rank's"
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems
    assert (verdict.epochs, verdict.redone) == (20, 0)
    assert verdict.pids["a"] == (world.ranks["a"].process.pid,), "the survivor's process changed"


def test_all_ranks_end_with_the_same_step_if_one_asks_to_stop(world) -> None:
    world.start("a", "b", "c")
    world.ready("a", "b", "c")
    world.together("a", "b", "c")
    world.progressed("a", 3)
    (world.folder / "stop-2").touch()
    world.wait("all end", lambda: all(r.process.poll() == 0 for r in world.ranks.values()))
    ends = world.finished("a", "b", "c")
    (step,) = {end["step"] for end in ends.values()}
    assert 3 < step < 20 * 21
    assert all(end["commits"] == [*range(1, step + 1)] for end in ends.values())
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems


def test_survivors_continue_at_once_if_a_silent_peer_is_declared_lost(world) -> None:
    world.start("a", "b", "c", epochs=8)
    world.ready("a", "b", "c")
    lost = world.propose("a", "b", "c")
    world.adopted("a", "b", "c")
    world.ranks["c"].kill(signal.SIGSTOP)
    for survivor in "ab":
        world.ranks[survivor].send(m.Abort(generation=lost, reason="c is lost"))
    world.wait("both report it", lambda: all(world.ranks[r].has("broken", generation=lost) for r in "ab"))
    world.propose("a", "b")
    world.finished("a", "b")
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems


def test_survivors_are_unaffected_if_a_joiner_dies_while_it_prepares(world) -> None:
    world.start("a", "b", "j", epochs=8)
    world.ready("a", "b", "j")
    world.together("a", "b")
    world.ranks["j"].kill(signal.SIGSTOP)
    world.propose("a", "b", "j")
    world.ranks["j"].kill()
    world.progressed("a", 10)
    world.together("a", "b")
    world.finished("a", "b")
    assert not world.ranks["a"].of_type("broken")
    assert verify(world.audit).ok


def test_job_resumes_in_another_world_size_if_every_rank_was_killed(world) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"), every_steps=5)
    world.start("a", "b", epochs=6, checkpoint=spec)
    world.ready("a", "b")
    world.propose("a", "b")
    world.wait("a checkpoint", lambda: any(r.progress.checkpoint for r in world.ranks["a"].of_type("report")))
    for r in "ab":
        world.ranks[r].kill()
        world.ranks[r].process.wait(10)
    world.start("x", "y", "z", epochs=6, checkpoint=spec)
    world.ready("x", "y", "z")
    world.propose("x", "y", "z")
    final = world.finished("x", "y", "z")
    assert final["x"]["commits"][0] > 5, "it began from the start"
    (rescale,) = (r for x in world.ranks["x"].of_type("report")[-1:] for r in x.progress.rescales[-1:])
    assert rescale.from_size == 0
    assert rescale.lost_steps == max(r.reached for r in world.ranks.values()) - rescale.step, (
        "lost steps are not reported"
    )
    assert_same_parameters(final["x"], final["y"], tolerance=0)
    verdict = verify(world.audit)
    assert verdict.ok, verdict.problems


def test_state_is_saved_if_all_ranks_are_drained(world) -> None:
    spec = CheckpointSpec(path=str(world.folder / "checkpoints"))
    world.start("a", "b", checkpoint=spec)
    world.ready("a", "b")
    world.propose("a", "b")
    world.progressed("a", 3)
    world.propose(reason="Stop")
    world.adopted("a", "b")
    steps = {r: world.ranks[r].of_type("adopted")[-1].step for r in "ab"}
    assert steps["a"] == steps["b"], "they stopped at different steps"
    for r in "ab":
        world.ranks[r].send(m.Exit(reason="drained"))
    world.wait("both leave", lambda: all(world.ranks[r].process.poll() == 0 for r in "ab"))
    assert (world.folder / "checkpoints" / f"step-{steps['a']:09d}").is_dir()
    assert not list(world.folder.glob("final-*")), "code after the loop ran on a drained rank"


def test_the_job_fails_with_both_ranks_and_steps_if_one_leaves_its_loop_before_the_others(world) -> None:
    world.start("a", "b", "c")
    world.ready("a", "b", "c")
    world.together("a", "b", "c")
    world.progressed("a", 2)
    (world.folder / "break-2").touch()
    failed = lambda: [r for r in world.ranks.values() if r.process.poll() == 1]  # noqa: E731
    eventually(failed, PATIENCE, "a rank fails for good")
    text = error_line(failed()[0].log.read_text())
    told = r"rank 2 ends its script after step (\d+) while rank [01] computes step (\d+) .*: leave the loop by job.stop"
    steps = re.search(told, text)
    assert steps, text
    assert int(steps[2]) == int(steps[1]) + 1
