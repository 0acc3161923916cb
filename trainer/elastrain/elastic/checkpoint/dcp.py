"""A tree of tensors as files in the format of torch's distributed checkpoints (DCP)."""

from __future__ import annotations

import errno
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.utils import _pytree

from elastrain.elastic.checkpoint.digests import DigestingWriter
from elastrain.elastic.checkpoint.pace import Pace

Create = Callable[[str], AbstractContextManager[DigestingWriter]]
"""Creates a file by its name."""
_TEMPORARY = ".tmp"
"""What DCP adds to the name of its metadata while it writes them."""

# One rank saves and loads, without a process group, by design.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def save(
    state: dict[str, Any], create: Create, pace: Pace | None = None, *, syncs: bool = True, where: str = ""
) -> None:
    """Write the files of ``state``, resting between two tensors by ``pace``. ``syncs``: flush each file to the disk.

    ``where``: for errors. Raises ``OSError`` with the system's own reason.
    """
    planner = _Paced(pace) if pace is not None else None
    writer = dcp.FileSystemWriter("", sync_files=syncs)
    writer.fs = _Files(create=create)
    try:
        dcp.save(_take_apart(state), storage_writer=writer, planner=planner, no_dist=True)
    except CheckpointException as e:
        raise _os_error(e, where) from e


def load(opened: Callable[[str], BinaryIO], where: str = "") -> Any:
    """The tree that :func:`save` wrote; tensors on the CPU. ``opened``: opens a file by its name.

    Raises ``OSError`` for missing and damaged files, and other errors for a damaged structure.
    """
    entries: dict[str, Any] = {}
    reader = dcp.FileSystemReader("")
    reader.fs = _Files(opened=opened)
    # The planner of torch's own format converter: it needs no existing tree to fill.
    try:
        _load_state_dict(entries, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    except CheckpointException as e:  # no Exception: callers would not catch it
        raise _os_error(e, where) from e
    return _assemble(entries)


class _Files(FileSystemBase):
    """The files of one checkpoint, by their names. Nothing is renamed: an unfinished checkpoint is not visible."""

    def __init__(self, create: Create | None = None, opened: Callable[[str], BinaryIO] | None = None) -> None:
        self._create, self._opened = create, opened

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = str(path)
        if mode == "wb":
            assert self._create is not None
            with self._create(name.removesuffix(_TEMPORARY)) as stream:
                yield stream
        else:
            assert self._opened is not None
            with self._opened(name) as stream:
                yield stream

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return suffix

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        assert str(path) == f"{new_path}{_TEMPORARY}", path

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """The folder exists."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return False

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        raise NotImplementedError(f"no file is replaced: {path}")


def _os_error(e: CheckpointException, path: str) -> OSError:
    """The file system's own error; EIO with the first cause if there is none.

    DCP wraps it in an exception that lists ranks. torch's zip writer hides it behind an error of its own ("unexpected
    pos"), raised while the first one was handled.
    """
    causes: list[BaseException] = [failure[0] for failure in e.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, cause.filename or path)
        causes += [c for c in (cause.__cause__, cause.__context__) if c is not None]
    return OSError(errno.EIO, str(causes[0]).strip().split("\n", maxsplit=1)[0], path)


class _Paced(DefaultSavePlanner):
    """DCP calls it for each tensor just before writing it."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._pace = pace
        pace.begin()

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | BytesIO:
        self._pace.rest()
        return super().resolve_data(write_item)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The placeholder of a tensor in the saved structure."""

    name: str


_STRUCTURE = "structure"


def _take_apart(tree: Any) -> dict[str, Any]:
    """Named tensors (``model/0.weight``), and the structure that holds them.

    DCP itself would turn the integer keys of optimizer states into strings, which the optimizer ignores.
    """
    tensors: dict[str, torch.Tensor] = {}

    def entry(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        name = "/".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in path)
        tensors[name] = leaf
        return _Entry(name)

    structure = _pytree.tree_map_with_path(entry, tree)
    return {**tensors, _STRUCTURE: pickle.dumps(structure)}  # bytes: DCP would split a tree again


def _assemble(entries: dict[str, Any]) -> Any:
    structure = pickle.loads(entries[_STRUCTURE])  # noqa: S301 - written by this job's own ranks
    return _pytree.tree_map(lambda x: entries[x.name] if isinstance(x, _Entry) else x, structure)
