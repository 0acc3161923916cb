"""Tiers of checkpoints: a volume, an object store."""

from __future__ import annotations

import errno
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

from elastrain.api.job import CheckpointSpec
from elastrain.elastic.checkpoint import CheckpointKeeper, Pace, StaleLineage, Tier, levels_of, rules, tier_at
from elastrain.elastic.checkpoint.digests import PIECE_BYTES

NOTHING_KNOWN: dict[str, Any] = {"saved_step": 0, "reached": 0, "partial_state": ""}
WEIGHTS = torch.arange(9.0)


def tree(step: int) -> dict[str, Any]:
    return {"w": WEIGHTS + step}


@pytest.fixture
def bucket() -> Iterator[str]:
    """The URL of an object store in this process."""
    url = f"memory://{uuid.uuid4().hex}"
    yield url
    fsspec.filesystem("memory").rm(url, recursive=True) if fsspec.filesystem("memory").exists(url) else None


@pytest.fixture(params=["directory", "objects"])
def tier(request, tmp_path, bucket) -> Tier:
    return tier_at(str(tmp_path / "c") if request.param == "directory" else f"{bucket}/c", 2)


def files(tier: Tier) -> list[str]:
    if tier.name == "volume":
        return sorted(str(p.relative_to(tier.where)) for p in Path(tier.where).rglob("*") if p.is_file())
    fs, root = fsspec.url_to_fs(tier.where)
    return sorted(path[len(root) + 1 :] for path in fs.find(root))


def change(tier: Tier, pattern: str, how: Any) -> None:
    """Replace the bytes of the files whose name ends so."""
    for name in files(tier):
        if name.endswith(pattern):
            with fsspec.open(f"{tier.where}/{name}", "rb") as file:
                data = file.read()
            with fsspec.open(f"{tier.where}/{name}", "wb") as file:
                file.write(how(data))


# ---- one tier --------------------------------------------------------------------------------------------------------
def test_the_newest_are_kept_and_loaded_in_every_kind_of_tier(tier) -> None:
    lineage = tier.begin_lineage(tier.lineage)
    for step in (5, 10, 15):
        tier.save(tree(step), step=step, generation=1, lineage=lineage)
    assert [c.step for c in tier.complete()] == [15, 10]
    assert torch.equal(tier.load(tier.complete()[0])["w"], WEIGHTS + 15)
    assert len({name.split("/")[0] for name in files(tier)}) == 3, "LINEAGE and two folders"


def test_plain_torch_loads_a_checkpoint_of_every_kind_of_tier(tier) -> None:
    saved = tier.save(tree(5), step=5, generation=1, lineage=tier.begin_lineage(None))
    reader = dcp.FileSystemReader(saved.path) if tier.name == "volume" else FsspecReader(saved.path)
    found = {"w": torch.zeros(9)}
    dcp.load(found, storage_reader=reader, no_dist=True)
    assert torch.equal(found["w"], WEIGHTS + 5)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "digest differs"),
        (lambda data: data[:-7], "cut off"),
        (lambda data: b"", "cut off"),
    ],
    ids=["one bit", "cut off", "empty"],
)
def test_a_changed_file_is_an_error_and_never_loaded(tier, how, words) -> None:
    saved = tier.save(tree(5), step=5, generation=1, lineage=tier.begin_lineage(None))
    change(tier, ".distcp", how)
    with pytest.raises(OSError, match=words):
        tier.load(saved)


def test_what_a_killed_writer_left_is_not_complete_and_the_next_save_deletes_it(tier) -> None:
    class Killed(BaseException):
        pass

    class KilledInTheMiddle(Pace):
        def rest(self) -> None:
            raise Killed

    lineage = tier.begin_lineage(tier.lineage)
    tier.save(tree(5), step=5, generation=1, lineage=lineage)
    discard, tier._store.discard = tier._store.discard, lambda partial: None
    with pytest.raises(BaseException):  # noqa: B017 - DCP wraps it
        tier.save(tree(6), step=6, generation=1, lineage=lineage, pace=KilledInTheMiddle())
    tier._store.discard = discard
    left = {name.split("/")[0] for name in files(tier)}
    assert [c.step for c in tier.complete()] == [5]
    tier.save(tree(7), step=7, generation=1, lineage=lineage)
    assert [c.step for c in tier.complete()] == [7, 5]
    assert not [name for name in files(tier) if "step-000000006" in name], left


def test_a_slow_writer_publishes_nothing_if_a_later_save_has_swept_its_files(bucket) -> None:
    tier = tier_at(f"{bucket}/c", 2)
    lineage = tier.begin_lineage(None)

    def sweep_late(partial: str, checkpoint: Any) -> str:
        """The files are deleted between the writer's last look and its description."""
        replace = tier._store.replace

        def replaced(path: str, text: str) -> None:
            tier._store.delete(partial)
            replace(path, text)

        tier._store.replace = replaced
        try:
            return publish(partial, checkpoint)
        finally:
            tier._store.replace = replace

    publish, tier._store.publish = tier._store.publish, sweep_late
    with pytest.raises(FileNotFoundError, match="was deleted while it was written"):
        tier.save(tree(5), step=5, generation=1, lineage=lineage)
    assert tier.complete() == []
    assert files(tier) == ["LINEAGE"]


def test_a_later_start_takes_over_and_an_earlier_one_is_refused(tier) -> None:
    first = tier.begin_lineage(None)
    tier.save(tree(5), step=5, generation=1, lineage="2-0123456789ab")  # it began while this tier was away
    assert tier.lineage == "2-0123456789ab"
    with pytest.raises(StaleLineage):
        tier.save(tree(9), step=9, generation=1, lineage=first)


def test_pieces_larger_than_memory_allows_are_verified_one_by_one(tier) -> None:
    large = {"w": torch.arange(PIECE_BYTES // 4 * 3, dtype=torch.float32)}
    saved = tier.save(large, step=5, generation=1, lineage=tier.begin_lineage(None))
    assert torch.equal(tier.load(saved)["w"], large["w"])


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
    change(job.keeper._levels[0].tier, ".distcp", lambda data: data[:50])
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
        assert "copying step 20" in job.keeper.result.archive_error
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


def test_a_checkpoint_stays_while_it_is_copied(job) -> None:
    volume, archive = (level.tier for level in job.keeper._levels)
    lineage = job.keeper.lineage
    first = volume.save(tree(5), step=5, generation=1, lineage=lineage)

    class Later(Pace):
        def rest(self) -> None:
            for step in (10, 15):
                volume.save(tree(step), step=step, generation=1, lineage=lineage)

    archive.copy(first, volume, Later())
    assert [c.step for c in archive.complete()] == [5]
    assert [c.step for c in volume.complete()] == [15, 10, 5]


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
