"""Data sets in shards: files of some thousand samples each, as those of webdataset and Mosaic's streaming.

The place of a sample, shard and number in the shard, is a function of the position, so that a rescale or a restart
opens the shards that it needs and reads none again. A shard is opened when its first sample is needed.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from elastrain.data.sampling.bounded import MOST
from elastrain.data.sampling.permutation import permutation
from elastrain.data.sampling.samplers import OwnShuffle
from elastrain_readers.shard_files import MdsShard, TarShard

File = str | Path


class Shards(OwnShuffle):
    """A map-style data set over shards. ``job.dataloader(shards, …)`` shuffles it as :class:`ShardShuffle` does.

    A process keeps the last ``together * lanes`` shards open. The readers of this module keep in memory where each
    sample is, and read a sample when it is needed.
    """

    def __init__(
        self,
        files: Sequence[File],
        counts: Sequence[int],
        read: Callable[[Any], Sequence[Any]],
        *,
        decode: Callable[[Any], Any] | None = None,
        together: int = 2,
        lanes: int = 1,
    ) -> None:
        """``counts``: samples of each file. ``read(file)``: its samples, a sequence that may read them lazily.

        ``decode(sample)``: applied to each sample. ``together``, ``lanes``: as of :class:`ShardShuffle`. Raises
        ``ValueError`` naming the argument.
        """
        if len(files) != len(counts) or not files or min(counts) < 1:
            raise ValueError(f"counts: {len(files)} files need as many numbers of samples, each at least 1")
        if together < 1 or lanes < 1:
            raise ValueError(f"together, lanes: {together}, {lanes}: must be at least 1")
        self._files, self._decode, self._read = list(files), decode, read
        self._together, self._lanes = together, lanes
        self._starts = [0, *accumulate(counts)]
        self._open: dict[int, Sequence[Any]] = {}
        """The shards that were used last, in that order."""

    @classmethod
    def tar(cls, files: Iterable[File], counts: Sequence[int] | None = None, **options: Any) -> Self:
        """Uncompressed tar files in webdataset's layout: members ``key.extension``, those of a sample in a row.

        A sample is a dictionary of ``__key__`` and, by extension, the bytes of its members. ``counts``: None reads the
        headers of all files now. ``options``: of :class:`Shards`. Raises ``OSError`` or ``ValueError`` naming the file.
        """
        files = [*islice(files, MOST + 1)]
        if len(files) > MOST:
            raise ValueError(f"Shards.tar(files): {MOST:,} files and more: it must end after each file once")
        return cls(files, [len(TarShard(f)) for f in files] if counts is None else counts, TarShard, **options)

    @classmethod
    def wids(cls, index: File, **options: Any) -> Self:
        """The same from an index that webdataset's ``widsindex`` has written: its numbers of samples are used.

        Raises ``OSError`` or ``ValueError`` naming the file.
        """
        index = Path(index)
        try:
            listed = [(str(one["url"]), int(one["nsamples"])) for one in _json(index)["shardlist"]]
        except (KeyError, TypeError) as e:
            raise ValueError(f"{index}: no index of shards: 'shardlist' with 'url' and 'nsamples': {e!r}") from e
        if remote := [url for url, _ in listed if "://" in url]:
            raise ValueError(f"{index}: {remote[0]}: must be a path; fetch it in a read(file) of your own")
        return cls.tar([index.parent / url for url, _ in listed], [count for _, count in listed], **options)

    @classmethod
    def mds(cls, folder: File, **options: Any) -> Self:
        """A folder with ``index.json`` and uncompressed MDS files, as Mosaic's ``MDSWriter`` writes them.

        A sample is a dictionary by column. Numbers, strings, JSON and arrays of a fixed type are decoded; values of
        other encodings (``jpeg``, ``pkl``) are the stored bytes. Raises ``OSError`` or ``ValueError`` naming the file.
        """
        index = Path(folder) / "index.json"
        described = _json(index).get("shards", [])
        for one in described:
            if one.get("format") != "mds" or one.get("version") != 2 or one.get("zip_data"):
                raise ValueError(f"{index}: must list uncompressed shards of format 'mds', version 2, not {one!r:.200}")
        columns = {str(Path(folder) / one["raw_data"]["basename"]): one for one in described}
        read = partial(_read_mds, columns)
        return cls([*columns], [one["samples"] for one in described], read, **options)

    def shuffled(self, *, seed: int = 0, global_batch_size: int = 1) -> ShardShuffle:
        """The sampler of this data set. ``global_batch_size``: that of the loader; needed with lanes."""
        counts = [stop - start for start, stop in pairwise(self._starts)]
        return ShardShuffle(
            counts, seed=seed, together=self._together, lanes=self._lanes, global_batch_size=global_batch_size
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Any:
        """Sample ``index``, counted over all shards. Raises ``IndexError``, and the errors of the reader."""
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        number = bisect_right(self._starts, index) - 1
        sample = self._shard(number)[index - self._starts[number]]
        return sample if self._decode is None else self._decode(sample)

    def _shard(self, number: int) -> Sequence[Any]:
        shard = self._open.pop(number, None)
        if shard is None:
            shard, count = self._read(self._files[number]), self._starts[number + 1] - self._starts[number]
            if len(shard) != count:
                raise ValueError(f"{self._files[number]}: has {len(shard)} samples, {count} were announced")
            while len(self._open) >= self._together * self._lanes:
                del self._open[next(iter(self._open))]
        self._open[number] = shard
        return shard


class ShardShuffle:
    """A sampler that shuffles the shards, and then the samples of each ``together`` shards in a row.

    Samples of ``together`` shards mix, and no more shards are needed at a time. Every sample comes once an epoch.

    All ranks read their parts of each global batch, with one lane from the same shards: every rank reads all of them.
    With ``lanes``, the sequence is cut into as many runs, and each global batch takes an equal share of every run, in
    order. A rank then reads the shards of its lanes only. ``lanes`` must divide the global batch size; as many as the
    largest number of ranks are a good choice.
    """

    def __init__(
        self, counts: Sequence[int], *, seed: int = 0, together: int = 2, lanes: int = 1, global_batch_size: int = 1
    ) -> None:
        """``counts``: samples of each shard. Raises ``ValueError`` if the lanes do not divide the global batch size."""
        if global_batch_size % lanes:
            raise ValueError(f"lanes: {lanes}: must divide global_batch_size, {global_batch_size}")
        self._counts = np.asarray(counts, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._counts)])
        self._seed, self._together = seed, together
        self._lanes, self._batch = lanes, global_batch_size
        self._groups = lru_cache(maxsize=2)(self._groups_of)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def indices(self, epoch: int, start: int, stop: int) -> list[int]:
        """As of :class:`elastrain.data.Sampler`."""
        shards, bounds = self._groups(epoch)
        places = self._in_lanes(np.arange(start, stop))
        found: np.ndarray = np.empty(stop - start, np.int64)
        group_of = np.searchsorted(bounds, places, side="right") - 1
        for group in np.unique(group_of):
            here = group_of == group
            members = shards[group * self._together : (group + 1) * self._together]
            size = int(bounds[group + 1] - bounds[group])
            mixed = permutation(size, self._seed, "shards together", epoch, group)(places[here] - bounds[group])
            firsts = np.concatenate([[0], np.cumsum(self._counts[members])])
            member = np.searchsorted(firsts, mixed, side="right") - 1
            found[here] = self._starts[members[member]] + mixed - firsts[member]
        indices: list[int] = found.tolist()
        return indices

    def _groups_of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The shards in the order of ``epoch``, and where each group begins in it, in samples, with the end."""
        shards = permutation(len(self._counts), self._seed, "shards", epoch)(np.arange(len(self._counts)))
        ends = np.cumsum(self._counts[shards])
        last = [*range(self._together - 1, len(shards) - 1, self._together), len(shards) - 1]
        return shards, np.concatenate([[0], ends[last]])

    def _in_lanes(self, positions: np.ndarray) -> np.ndarray:
        """The place in the shuffled sequence of each position: batch ``k`` takes run ``k`` of each lane."""
        batch, inside = np.divmod(positions, self._batch)
        share = self._batch // self._lanes
        full = len(self) // self._batch
        in_lane = (inside // share) * (full * share) + batch * share + inside % share
        places: np.ndarray = np.where(batch < full, in_lane, positions)  # a smaller last batch: what the lanes leave
        return places


def _read_mds(columns: dict[str, Any], file: str) -> MdsShard:
    return MdsShard(file, columns[file])


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError as e:
        raise ValueError(f"{file}: not JSON: {e}") from e
