"""Digests of the files of a checkpoint: computed while a file is written, verified while it is read.

A file is digested in pieces of :data:`PIECE_BYTES`, so that a read of a part verifies that part, within bounded memory,
and a remote file is read once.
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import xxhash

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

FILE = "digests.json"
"""In each checkpoint: the digests of its other files."""
PIECE_BYTES = 16 * 2**20
_READ_AHEAD = 2**20
_PIECES_IN_MEMORY = 4
"""torch reads the end of an archive before its tensors."""


@dataclass
class FileDigest:
    """Size of a file, and XXH3 (128 bits, https://xxhash.com) of each of its pieces."""

    size: int = 0
    pieces: list[str] = field(default_factory=list)
    piece_bytes: int = PIECE_BYTES


def to_json(files: dict[str, FileDigest]) -> str:
    """The content of :data:`FILE`."""
    return json.dumps({name: vars(d) for name, d in files.items()})


def of_json(text: str) -> dict[str, FileDigest]:
    """The digest of each file. Raises ``ValueError``."""
    try:
        found = {name: FileDigest(d["size"], d["pieces"], d["piece_bytes"]) for name, d in parsed(text).items()}
        fits = all(d.piece_bytes == PIECE_BYTES and len(d.pieces) == -(-d.size // PIECE_BYTES) for d in found.values())
    except (AttributeError, KeyError, TypeError) as e:
        raise ValueError(f"{FILE} is damaged: {e!r}") from e
    if not fits:
        raise ValueError(f"{FILE} is damaged: sizes and numbers of pieces differ")
    return found


def parsed(text: str | bytes) -> Any:
    """Of JSON. Raises ``ValueError`` for anything else, however deep."""
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


class DigestingWriter(io.RawIOBase):
    """Passes what is written on to ``raw``, in order, and digests it."""

    def __init__(self, raw: BinaryIO) -> None:
        super().__init__()
        self.digest = FileDigest()
        """Complete after :meth:`close`."""
        self._raw, self._piece = raw, xxhash.xxh3_128()
        self._left = PIECE_BYTES

    def writable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self.digest.size

    def fileno(self) -> int:
        """That of ``raw``; for ``fsync``."""
        return self._raw.fileno()

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of ``data``."""
        view = memoryview(data).cast("B")
        size = len(view)
        self._raw.write(view)
        self.digest.size += size
        while len(view) >= self._left:
            self._piece.update(view[: self._left])
            view = view[self._left :]
            self._end_piece()
        self._piece.update(view)
        self._left -= len(view)
        return size

    def flush(self) -> None:
        """Flush ``raw``."""
        self._raw.flush()

    def close(self) -> None:
        """Complete the digest. The owner of ``raw`` closes it."""
        if not self.closed and self._left < PIECE_BYTES:
            self._end_piece()
        super().close()

    def _end_piece(self) -> None:
        self.digest.pieces.append(self._piece.hexdigest())
        self._piece, self._left = xxhash.xxh3_128(), PIECE_BYTES


class VerifyingReader(io.RawIOBase):
    """A seekable file that raises ``OSError`` (EIO) instead of returning bytes whose digest differs."""

    def __init__(self, name: str, digest: FileDigest, read: Callable[[int, int], bytes]) -> None:
        """``read(start, end)``: the bytes of the stored file. ``name``: for errors."""
        super().__init__()
        self._name, self._digest, self._read = name, digest, read
        self._at = 0
        self._pieces: dict[int, bytes] = {}

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As of ``io``."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._digest.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read up to the end of the buffer, the piece or the file."""
        view = memoryview(buffer).cast("B")
        if self._at >= self._digest.size:
            return 0
        index, start = divmod(self._at, self._digest.piece_bytes)
        part = self._piece(index)[start : start + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def _piece(self, index: int) -> memoryview:
        if index not in self._pieces:
            start = index * self._digest.piece_bytes
            wanted = min(self._digest.piece_bytes, self._digest.size - start)
            data = self._read(start, start + wanted)
            if len(data) != wanted:
                raise OSError(errno.EIO, f"cut off at byte {start + len(data)} of {self._digest.size}", self._name)
            if xxhash.xxh3_128_hexdigest(data) != self._digest.pieces[index]:
                raise OSError(errno.EIO, f"digest differs in bytes {start} to {start + wanted}", self._name)
            while len(self._pieces) >= _PIECES_IN_MEMORY:
                del self._pieces[next(iter(self._pieces))]
            self._pieces[index] = data
        return memoryview(self._pieces[index])


def verified(name: str, digest: FileDigest, read: Callable[[int, int], bytes]) -> BinaryIO:
    """A buffered :class:`VerifyingReader`."""
    return io.BufferedReader(VerifyingReader(name, digest, read), _READ_AHEAD)
