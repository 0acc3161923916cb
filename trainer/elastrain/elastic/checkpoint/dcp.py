"""A tree of tensors as a directory in the format of torch's distributed checkpoints (DCP)."""

from __future__ import annotations

import errno
import pickle
import warnings
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.utils import _pytree

from elastrain.elastic.checkpoint.pace import Pace

# One rank saves and loads, without a process group, by design.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def save(state: dict[str, Any], directory: Path, pace: Pace | None = None) -> None:
    """Write ``state`` into an empty directory, resting between two tensors by ``pace``.

    Raises ``OSError`` with the file system's own reason.
    """
    planner = _Paced(pace) if pace is not None else None
    try:
        dcp.save(_take_apart(state), storage_writer=dcp.FileSystemWriter(directory), planner=planner, no_dist=True)
    except CheckpointException as e:
        raise _os_error(e, directory) from e


def load(directory: Path) -> Any:
    """The tree that :func:`save` wrote; tensors on the CPU.

    Raises ``OSError`` for missing and damaged files, and other errors for a damaged structure.
    """
    entries: dict[str, Any] = {}
    # The planner of torch's own format converter: it needs no existing tree to fill.
    try:
        _load_state_dict(
            entries,
            storage_reader=dcp.FileSystemReader(directory),
            planner=_EmptyStateDictLoadPlanner(),
            no_dist=True,
        )
    except CheckpointException as e:  # no Exception: callers would not catch it
        raise _os_error(e, directory) from e
    return _assemble(entries)


def _os_error(e: CheckpointException, path: Path) -> OSError:
    """The file system's own error; EIO with the first cause if there is none.

    DCP wraps it in an exception that lists ranks. torch's zip writer hides it behind an error of its own ("unexpected
    pos"), raised while the first one was handled.
    """
    causes: list[BaseException] = [failure[0] for failure in e.failures.values()]
    for cause in causes:
        if isinstance(cause, OSError):
            return OSError(cause.errno, cause.strerror, str(path))
        causes += [c for c in (cause.__cause__, cause.__context__) if c is not None]
    return OSError(errno.EIO, str(causes[0]).strip().split("\n", maxsplit=1)[0], str(path))


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
