"""Readers of shard files: where each sample is, read once; and its bytes, read when they are needed.

Samples are read by ``pread``: a file that was opened before worker processes were forked can be used in all of them.
"""

from __future__ import annotations

import json
import math
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np


class _Lazy(Sequence[dict[str, Any]]):
    """The samples of one file."""

    def __init__(self, file: str | Path) -> None:
        self.file = Path(file)
        self._handle = self.file.open("rb")

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return [self.sample(i) for i in range(len(self))[index]] if isinstance(index, slice) else self.sample(index)

    def sample(self, number: int) -> dict[str, Any]:
        """Sample ``number`` of the file."""
        raise NotImplementedError

    def _bytes(self, offset: int, size: int) -> bytes:
        data = os.pread(self._handle.fileno(), size, offset)
        if len(data) != size:
            raise ValueError(f"{self.file}: ends after {len(data)} of {size} bytes at {offset}: it is truncated")
        return data


class TarShard(_Lazy):
    """A tar file whose members ``key.extension`` with the same key, in a row, are a sample."""

    def __init__(self, file: str | Path) -> None:
        """Reads the headers. Raises ``OSError``, or ``ValueError`` naming the file if it is no uncompressed tar."""
        super().__init__(file)
        self._samples: list[tuple[str, dict[str, tuple[int, int]]]] = []
        try:
            with tarfile.open(fileobj=self._handle, mode="r:") as archive:
                for member in archive:
                    if member.isfile():
                        self._add(member)
        except tarfile.TarError as e:
            raise ValueError(f"{file}: no uncompressed tar file: {e}") from e

    def _add(self, member: tarfile.TarInfo) -> None:
        folder, _, base = member.name.rpartition("/")
        stem, dot, extension = base.partition(".")
        if not dot or stem.startswith("__"):  # such names are for remarks about the file
            return
        key = f"{folder}/{stem}" if folder else stem
        if not self._samples or self._samples[-1][0] != key:
            self._samples.append((key, {}))
        self._samples[-1][1][extension] = member.offset_data, member.size

    def __len__(self) -> int:
        return len(self._samples)

    def sample(self, number: int) -> dict[str, Any]:
        """``__key__``, and by extension the bytes of the members."""
        key, members = self._samples[number]
        return {"__key__": key, **{extension: self._bytes(*place) for extension, place in members.items()}}


class MdsShard(_Lazy):
    """A file of Mosaic's format MDS, version 2: a number of samples, their offsets, the samples.

    A sample has the sizes of its columns without a fixed size, 4 bytes each, and then all columns.
    """

    def __init__(self, file: str | Path, described: dict[str, Any]) -> None:
        """``described``: the file's entry in ``index.json``. Raises ``OSError``, and ``ValueError`` for another number
        of samples."""
        super().__init__(file)
        self._columns = [*zip(*(described[f"column_{what}"] for what in ("names", "encodings", "sizes")), strict=True)]
        count = int(np.frombuffer(self._bytes(0, 4), "<u4")[0])
        if count != described["samples"]:
            raise ValueError(f"{file}: has {count} samples, index.json says {described['samples']}")
        self._offsets = np.frombuffer(self._bytes(4, 4 * (count + 1)), "<u4")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def sample(self, number: int) -> dict[str, Any]:
        """The values by column."""
        start, end = int(self._offsets[number]), int(self._offsets[number + 1])
        data = self._bytes(start, end - start)
        free = [name for name, _, size in self._columns if not size]
        sizes = dict(zip(free, np.frombuffer(data[: 4 * len(free)], "<u4").tolist(), strict=True))
        at, values = 4 * len(free), {}
        for name, encoding, fixed in self._columns:
            size = fixed or sizes[name]
            values[name] = mds_value(encoding, data[at : at + size])
            at += size
        return values


def mds_value(encoding: str, data: bytes) -> Any:
    """A value of an MDS column; of an encoding that is not decoded here, its bytes."""
    kind, *rest = encoding.split(":")
    if kind in _DECODERS:
        return _DECODERS[kind](data)
    if kind in _NUMBERS:
        return np.frombuffer(data, np.dtype(kind).newbyteorder("<"))[0]
    return _array(data, *rest) if kind == "ndarray" and rest else data


def _array(data: bytes, kind: str, shape: str = "") -> np.ndarray:
    """An array of a fixed type; without a fixed shape it begins with the number of its dimensions, and these."""
    dtype = np.dtype(kind).newbyteorder("<")
    sizes, begin = [int(n) for n in shape.split(",")] if shape else [], 0
    if not shape:
        dimensions, width = data[0] >> 2, 1 << (data[0] & 3)
        begin = 1 + dimensions * width
        sizes = np.frombuffer(data[1:begin], f"<u{width}").tolist()
    array: np.ndarray = np.frombuffer(data, dtype, math.prod(sizes), begin).reshape(sizes).copy()  # writeable
    return array


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "str": bytes.decode,
    "json": json.loads,
    "int": lambda data: int.from_bytes(data, "little", signed=True),
}
_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float16", "float32", "float64"}
