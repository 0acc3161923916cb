"""All tiers of one job: a volume and an object store."""

from __future__ import annotations

import errno
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conditions import eventually
from elastrain.elastic.checkpoint import CheckpointKeeper, levels_of, rules, tier_at
from elastrain.elastic.checkpoint.rules import due
from elastrain_resource.job import CheckpointSpec
from object_servers import S3, SECRET, Azure, ObjectServer

NOTHING_KNOWN: dict[str, Any] = {"saved_step": 0, "reached": 0, "partial_state": ""}
UPLOAD = """
import sys, torch
from elastrain.elastic.checkpoint import tier_at
tier = tier_at(sys.argv[1], 2)
tier.save({"w": torch.zeros(60_000_000)}, step=7, generation=1, lineage=tier.lineage)
"""


def tree(step: int) -> dict[str, Any]:
    return {"w": torch.arange(3_000.0) + step}


@pytest.fixture
def bucket() -> str:
    return f"memory://{uuid.uuid4().hex}"


# ---- all tiers of a job ----------------------------------------------------------------------------------------------
class Job:
    """The starts of one job with two tiers."""

    def __init__(self, folder: Path, archive: str, interval: dict[str, int] | None = None) -> None:
        self.volume, self.archive = folder / "volume", archive
        self.spec = CheckpointSpec.model_validate(
            {
                "path": str(self.volume),
                "everySteps": 20,
                "archive": {"path": archive, **(interval or {})},
            }
        )
        self.step = 0

    def start(self, **known: Any) -> int | None:
        """Returns the step that it resumed from."""
        self.keeper = CheckpointKeeper(levels_of(self.spec))
        loaded: list[Any] = []
        self.keeper.resume(loaded.append, **{**NOTHING_KNOWN, **known})
        return int(loaded[0]["w"][0]) if loaded else None

    def train(self, until: int) -> None:
        for step in range(self.step + 1, until + 1):
            self.keeper.after_step(step, 1, lambda step=step: tree(step))
            self.keeper.finish(30)
        self.step = until

    def steps(self) -> list[list[int]]:
        return [[c.step for c in level.tier.complete()] for level in self.keeper._levels]


@pytest.fixture
def job(tmp_path, bucket) -> Job:
    job = Job(tmp_path, f"{bucket}/job")
    assert job.start() is None
    return job


def test_each_tier_has_the_checkpoints_of_its_interval(job) -> None:
    job.train(47)
    assert job.steps() == [[40, 20], [40, 20]]
    assert (job.keeper.result.step, job.keeper.result.archived_step) == (40, 40)


def test_archive_has_an_interval_and_a_number_of_its_own(tmp_path, bucket) -> None:
    job = Job(tmp_path, f"{bucket}/job", interval={"everySteps": 40, "keep": 3})
    job.start()
    job.train(125)
    assert job.steps() == [[120, 100], [120, 80, 40]]


def test_job_resumes_from_the_newest_that_is_left_and_says_which(job) -> None:
    job.train(47)
    assert job.start(saved_step=40) == 40
    assert job.keeper.result.resumed.tier == "volume"
    shutil.rmtree(job.volume)
    job.volume.mkdir()
    assert job.start(saved_step=40) == 40
    assert job.keeper.result.resumed.tier == "object store"
    assert job.keeper.result.resumed.path.startswith(job.archive)
    assert [level.tier.lineage for level in job.keeper._levels] == [job.keeper.lineage] * 2
    assert job.keeper.lineage.startswith("3-"), "the lost volume began with a number that was used before"


def test_damaged_copies_are_passed_over_from_the_fastest_tier_to_the_next(job) -> None:
    job.train(47)
    for file in job.volume.glob("step-*/*.distcp"):
        file.write_bytes(file.read_bytes()[:50])
    assert job.start(saved_step=40) == 40
    assert job.keeper.result.resumed.tier == "object store"
    assert job.keeper.result.path.startswith(job.archive), "the status names what can be read"


def test_training_goes_on_and_says_so_while_the_archive_is_away(job, monkeypatch) -> None:
    archive = job.keeper._levels[1].tier

    def away(path: str) -> Any:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused", path)

    with monkeypatch.context() as patched:
        patched.setattr(archive._store, "create", away)
        job.train(27)
        assert "saving step 20" in job.keeper.result.archive_error
        assert (job.keeper.result.step, job.keeper.result.error) == (20, "")
    job.train(47)
    assert job.keeper.result.archive_error == ""
    assert job.steps() == [[40, 20], [40]]


def test_training_does_not_begin_at_step_0_if_the_archive_cannot_be_asked(job, monkeypatch) -> None:
    job.train(47)
    shutil.rmtree(job.volume)
    monkeypatch.setattr(
        "elastrain.elastic.checkpoint.objects.ObjectStore.listing",
        lambda self: (_ for _ in ()).throw(OSError(errno.ECONNREFUSED, "refused", self.where)),
    )
    with pytest.raises(RuntimeError, match=f"cannot resume: .*{job.archive}.*refused"):
        job.start()


def test_a_drain_saves_to_the_volume_first_and_then_to_the_archive(job) -> None:
    job.train(3)
    assert job.keeper.save_now(3, 1, lambda: tree(3))
    assert job.steps() == [[3], [3]]


# ---- servers of object stores ----------------------------------------------------------------------------------------
@pytest.fixture(params=[S3, Azure], ids=["S3", "Azure"])
def server(request, tmp_path, monkeypatch) -> Iterator[ObjectServer]:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'elastrain[objects]'")
    request.param.require()
    server = request.param(tmp_path / "store")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    server.make_bucket()
    yield server
    server.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("server", [S3], ids=["S3"], indirect=True)
def test_nothing_of_an_upload_that_was_killed_is_taken_and_the_next_save_is_complete(server) -> None:
    tier = tier_at(server.url, 2)
    lineage = tier.begin_lineage(None)
    tier.save(tree(5), step=5, generation=1, lineage=lineage)
    writer = subprocess.Popen([sys.executable, "-c", UPLOAD, tier.where])
    eventually(lambda: server.parts() or writer.poll() is not None, what="an upload is under way", within=90)
    writer.send_signal(signal.SIGKILL)
    assert writer.wait(10) == -signal.SIGKILL
    assert [c.step for c in tier.complete()] == [5]
    tier.save(tree(8), step=8, generation=1, lineage=lineage)
    assert [c.step for c in tier.complete()] == [8, 5]
    assert tier._store.listing().partial == []
    assert torch.equal(tier.load(tier.complete()[0])["w"], tree(8)["w"])


@pytest.mark.nightly
def test_training_goes_on_and_says_so_while_the_server_is_down(server) -> None:
    keeper = CheckpointKeeper(levels_of(CheckpointSpec(path=server.url, every_steps=1)))
    keeper.resume(lambda _: None, **NOTHING_KNOWN)
    server.stop()
    keeper.after_step(5, 1, lambda: tree(5))
    keeper.finish(90)
    assert keeper.result.error.startswith(f"saving step 5 to {server.url}")
    assert SECRET not in keeper.result.error
    server.start()
    keeper.after_step(6, 1, lambda: tree(6))
    keeper.finish(60)
    assert (keeper.result.step, keeper.result.error) == (6, "")


# ---- the decisions ---------------------------------------------------------------------------------------------------
CHECKPOINTS = st.builds(
    lambda step, lineage: rules.Checkpoint(step, 1, f"{lineage}-0123456789ab", f"/c/{step}.{lineage}"),
    st.integers(0, 9),
    st.integers(1, 3),
)


@given(st.lists(st.lists(CHECKPOINTS, max_size=4), min_size=1, max_size=3))
def test_every_checkpoint_is_tried_from_the_newest_of_the_fastest_tier(found) -> None:
    tried = rules.candidates(found)
    assert len(tried) == sum(map(len, found))
    keys = [(-way.order[0], -way.order[1], tier) for tier, way in tried]
    assert keys == sorted(keys)


@given(st.lists(CHECKPOINTS, min_size=1, unique=True), st.integers(1, 3))
def test_the_newest_and_the_one_just_written_are_never_deleted(complete, keep) -> None:
    saved = complete[0]
    deleted = rules.surplus(complete, keep, saved)
    assert saved not in deleted
    assert max(complete, key=lambda c: c.order) not in deleted
    assert len(complete) - len(deleted) <= keep + 1


steps = st.integers(0, 1000)


@given(steps, steps, st.integers(1, 50))
def test_a_save_is_due_in_every_interval_of_steps(step, saved, every) -> None:
    is_due = due(every, None, step=step, saved_step=saved, now=0, saved_at=0)
    crossed = any(s % every == 0 for s in range(saved + 1, step + 1))
    assert is_due == crossed


@given(steps, st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_save_is_due_if_only_drains_are_saved_or_nothing_is_new(step, now, at) -> None:
    assert not due(None, None, step=step, saved_step=0, now=now, saved_at=at)
    assert not due(None, 1, step=step, saved_step=step, now=now, saved_at=at)
