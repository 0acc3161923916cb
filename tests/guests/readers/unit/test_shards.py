"""Data sets in shards: every sample once, few files at a time, and the layouts that exist."""

import io
import json
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.order import Order
from elastrain_readers import Shards, ShardShuffle


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_every_sample_comes_once_an_epoch_and_however_it_is_cut(counts, together, lanes, share) -> None:
    sampler = ShardShuffle(counts, together=together, lanes=lanes, global_batch_size=lanes * share)
    whole = sampler.indices(1, 0, sum(counts))
    assert sorted(whole) == list(range(sum(counts)))
    middle = len(whole) // 3
    assert sampler.indices(1, 0, middle) + sampler.indices(1, middle, len(whole)) == whole


def opened(sampler: ShardShuffle, size: int, world: int, rank: int, counts: list[int]) -> tuple[int, int]:
    """Shards that a rank needs in an epoch, and the largest number within one step."""
    order = Order(len(sampler), size, shuffle=False, sampler=sampler)
    starts = np.cumsum([0, *counts])
    steps = [
        {int(np.searchsorted(starts, i, side="right")) for i in order.slice(step, rank, world).indices}
        for step in range(order.steps_per_epoch)
    ]
    return len(set().union(*steps)), max(map(len, steps))


def test_a_rank_reads_the_shards_of_its_lanes_only() -> None:
    counts = [50] * 48
    common = ShardShuffle(counts, global_batch_size=16)
    shards, at_once = opened(common, 16, 4, 1, counts)
    assert shards == 48
    assert at_once <= 4, "two groups of two shards, in a step between them"
    lanes = ShardShuffle(counts, lanes=8, global_batch_size=16)
    for world, most in ((1, 48), (2, 26), (4, 14), (8, 8)):
        for rank in range(world):
            shards, at_once = opened(lanes, 16, world, rank, counts)
            assert shards <= most
            assert at_once <= 8 // world * 4


def test_samples_of_shards_together_mix_and_epochs_differ() -> None:
    sampler = ShardShuffle([100] * 10, together=2)
    first = np.array(sampler.indices(0, 0, 200)) // 100
    assert set(np.bincount(first)[np.bincount(first) > 0]) == {100}
    assert 70 < np.count_nonzero(first[:-1] != first[1:]) < 130, "the samples of two shards alternate at random"
    assert sampler.indices(0, 0, 200) != sampler.indices(1, 0, 200)


def write_tar(file: Path, samples: dict[str, dict[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(file, mode) as archive:
        for key, members in {"__index__": {"json": b"{}"}, **samples}.items():
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return file


def tars(folder: Path, shards: int = 3, samples: int = 4) -> list[Path]:
    def of(s: int) -> dict[str, dict[str, bytes]]:
        return {f"a/{s}{i}": {"txt": f"{s}/{i}".encode(), "seg.png": b"\x00" * i} for i in range(samples)}

    return [write_tar(folder / f"{s}.tar", of(s)) for s in range(shards)]


def test_samples_of_tar_files_are_their_members_by_extension(tmp_path) -> None:
    shards = Shards.tar(tars(tmp_path))
    assert len(shards) == 12
    assert shards[6] == {"__key__": "a/12", "txt": b"1/2", "seg.png": b"\x00\x00"}
    texts = Shards.tar(tars(tmp_path), [4, 4, 4], decode=lambda sample: sample["txt"].decode())
    assert [texts[i] for i in range(12)] == [f"{s}/{i}" for s in range(3) for i in range(4)]
    assert texts._read(tmp_path / "0.tar")[1:3] == [shards[1], shards[2]]


def test_an_index_of_webdataset_names_the_files_and_their_samples(tmp_path) -> None:
    (tmp_path / "remote.json").write_text(json.dumps({"shardlist": [{"url": "https://a/0.tar", "nsamples": 4}]}))
    with pytest.raises(ValueError, match=r"remote\.json: https://a/0\.tar: must be a path"):
        Shards.wids(tmp_path / "remote.json")
    listed = [{"url": file.name, "nsamples": 4} for file in tars(tmp_path)]
    (tmp_path / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    assert Shards.wids(tmp_path / "index.json")[11]["txt"] == b"2/3"


COLUMNS = {
    "image": ("jpeg", None),
    "label": ("int", 8),
    "meta": ("json", None),
    "shaped": ("ndarray:int16", None),
    "text": ("str", None),
    "tokens": ("ndarray:int32:2,2", 16),
    "weight": ("float32", 4),
}


def write_mds(folder: Path, shards: int = 2, samples: int = 3) -> Path:
    listed = []
    for number in range(shards):
        stored = []
        for i in range(samples):
            value = 10 * number + i
            values = [
                b"\xff\xd8" * i,
                struct.pack("<q", -value),
                json.dumps({"n": value}).encode(),
                bytes([2 << 2, 1, 3]) + np.arange(3, dtype="<i2").tobytes(),
                f"über {value}".encode(),
                np.full(4, value, "<i4").tobytes(),
                struct.pack("<f", value / 2),
            ]
            free = [len(v) for v, (_, size) in zip(values, COLUMNS.values(), strict=True) if size is None]
            stored.append(struct.pack(f"<{len(free)}I", *free) + b"".join(values))
        remark = b'{"version": 2}'  # between the offsets and the samples
        begin = 4 + 4 * (samples + 1) + len(remark)
        offsets = np.cumsum([begin, *map(len, stored)]).astype("<u4").tobytes()
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(struct.pack("<I", samples) + offsets + remark + b"".join(stored))
        encodings, sizes = zip(*COLUMNS.values(), strict=True)
        described = {"column_names": [*COLUMNS], "column_encodings": encodings, "column_sizes": sizes}
        described |= {"format": "mds", "version": 2, "samples": samples, "zip_data": None}
        listed.append(described | {"raw_data": {"basename": name}})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": listed}))
    return folder


def test_samples_of_mds_files_are_their_columns(tmp_path) -> None:
    shards = Shards.mds(write_mds(tmp_path))
    assert len(shards) == 6
    sample = shards[5]
    assert {k: sample[k] for k in ("image", "label", "meta", "text")} == {
        "image": b"\xff\xd8\xff\xd8",
        "label": -12,
        "meta": {"n": 12},
        "text": "über 12",
    }
    assert sample["weight"] == 6.0
    assert sample["tokens"].tolist() == [[12, 12], [12, 12]]
    assert sample["shaped"].tolist() == [[0, 1, 2]]
    assert sample["tokens"].flags.writeable, "torch warns of arrays that are not"


def test_few_shards_are_open_and_each_is_opened_once_an_epoch() -> None:
    log: list[int] = []

    def read(name: str) -> range:
        log.append(int(name))
        return range(20)

    shards = Shards([str(n) for n in range(10)], [20] * 10, read, together=2)
    sampler = shards.shuffled(seed=1)
    for index in sampler.indices(0, 0, 200):
        assert shards[index] == index % 20
        assert len(shards._open) <= 2
    assert sorted(log) == list(range(10))


def broken_mds(folder: Path, **changes: object) -> Path:
    index = json.loads((write_mds(folder) / "index.json").read_text())
    index["shards"][0] |= changes
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda f: Shards.tar([write_tar(f / "z.tar", {}, "w:gz")]), r"z\.tar: no uncompressed tar file"),
        (lambda f: Shards.tar(tars(f), [4, 5, 4])[5], r"1\.tar: has 4 samples, 5 were announced"),
        (lambda f: Shards.tar(tars(f), [4]), "3 files need as many numbers"),
        (lambda f: Shards.tar(tars(f), lanes=0), "together, lanes: 2, 0"),
        (
            lambda f: Shards.tar(tars(f), lanes=3).shuffled(global_batch_size=4),
            "lanes: 3: must divide global_batch_size, 4",
        ),
        (lambda f: Shards.wids(write_mds(f) / "index.json"), "no index of shards: 'shardlist'"),
        (lambda f: Shards.wids(tars(f)[0]), r"0\.tar: not JSON"),
        (lambda f: Shards.mds(broken_mds(f, zip_data={"basename": "x"})), "uncompressed shards of format 'mds'"),
        (lambda f: Shards.mds(broken_mds(f, samples=4))[0], r"shard\.00000\.mds: has 3 samples, index.json says 4"),
    ],
)
def test_error_names_the_file_if_a_shard_is_not_what_it_should_be(tmp_path, broken, message) -> None:
    with pytest.raises(ValueError, match=message):
        broken(tmp_path)


def test_error_names_the_file_if_it_was_truncated_while_it_was_read(tmp_path) -> None:
    shards = Shards.mds(write_mds(tmp_path))
    assert shards[0]
    file = tmp_path / "shard.00000.mds"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"shard\.00000\.mds: ends after .*it is truncated"):
        shards[2]
    with pytest.raises(IndexError, match="sample 6 of 6"):
        shards[6]
