"""The example of the storm: its weather is a function of the seed, its judge detects violations, and the run passes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import builders
from elastrain.api.records import Progress
from elastrain_cli.local.status import LocalStatus, WorkerStatus

EXAMPLE = Path(__file__).parents[3] / "examples" / "02-storm"


@pytest.fixture(scope="module", autouse=True)
def example() -> Iterator[None]:
    """The example's modules, importable as when ``storm.py`` runs."""
    sys.path.insert(0, str(EXAMPLE))
    yield
    sys.path.remove(str(EXAMPLE))


@pytest.fixture(scope="module")
def weather(example) -> ModuleType:
    import weather

    return weather


@pytest.fixture(scope="module")
def proof(example) -> ModuleType:
    import proof

    return proof


# ---- the weather -----------------------------------------------------------------------------------------------------
@given(seed=st.integers(0, 2**32), count=st.integers(0, 100), steps=st.integers(20, 1000))
def test_desired_size_stays_in_its_range_for_any_seed(weather, seed, count, steps):
    events = weather.forecast(seed, count, steps, smallest=1, largest=4, first=2)
    assert len(events) == count
    assert events == weather.forecast(seed, count, steps, smallest=1, largest=4, first=2)
    assert [e.due for e in events] == sorted(e.due for e in events)
    wanted = 2
    for event in events:
        assert steps // 10 <= event.due < steps - steps // 10
        if event.kind in (weather.Kind.KILL_RANK, weather.Kind.KILL_WORKER):
            assert wanted > 1, "no worker would be left"
        wanted += {weather.Kind.JOIN: 1, weather.Kind.LEAVE: -1}.get(event.kind, 0)
        assert 1 <= wanted <= 4


def test_every_kind_happens_if_the_storm_is_long(weather):
    events = weather.forecast(1, 50, 600, smallest=1, largest=4, first=2)
    assert {e.kind for e in events} == set(weather.Kind)


@given(start=st.floats(0.5, 60), count=st.integers(50, 100), steps=st.integers(100, 1000))
def test_a_worker_has_time_to_start_between_two_events_on_any_machine(weather, start, count, steps):
    due = [e.due for e in weather.forecast(1, count, steps, smallest=1, largest=4, first=2)]
    between = (due[-1] - due[0]) / (count - 1) * weather.pace(start, count, steps)
    assert start < between < 2 * start


def shown(number: int, *, generation: int = 1, leaving: bool = False, ended: bool = False) -> WorkerStatus:
    name = f"storm-{number}"
    return WorkerStatus(
        name=name, pid=number, phase="ready", member=f"{name}.x", generation=generation, leaving=leaving, ended=ended
    )


def status(*workers: WorkerStatus, inside: int = 9, desired: int = 2, step: int = 50) -> LocalStatus:
    """The first ``inside`` of ``workers`` are members of generation 1."""
    return LocalStatus(
        job="storm",
        phase="Running",
        min=1,
        max=4,
        desired=desired,
        workers=workers,
        generation=builders.generation(1, *(w.member for w in workers[:inside])),
        progress=Progress(generation=1, world_size=2, members=2, step=step),
    )


@pytest.fixture
def kill(weather):
    return weather.Event(weather.Kind.KILL_RANK, 40, 0.5)


@pytest.fixture
def join(weather):
    return weather.Event(weather.Kind.JOIN, 40, 0.5)


def test_a_kill_waits_if_only_one_worker_holds_the_state(weather, kill, join):
    assert weather.may_happen(kill, status(shown(0), shown(1)), weather.Holders())
    for too_few in (
        status(shown(0), shown(1, generation=0)),  # has not adopted it yet
        status(shown(0), shown(1), inside=1),  # a joiner that knows a generation without it
        status(shown(0), shown(1, leaving=True)),
        status(shown(0), shown(1, ended=True)),
    ):
        assert not weather.may_happen(kill, too_few, weather.Holders())
        assert weather.may_happen(join, too_few, weather.Holders())


def test_a_kill_waits_if_the_other_worker_was_killed_just_now(weather, kill):
    holders = weather.Holders()
    both = status(shown(0), shown(1))
    holders.killed("storm-1.x")
    assert [w.name for w in holders.of(both)] == ["storm-0"]
    assert not weather.may_happen(kill, both, holders)


def test_a_worker_holds_the_state_still_if_the_next_generation_is_only_proposed(weather, kill):
    holders = weather.Holders()
    now = status(shown(0), shown(1))
    assert weather.may_happen(kill, now, holders)
    proposed = now.generation.model_copy(update={"number": 2})
    assert weather.may_happen(kill, now.model_copy(update={"generation": proposed}), holders)


def test_no_event_happens_if_a_leave_has_not_reached_its_worker(weather, join):
    assert not weather.may_happen(join, status(shown(0), shown(1), desired=1), weather.Holders())
    assert weather.may_happen(join, status(shown(0), shown(1, leaving=True), desired=1), weather.Holders())


def test_an_event_waits_for_its_step(weather, join):
    assert not weather.may_happen(join, status(shown(0), shown(1), step=39), weather.Holders())


def test_the_storm_knows_the_range_of_its_manifest():
    import storm

    spec = yaml.safe_load((EXAMPLE / "job.yaml").read_text())["spec"]
    assert spec["minReplicas"] < storm.SMALLEST
    assert (spec["maxReplicas"], spec["replicas"]) == (storm.LARGEST, storm.FIRST)


# ---- the proof -------------------------------------------------------------------------------------------------------
def test_a_step_counts_once_if_several_ranks_wrote_it_and_one_was_killed_in_the_middle(proof, tmp_path):
    (tmp_path / "losses.host.1.jsonl").write_text("[1, 2, 5.5]\n[2, 2, 5.25]\n[3, 2, 5.1")
    (tmp_path / "losses.host.2.jsonl").write_text("[2, 2, 5.25]\n[3, 1, 5.0]\n")
    run = proof.Run("run", tmp_path, 3)
    assert run.last_step() == 3
    run.read_losses()
    assert run.losses == {1: 5.5, 2: 5.25, 3: 5.0}
    assert run.worlds == {1: 2, 2: 2, 3: 1}
    assert not run.contradictions


def test_different_losses_of_ranks_are_reported(proof, tmp_path):
    (tmp_path / "losses.host.1.jsonl").write_text("[1, 2, 5.5]\n")
    (tmp_path / "losses.host.2.jsonl").write_text("[1, 2, 5.25]\n")
    run = proof.Run("run", tmp_path, 1)
    run.read_losses()
    assert run.contradictions == ["step 1: loss 5.25 on 2 ranks, or 5.5 on 2"]


def good_run(proof: ModuleType, folder: Path) -> object:
    from elastrain_audit.judge import Verdict

    run = proof.Run("storm", folder, 3, ended="finished", losses={1: 5.0, 2: 4.0, 3: 3.0})
    run.verdict = Verdict(steps=3, epochs=1, samples=9, pids={"storm-0": (10,), "storm-1": (11, 12)})
    run.fired = [proof.Fired(proof.Kind.KILL_RANK, "storm-1", 2)]
    return run


def test_a_run_is_good_if_nothing_is_missing(proof, tmp_path):
    assert all(check.kept for check in proof.alone(good_run(proof, tmp_path)))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda run: run.losses.pop(2), "without a loss: [2]"),
        (lambda run: run.losses.update({4: 1.0}), "without a loss: [4]"),
        (lambda run: run.contradictions.append("step 1: ..."), "ranks disagree in 1 steps"),
        (lambda run: run.fired.clear(), "started again without having been killed: storm-1"),
        (lambda run: setattr(run, "ended", "TimeoutError"), "TimeoutError"),
    ],
)
def test_a_broken_promise_is_named(proof, tmp_path, harm, said):
    run = good_run(proof, tmp_path)
    harm(run)
    (broken,) = [check for check in proof.alone(run) if not check.kept]
    assert said in broken.found


# ---- all of it -------------------------------------------------------------------------------------------------------
@pytest.mark.nightly
@pytest.mark.timeout(600)  # 90 s on an idle machine
def test_the_model_is_that_of_an_undisturbed_run_if_a_storm_hits_the_job(tmp_path):
    picture = tmp_path / "storm.svg"
    run = subprocess.run(
        [
            *(sys.executable, str(EXAMPLE / "storm.py"), "--dtype", "float64", "--no-other-size"),
            *("--events", "6", "--steps", "140", "--step-seconds", "0.2", "--seed", "3"),
            *("--picture", str(picture), "--keep", str(tmp_path / "runs")),
        ],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every promise was kept" in run.stdout
    assert re.search(r"0 lost, 0 repeated", run.stdout)
    assert "through the storm" in picture.read_text() or picture.stat().st_size > 10_000
