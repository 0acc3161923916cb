"""No rank holds state: what a job resumes from, and when it must not begin anew."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.checkpoint import CheckpointKeeper, Level, tier_at
from elastrain.elastic.checkpoint.rules import Evidence, why_stop
from elastrain_resource.job import CheckpointSpec

NOTHING_KNOWN = {"saved_step": 0, "reached": 0, "partial_state": ""}
LOST = "the last workers that held it were lost while this one was receiving it"
"""As of :attr:`Handover.partial_state`."""
DAMAGED = (("step-000000200", "no such\n file"),)

BEGIN = None
UNREADABLE = "no checkpoint in /c can be read"


@pytest.mark.parametrize(
    ("path", "used", "unreadable", "saved_step", "reached", "partial_state", "outcome"),
    [
        # Without spec.checkpoint the state exists as long as one worker does.
        (None, False, (), 0, 0, "", BEGIN),
        (None, False, (), 0, 300, "", BEGIN),
        (None, False, (), 0, 300, LOST, "while this one was receiving it.* set spec.checkpoint"),
        (None, False, (), 200, 300, "", "spec.checkpoint is not set. The job had reached step 300, .* step 200 was"),
        # No checkpoint was completed.
        ("/c", False, (), 0, 0, "", BEGIN),  # the first start
        ("/c", True, (), 0, 0, "", BEGIN),  # all workers of the first start were lost before a step
        ("/c", True, (), 0, 3, "", BEGIN),  # ... before one was due
        ("/c", False, (), 0, 3, "", BEGIN),  # spec.checkpoint, or its path, is new
        ("/c", True, (), 0, 3, LOST, "while this one was receiving it.* none was completed in /c"),
        # One was completed, by the job's records or by the directory.
        ("/c", False, (), 200, 300, "", r"/c was never used \(is its volume mounted\?\). .* step 300, .* step 200"),
        ("/c", True, (), 200, 300, "", "/c holds no checkpoint. .* Restore the volume; or, to begin at step 0"),
        ("/c", True, (), 200, 300, LOST, "/c holds no checkpoint"),
        ("/c", True, (), 200, 0, "", "had reached step 200"),
        ("/c", True, DAMAGED, 200, 300, "", rf"{UNREADABLE}. .* Tried: step-000000200 \(no such file\)$"),
        ("/c", True, DAMAGED, 0, 0, "", f"{UNREADABLE}. Restore the volume"),  # a new job, or etcd lost its data
        ("/c", False, DAMAGED, 0, 0, "", UNREADABLE),  # ... and LINEAGE is gone
        ("/c", True, DAMAGED * 5, 0, 0, LOST, "and 2 more$"),
    ],
)
def test_training_begins_at_step_0_only_if_no_checkpoint_was_ever_completed(
    path, used, unreadable, saved_step, reached, partial_state, outcome
) -> None:
    why = why_stop(Evidence(path, used, unreadable, saved_step, reached, partial_state))
    assert (why is BEGIN) if outcome is BEGIN else re.search(outcome, why or ""), why


def test_the_error_fits_into_a_condition_whatever_could_not_be_read() -> None:
    known = Evidence(
        "/checkpoints/of/a/job", True, (("step-000000200", "x" * 999),) * 99, 12_000_000, 12_000_000, False
    )
    assert len(why_stop(known) or "") < 600


# ---- on a volume ----------------------------------------------------------------------------------------------------
class OneFile:
    """A format that writes no tensors: the test looks at directories only."""

    @staticmethod
    def write(state: Any, create: Any, pace: Any, writers: Any, *, syncs: bool, where: str) -> None:
        with create("state") as file:
            file.write(str(state).encode())

    @staticmethod
    def finish(parts: Any, create: Any, *, syncs: bool, where: str) -> None:
        """Nothing to add."""

    @staticmethod
    def load(opened: Any, where: str, cut: Any) -> str:
        with opened("state") as file:
            return file.read().decode()


class Starts:
    """The starts of one job, each with a keeper of its own."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep
        self.loaded: str | None = None

    def start(self, **known: Any) -> None:
        self.volume = tier_at(str(self.path), self.keep)
        self.volume._format = OneFile
        self.keeper = CheckpointKeeper([Level(self.volume, CheckpointSpec(path=str(self.path)))])
        self.loaded = None
        self.keeper.resume(lambda tree: setattr(self, "loaded", tree), **{**NOTHING_KNOWN, **known})

    def save(self, *steps: int) -> None:
        for step in steps:
            assert self.keeper.save_now(step, 1, lambda step=step: f"{step} of {self.keeper.lineage}")
            assert self.keeper.result.error == ""
            assert Path(self.keeper.result.path).is_dir(), "the status names a checkpoint that is not there"

    def damage(self, *steps: int) -> None:
        for step in steps:
            (self.path / f"step-{step:09d}" / "state").unlink()

    @property
    def steps(self) -> list[int]:
        return [c.step for c in self.volume.complete()]


@pytest.fixture
def job(tmp_path: Path) -> Starts:
    job = Starts(tmp_path / "checkpoints")
    job.start()
    return job


def test_the_checkpoint_just_written_stays_if_later_steps_of_an_earlier_start_cannot_be_read(job) -> None:
    job.keep = 3
    job.start()
    job.save(500, 600, 700)
    job.damage(600, 700)
    job.keep = 2
    job.start()
    assert job.loaded.startswith("500 of 2-")
    job.save(510)
    assert job.steps == [510, 500], "fewer readable ones than there could be"
    job.save(520, 530)
    assert job.steps == [530, 520]


def test_the_newest_start_goes_on_if_an_earlier_one_had_reached_a_later_step(job) -> None:
    job.save(500, 600)
    job.damage(600)
    away = job.path / "step-000000600"
    away.rename(job.path.parent / "away")
    job.start()
    job.save(510)
    (job.path.parent / "away").rename(away)  # it comes back, for instance from a mount that was missing
    (away / "state").write_text("600 of 1")
    job.start()
    assert job.loaded.startswith("510 of 2-")


def test_what_cannot_be_read_stays_to_be_looked_at_but_not_without_bound(job) -> None:
    job.save(100, 200)
    for step in (200, 201, 202):
        job.damage(step)
        job.start()
        assert list(job.path.glob(f"unreadable-step-{step:09d}.*"))
        job.save(step + 1)
    assert sorted(p.name[:25] for p in job.path.glob("unreadable-*")) == [
        "unreadable-step-000000201",
        "unreadable-step-000000202",
    ]


def test_a_checkpoint_without_its_description_is_set_aside_and_what_is_not_ours_stays(job) -> None:
    job.save(100, 200)
    (job.path / "step-000000200" / "elastrain.json").write_text("{")
    (job.path / "step-best").mkdir()
    (job.path / "step-000000300").write_text("a file")
    job.start()
    assert job.loaded.startswith("100 of 1-")
    assert sorted(p.name[:25] for p in job.path.iterdir()) == [
        "LINEAGE", "step-000000100", "step-000000300", "step-best", "unreadable-step-000000200",
    ]  # fmt: skip


def test_training_stops_and_nothing_is_touched_if_no_checkpoint_can_be_read(job) -> None:
    job.save(100, 200)
    job.damage(100, 200)
    before = {p: p.stat().st_mtime_ns for p in (job.path, *job.path.rglob("*"))}
    with pytest.raises(RuntimeError, match=r"step-000000200 \(FileNotFoundError.*step-000000100 \(FileNotFoundError"):
        job.start(saved_step=200, reached=230)
    assert before == {p: p.stat().st_mtime_ns for p in (job.path, *job.path.rglob("*"))}


def test_training_stops_and_the_empty_mount_point_stays_empty_if_the_volume_is_not_mounted(job) -> None:
    job.save(100)
    shutil.rmtree(job.path)
    job.path.mkdir()
    with pytest.raises(RuntimeError, match=f"{job.path} was never used"):
        job.start(saved_step=100, reached=130)
    assert not list(job.path.iterdir())


def test_status_names_the_checkpoint_from_the_start_if_the_job_resumed_from_it(job) -> None:
    job.save(100)
    job.start()
    assert (job.keeper.result.step, job.keeper.result.path) == (100, str(job.path / "step-000000100"))


def test_status_names_the_newest_checkpoint_if_another_rank_becomes_rank_0(job) -> None:
    job.save(100, 200)
    survivor = CheckpointKeeper([Level(job.volume, CheckpointSpec(path=str(job.path)))])
    survivor.take_over()
    survivor._levels[0].join(30)
    assert survivor.result == job.keeper.result


# ---- any history ----------------------------------------------------------------------------------------------------
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.integers(1, 3)),  # so many steps later
        st.tuples(st.just("damage"), st.integers(0, 2)),  # the newest, the one before it, ...
        st.tuples(st.just("lose all workers"), st.just(0)),
    ),
    max_size=20,
)


@given(EVENTS, st.integers(1, 3))
def test_the_newest_readable_checkpoint_is_loaded_whatever_was_damaged(tmp_path_factory, events, keep) -> None:
    job = Starts(tmp_path_factory.mktemp("job") / "c", keep)
    job.start()
    step, saved_step = 0, 0
    readable: list[tuple[str, int]] = []  # lineage and step, in the order in which they were saved
    for what, number in events:
        if what == "save":
            before, step = len(job.steps), step + number
            job.save(step)
            saved_step = step
            readable.append((job.keeper.lineage, step))
            there = [(c.lineage, c.step) for c in job.volume.complete()]
            assert len(there) == min(keep, before + 1)
            assert there[0] == readable[-1], "the newest is not the one just written"
            readable = [r for r in readable if r in there]
        elif what == "damage" and number < len(readable):
            job.damage(readable.pop(-1 - number)[1])
        elif what == "lose all workers" and saved_step and not readable:
            with pytest.raises(RuntimeError, match="cannot resume"):
                job.start(saved_step=saved_step, reached=step)
            return
        elif what == "lose all workers":
            job.start(saved_step=saved_step, reached=step)
            lineage, step = readable[-1] if readable else ("", 0)
            assert job.loaded == (f"{step} of {lineage}" if readable else None)
