"""Checkpoints in an object store, through fsspec.

Layout, below the URL::

    step-000000120.<lineage>.<random>/...             torch's distributed checkpoint (DCP) and digests.json
    step-000000120.<lineage>.<random>/elastrain.json  written last: with it the checkpoint is complete
    step-000000120.<lineage>.<random>/unreadable.json what elastrain.json was before the checkpoint was set aside
    LINEAGE                                           the lineage that may write here

An object appears as a whole, and there is no rename: a checkpoint is complete once its last object is there. Every
attempt has a folder of its own, so two writers never mix their objects. A deletion begins and ends with
``elastrain.json``.

``s3://``, ``gs://`` and ``az://`` use obstore, which releases Python's lock while it sends; every other
URL the package that fsspec names. Credentials and endpoints come from the environment: for S3 ``AWS_ACCESS_KEY_ID``,
``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, or a service account's token.

S3 keeps the parts of an upload whose process was killed, and lists no object for them. A rule of the bucket
(AbortIncompleteMultipartUpload) deletes them.
"""

from __future__ import annotations

import errno
import io
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import fsspec
import structlog

from elastrain.elastic.checkpoint.rules import STEP, Checkpoint
from elastrain.elastic.checkpoint.store import DESCRIPTION, LINEAGE, RANDOM, Listing, describe, partial_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = structlog.get_logger(__name__)

_ASIDE = "unreadable.json"
_FOLDER = re.compile(rf"{STEP.pattern}(\.{LINEAGE})?(\.{RANDOM})?")
PART_BYTES = 32 * 2**20
"""Of an upload: 10,000 parts, the most that S3 takes, are 320 GB in one file. Some are in memory at a time."""
_OBSTORE = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_RETRIES = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}
"""Of one request. A save that fails is repeated at its next interval."""


class ObjectStore:
    """The checkpoints below one URL. As of :class:`~elastrain.elastic.checkpoint.store.Store`."""

    syncs = False

    def __init__(self, url: str) -> None:
        """Raises ``RuntimeError`` if the library for this kind of store is not installed."""
        self.where = url.rstrip("/")
        self._fs, root, self._writing = _file_system(self.where)
        self._root = root.rstrip("/")

    def listing(self) -> Listing:
        """As of ``Store``."""
        folders: dict[str, set[str]] = {}
        with self._errors():
            for path in self._fs.find(self._root):
                folder, _, file = path[len(self._root) :].strip("/").partition("/")
                folders.setdefault(folder, set()).add(file)
        ours = {name: (found, folders[name]) for name in sorted(folders) if (found := _FOLDER.fullmatch(name))}
        return Listing(
            complete=[name for name, (_, files) in ours.items() if DESCRIPTION in files],
            partial=[
                partial_of(name, found) for name, (found, files) in ours.items() if not files & {DESCRIPTION, _ASIDE}
            ],
            aside=[n for n, (_, files) in reversed(ours.items()) if _ASIDE in files and DESCRIPTION not in files],
        )

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """As of ``Store``."""
        with self._errors(path):
            part = {} if end is None else {"start": start, "end": end}
            data: bytes = self._fs.cat_file(self._path(path), **part)
        return data

    def files(self, folder: str) -> set[str]:
        """As of ``Store``."""
        with self._errors(folder):
            return {path.rsplit("/", maxsplit=1)[-1] for path in self._fs.find(self._path(folder))}

    def replace(self, path: str, content: bytes) -> None:
        """As of ``Store``."""
        with self._errors(path):
            self._fs.pipe_file(self._path(path), content)

    def begin(self, checkpoint: Checkpoint, attempt: str = "") -> str:
        """As of ``Store``."""
        lineage, attempt = checkpoint.lineage or "0-000000000000", attempt or uuid.uuid4().hex[:8]
        return f"step-{checkpoint.step:09d}.{lineage}.{attempt}"

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        """As of ``Store``."""
        with self._errors(path), self._fs.open(self._path(path), "wb", **self._writing) as file:
            yield cast("BinaryIO", _Copying(file))

    def publish(self, partial: str, checkpoint: Checkpoint) -> str:
        """As of ``Store``."""
        written = self.files(partial)
        self.replace(f"{partial}/{DESCRIPTION}", describe(checkpoint, partial))
        if not written <= self.files(partial):  # a later writer has swept it
            self.discard(partial)
            raise FileNotFoundError(errno.ENOENT, "was deleted while it was written", f"{self.where}/{partial}")
        return partial

    def discard(self, partial: str) -> None:
        """As of ``Store``."""
        try:
            self.delete(partial)
        except OSError as e:
            log.warning("partial checkpoint cannot be deleted now", path=f"{self.where}/{partial}", error=str(e))

    def set_aside(self, name: str) -> str:
        """As of ``Store``."""
        try:
            description = self.read(f"{name}/{DESCRIPTION}")
        except FileNotFoundError:
            description = b""
        self.replace(f"{name}/{_ASIDE}", description)
        self._remove(f"{name}/{DESCRIPTION}")
        return name

    def delete(self, name: str) -> None:
        """As of ``Store``."""
        self._remove(f"{name}/{DESCRIPTION}")
        for file in self.files(name):
            self._remove(f"{name}/{file}")
        self._remove(f"{name}/{DESCRIPTION}")  # a writer that was still at work may have added it

    def _remove(self, path: str) -> None:
        try:
            with self._errors(path):
                self._fs.rm_file(self._path(path))
        except FileNotFoundError:
            return

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    @contextmanager
    def _errors(self, path: str = "") -> Iterator[None]:
        """Every library of a store has errors of its own: raise ``OSError`` that names the path."""
        where = f"{self.where}/{path}" if path else self.where
        try:
            yield
        except FileNotFoundError as e:
            raise FileNotFoundError(errno.ENOENT, "does not exist", where) from e
        except PermissionError as e:
            raise PermissionError(errno.EACCES, _reason(e), where) from e
        except OSError as e:
            raise OSError(e.errno or errno.EIO, _reason(e), where) from e
        except Exception as e:
            raise OSError(errno.EIO, _reason(e), where) from e


class _Copying(io.RawIOBase):
    """Writes copies: obstore sends a buffer later, and torch writes into it again meanwhile."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self._file = file

    def write(self, data: ReadableBuffer, /) -> int:
        return int(self._file.write(bytes(data)))


def _reason(e: Any) -> str:
    first = str(getattr(e, "strerror", None) or e or type(e).__name__).strip().split("\n", maxsplit=1)[0]
    return first.removesuffix('<?xml version="1.0" encoding="UTF-8"?>').rstrip(": ")[:300]


def _file_system(url: str) -> tuple[Any, str, dict[str, Any]]:
    """The store's file system, the path in it, and its options for writing."""
    scheme, _, path = url.partition("://")
    try:
        if scheme not in _OBSTORE:
            # The lists of another process' objects change: none may be remembered.
            return *fsspec.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True), {}
        from obstore.fsspec import FsspecStore
    except ImportError as e:
        package = "elastrain[objects]" if scheme in _OBSTORE else f"the package of fsspec for {scheme}://"
        raise RuntimeError(f"spec.checkpoint: {url} needs {package} in the job's image ({e})") from e
    # http: only if the endpoint's own URL says so.
    store = FsspecStore(scheme, retry_config=_RETRIES, client_options={"allow_http": True}, skip_instance_cache=True)
    return store, path, {"buffer_size": PART_BYTES}
