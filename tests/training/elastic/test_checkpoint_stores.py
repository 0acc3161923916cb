"""Durable checkpoints in every kind of store: complete or absent, never overwritten by a replaced job, newest first.

A directory and the objects of this process in CI; servers of S3 and of Azure's blobs nightly.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.checkpoint import Checkpoint, CheckpointKeeper, Level, Pace, StaleLineage, Tier, tier_at
from elastrain.elastic.checkpoint.digests import PIECE_BYTES
from elastrain_resource.job import CheckpointSpec
from object_servers import S3, Azure, ObjectServer

WEIGHTS = torch.arange(9.0)
NOTHING_KNOWN: dict[str, Any] = {"saved_step": 0, "reached": 0, "partial_state": ""}
SERVERS = {"S3": S3, "Azure": Azure}


def tree(value: float) -> dict[str, Any]:
    optimizer = {
        "state": {0: {"exp_avg": torch.full((3, 2), float(value))}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
    }
    position = {"step": 7, "rescales": [{"reason": "Grow", "x": None}]}
    return {"tracked": {"optimizer": optimizer}, "position": position, "w": WEIGHTS + value}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def bucket(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    server.start()
    server.make_bucket()
    yield server.url
    server.stop()


@pytest.fixture(params=["directory", "objects", *(pytest.param(s, marks=pytest.mark.nightly) for s in SERVERS)])
def place(request, tmp_path, monkeypatch) -> Iterator[str]:
    """A path or URL."""
    if request.param in SERVERS:
        pytest.importorskip("obstore", reason="obstore is not installed: pip install 'elastrain[objects]'")
        SERVERS[request.param].require()
        yield from bucket(SERVERS[request.param](tmp_path / "store"), monkeypatch)
    else:
        yield str(tmp_path / "c") if request.param == "directory" else f"memory://{uuid.uuid4().hex}/c"


@pytest.fixture
def tier(place) -> Tier:
    return tier_at(place, 2)


@pytest.fixture
def volume(tmp_path) -> Tier:
    return tier_at(str(tmp_path / "c"), 2)


def files(tier: Tier, folder: str = "") -> dict[str, bytes]:
    """By path in the tier."""
    found = tier._store.listing()
    folders = [folder] if folder else [*found.complete, *found.aside, *(p.name for p in found.partial)]
    return {f"{f}/{name}": tier._store.read(f"{f}/{name}") for f in folders for name in tier._store.files(f)}


def save(tier: Tier, *steps: int, lineage: str | None = None, generation: int = 1, **options: Any) -> Any:
    """Of a new lineage, unless ``lineage`` is given. Returns the last one saved."""
    lineage = tier.begin_lineage(tier.lineage) if lineage is None else lineage
    made = [tier.save(tree(s), step=s, generation=generation, lineage=lineage, **options) for s in steps]
    return made[-1]


def steps(tier: Tier) -> list[int]:
    return [c.step for c in tier.complete()]


# ---- what is saved ---------------------------------------------------------------------------------------------------
def test_only_the_newest_are_kept(tier) -> None:
    saved = save(tier, 5, 10, 15)
    assert steps(tier) == [15, 10]
    assert tier.complete()[0] == saved
    assert same(tier.load(saved), tree(15)), "integer keys and tuples too"
    assert len({name.split("/")[0] for name in files(tier)}) == 2


def test_plain_torch_loads_a_checkpoint_of_every_kind_of_tier(tier) -> None:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    saved = save(tier, 5)
    if tier.name != "volume" and not tier.where.startswith("memory:"):
        pytest.skip("fsspec has no credentials for this server")
    reader = dcp.FileSystemReader(saved.path) if tier.name == "volume" else FsspecReader(saved.path)
    found = {"w": torch.zeros(9)}
    dcp.load(found, storage_reader=reader, no_dist=True)
    assert torch.equal(found["w"], WEIGHTS + 5)


def test_save_is_refused_if_the_job_was_restarted(tier) -> None:
    old = tier.begin_lineage(tier.lineage)
    save(tier, 5, generation=4)
    with pytest.raises(StaleLineage, match=old):
        save(tier, 6, lineage=old)
    assert steps(tier) == [5]


def test_save_is_refused_if_the_job_is_restarted_while_it_is_written(tier) -> None:
    class StartedAnew(Pace):
        """The writer rests between two tensors; meanwhile another start of the job takes over the place."""

        def rest(self) -> None:
            tier.begin_lineage(tier.lineage)

    with pytest.raises(StaleLineage):
        save(tier, 5, pace=StartedAnew())
    assert tier.complete() == []


def test_a_start_is_refused_if_another_one_took_the_place_over_while_it_read_its_checkpoint(tier) -> None:
    before = tier.lineage
    later = tier.begin_lineage(before)
    with pytest.raises(StaleLineage, match=later):
        tier.begin_lineage(before)
    assert tier.lineage == later


def test_a_later_start_takes_over_that_began_while_the_place_was_away(tier) -> None:
    first = tier.begin_lineage(None)
    save(tier, 5, lineage="2-0123456789ab")
    assert tier.lineage == "2-0123456789ab"
    with pytest.raises(StaleLineage):
        save(tier, 9, lineage=first)


def test_saving_a_step_twice_keeps_the_first(tier) -> None:
    lineage = tier.begin_lineage(tier.lineage)
    assert save(tier, 5, lineage=lineage) == save(tier, 5, lineage=lineage, generation=2)


def test_checkpoint_of_an_earlier_start_is_superseded_if_the_same_step_is_saved_again(tier) -> None:
    tier.save(tree(1), step=5, generation=1, lineage=tier.begin_lineage(tier.lineage))
    again = tier.save(tree(2), step=5, generation=4, lineage=tier.begin_lineage(tier.lineage))
    newest, earlier = tier.complete()
    assert newest == again
    assert same(tier.load(newest), tree(2))
    assert same(tier.load(earlier), tree(1)), "one less than could be kept"


def test_a_late_save_stays_until_the_next_one_though_later_steps_are_there(tier) -> None:
    lineage = tier.begin_lineage(tier.lineage)
    for step in (10, 20, 5):
        assert save(tier, step, lineage=lineage) in tier.complete()
    save(tier, 30, lineage=lineage)
    assert steps(tier) == [30, 20]


def test_pieces_larger_than_memory_allows_are_verified_one_by_one(tier) -> None:
    large = {"w": torch.arange(PIECE_BYTES // 4 * 3, dtype=torch.float32)}
    saved = tier.save(large, step=5, generation=1, lineage=tier.begin_lineage(None))
    assert torch.equal(tier.load(saved)["w"], large["w"])


# ---- damage ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("pattern", [".metadata", ".distcp"])
@pytest.mark.parametrize("how", ["missing", "cut off", "empty", "one bit"])
def test_a_damaged_file_is_an_os_error(tier, how, pattern) -> None:
    saved = save(tier, 5)
    ((name, content),) = ((n, c) for n, c in files(tier).items() if n.endswith(pattern))
    changed = {"cut off": content[: len(content) // 2], "empty": b""}.get(how, bytes([content[0] ^ 1]) + content[1:])
    if how != "missing":
        tier._store.replace(name, changed)
    elif tier.name == "volume":
        (Path(tier.where) / name).unlink()
    else:
        tier._store._remove(name)
    with pytest.raises(OSError, match=saved.name):
        tier.load(saved)


DEEP = b"[" * 100_000
ODD: list[Any] = [None, -1, 0, 2**70, 1e300, "x", [], {}, [[]], True]


def parts(found: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a value of JSON, and a key of it."""
    for key in found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, key
        yield from parts(found[key])


@st.composite
def damage(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Of the bytes of one file."""
    how, where, odd = (
        draw(st.sampled_from(["cut", "flip", "deep", "odd", "noise"])),
        draw(st.floats(0, 0.999)),
        draw(ODDITY),
    )

    def changed(content: bytes) -> bytes:
        at = int(where * len(content))
        if how == "flip" or (how == "odd" and not content.startswith(b"{")):
            return content[:at] + bytes([content[at] ^ (1 << (at % 8))]) + content[at + 1 :]
        if how == "odd":
            places = list(parts(found := json.loads(content)))
            container, key = places[int(where * len(places))]
            container[key] = odd
            return json.dumps(found).encode()
        return {"cut": content[:at], "deep": DEEP, "noise": b"\xff\x00" * at}[how]

    return changed


ODDITY = st.sampled_from([*ODD, "9" * 5000 + "-0123456789ab"])


@given(damage(), st.integers(0, 9), st.booleans())
def test_the_checkpoint_before_is_loaded_whatever_damaged_a_file_of_the_newest(
    tmp_path_factory, how, number, objects
) -> None:
    folder = tmp_path_factory.mktemp("job")
    tier = tier_at(f"memory:/{folder}" if objects else str(folder), 2)
    newest = save(tier, 5, 8)
    names = [*sorted(files(tier, newest.name)), "LINEAGE"]
    name = names[number % len(names)]
    content = tier._store.read(name)
    tier._store.replace(name, how(content))
    loaded: list[Any] = []
    keeper = CheckpointKeeper([Level(tier, CheckpointSpec(path="/c"))])
    keeper.resume(loaded.append, saved_step=8, reached=9, partial_state="")
    harmless = name == "LINEAGE" or how(content) == content
    assert same(loaded[0], tree(8 if harmless else 5)), name
    assert keeper.save_now(10, 1, lambda: tree(10)) and keeper.result.error == ""


@pytest.mark.parametrize("what", ["load", "format"])
def test_training_stops_and_names_the_version_if_only_a_newer_one_can_read_the_newest(tier, monkeypatch, what) -> None:
    if what == "load":
        save(tier, 5)
    with monkeypatch.context() as newer:
        newer.setattr(torch, "__version__", "9.1.0")
        if what == "format":
            newer.setattr("elastrain.elastic.checkpoint.store.FORMAT", 2)
        saved = save(tier, 8)

    def load(opened: Any, where: str, cut: Any) -> Any:
        raise AttributeError("Can't get attribute 'NewStorage'")

    keeper = CheckpointKeeper([Level(tier, CheckpointSpec(path="/c"))])
    monkeypatch.setattr(tier, "_format", type("Old", (), {"load": staticmethod(load)}))
    by = "torch 9.1.0, and this image has torch 2" if what == "load" else "a newer elastrain"
    with pytest.raises(RuntimeError, match=f"cannot resume: {saved.path} was written by {by}.* in the image that"):
        keeper.resume(lambda _: None, **NOTHING_KNOWN)
    assert tier._store.listing().aside == []


def test_the_checkpoint_before_is_loaded_if_a_newer_torch_wrote_the_newest_and_it_is_damaged(tier, monkeypatch) -> None:
    save(tier, 5)
    with monkeypatch.context() as newer:
        newer.setattr(torch, "__version__", "9.1.0")
        saved = save(tier, 8, lineage=tier.lineage)
    (name,) = (n for n in files(tier, saved.name) if n.endswith(".distcp"))
    tier._store.replace(name, b"")
    loaded: list[Any] = []
    CheckpointKeeper([Level(tier, CheckpointSpec(path="/c"))]).resume(loaded.append, **NOTHING_KNOWN)
    assert same(loaded[0], tree(5))


# ---- what a killed process leaves ------------------------------------------------------------------------------------
def left_behind(tier: Tier, step: int, lineage: str) -> str:
    """A partial checkpoint of 100 KB."""
    name = tier._store.begin(Checkpoint(step, 1, lineage, ""), f"{step:08x}")
    with tier._store.create(f"{name}/__0_0.distcp") as file:
        file.write(b"x" * 100_000)
    return name


def partials(tier: Tier) -> list[str]:
    return [p.name for p in tier._store.listing().partial]


def test_partial_checkpoints_are_swept_if_no_writer_may_complete_them(tier) -> None:
    left_behind(tier, 900, tier.begin_lineage(tier.lineage))
    if tier.name == "volume":
        left_behind(tier, 950, "deleted")
    lineage = tier.begin_lineage(tier.lineage)
    left_behind(tier, 6, lineage)
    at_work = [left_behind(tier, 7, lineage), left_behind(tier, 8, lineage)]
    save(tier, 7, lineage=lineage)
    assert partials(tier) == at_work, "replicas write the same step; a later one is that of the present rank 0"
    save(tier, 9, lineage=lineage)
    assert partials(tier) == []
    assert steps(tier) == [9, 7]


def test_a_partial_checkpoint_of_a_later_start_stays_if_a_save_ends_late(tier, monkeypatch) -> None:
    lineage = tier.begin_lineage(tier.lineage)
    monkeypatch.setattr(tier, "_refuse_stale", lambda lineage: None)  # it looked just before the later start
    at_work = left_behind(tier, 2, tier.begin_lineage(tier.lineage))
    save(tier, 5, lineage=lineage)
    assert partials(tier) == [at_work]


def test_a_sweep_is_bounded_and_fails_no_save(tier, monkeypatch) -> None:
    old, lineage = tier.begin_lineage(tier.lineage), tier.begin_lineage(tier.lineage)
    for step in range(20):
        left_behind(tier, step, old)
    save(tier, 1, lineage=lineage)
    assert len(partials(tier)) == 12
    with monkeypatch.context() as patched:
        patched.setattr(tier, "delete", lambda path, why="": (_ for _ in ()).throw(PermissionError(13, "no", path)))
        save(tier, 2, lineage=lineage)
    assert steps(tier) == [2, 1]


def test_a_writer_fails_and_publishes_nothing_if_its_partial_checkpoint_was_swept_meanwhile(volume) -> None:
    class Overtaken(Pace):
        def rest(self) -> None:
            save(volume, 6, lineage=lineage, generation=2)

    lineage = volume.begin_lineage(volume.lineage)
    with pytest.raises(FileNotFoundError):
        save(volume, 5, lineage=lineage, pace=Overtaken())
    assert steps(volume) == [6]
    assert partials(volume) == []


def test_a_slow_writer_of_objects_publishes_nothing_if_they_are_swept_before_its_description() -> None:
    tier = tier_at(f"memory://{uuid.uuid4().hex}/c", 2)
    replace = tier._store.replace

    def replaced(path: str, content: bytes) -> None:
        if path.endswith("elastrain.json"):
            tier._store.delete(path.split("/", maxsplit=1)[0])
        replace(path, content)

    tier._store.replace = replaced
    with pytest.raises(FileNotFoundError, match="was deleted while it was written"):
        save(tier, 5)
    assert tier.complete() == [] and files(tier) == {}


def test_no_half_deleted_checkpoint_is_loaded_if_its_deletion_is_cut_off(volume, monkeypatch) -> None:
    lineage = volume.begin_lineage(volume.lineage)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)  # killed before the first file is deleted
    save(volume, 1, 2, 3, lineage=lineage)
    assert steps(volume) == [3, 2]
    monkeypatch.undo()
    save(volume, 4, lineage=lineage)
    assert partials(volume) == []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Tier]:
    """256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], check=True)
    yield tier_at(str(tmp_path), 2)
    subprocess.run(["umount", str(tmp_path)], check=True)


def sized(kib: int) -> dict[str, Any]:
    return {"tracked": {"model": {"w": torch.zeros(kib * 256)}}}


def test_complete_checkpoints_stay_if_the_disk_is_full(small_disk) -> None:
    saved = save(small_disk, 1)
    with pytest.raises(OSError, match=f"No space left on device.*{small_disk.where}"):
        small_disk.save(sized(800), step=2, generation=1, lineage=small_disk.lineage)
    assert small_disk.complete() == [saved]
    assert same(small_disk.load(saved), tree(1))
    assert partials(small_disk) == [], "the partial checkpoint was left behind"


def test_a_save_has_the_room_of_leftovers_if_the_disk_is_full(small_disk) -> None:
    lineage, folder = small_disk.begin_lineage(None), Path(small_disk.where)
    left_behind(small_disk, 7, lineage)
    (folder / left_behind(small_disk, 6, lineage)).rename(folder / "unreadable-step-000000006.01234567")
    small_disk.save(sized(100), step=8, generation=1, lineage=lineage)
    assert sorted(p.name for p in folder.iterdir()) == ["LINEAGE", "step-000000008"]
