"""A tree of tensors as files in the format of torch's distributed checkpoints (DCP)."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystemBase
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from elastrain.api.shape import SHARDS
from elastrain.elastic import torch_private
from elastrain.elastic.checkpoint.digests import DigestingWriter
from elastrain.elastic.checkpoint.division import ALONE, WHOLE, Cut, Entry, Path, Sharded, Writers, is_part, placeholder
from elastrain.elastic.checkpoint.folder import Pace
from elastrain.elastic.encoding import decode, encode
from elastrain.elastic.state.parts import Part
from elastrain.elastic.torch_private import pytree

Create = Callable[[str], AbstractContextManager[DigestingWriter]]
"""Creates a file by its name."""
_TEMPORARY = ".tmp"
"""What DCP adds to the name of its metadata while it writes them."""

# One rank saves and loads, without a process group, by design.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def write(
    state: dict[str, Any],
    create: Create,
    pace: Pace | None = None,
    writers: Writers = ALONE,
    *,
    syncs: bool = True,
    where: str = "",
) -> Written:
    """Write the file of this rank's part of ``state``, resting between two tensors by ``pace``.

    ``syncs``: flush the file to the disk. ``where``: for errors. :func:`finish` completes the checkpoint. Raises
    ``OSError`` with the system's own reason.
    """
    source = _Source(state, writers, pace or Pace(share=1.0))
    plan = SavePlan(source.items, storage_data=torch_private.storage_prefix(f"__{writers.number}_"))
    with _os_errors(where):
        return Written(source.items, _writer(create, syncs=syncs).write_data(plan, source).wait())


def finish(parts: Sequence[Written], create: Create, *, syncs: bool = True, where: str = "") -> None:
    """Write the metadata of a checkpoint of which all ``parts`` are written. Raises ``OSError``."""
    _, metadata = create_default_global_save_plan([SavePlan(part.items) for part in parts])
    metadata.planner_data = {name: (name,) for name in metadata.state_dict_metadata}
    with _os_errors(where):
        _writer(create, syncs=syncs).finish(metadata, [part.results for part in parts])


def load(opened: Callable[[str], BinaryIO], where: str = "", cut: Cut = WHOLE) -> Any:
    """The tree that :func:`write` wrote; tensors on the CPU. ``opened``: opens a file by its name.

    With several shards, of the tensors that are sharded only the part is read that ``cut`` describes, as a
    :class:`~elastrain.elastic.state.parts.Part`. Raises ``OSError`` for missing and damaged files, and other errors for
    a damaged structure.
    """
    reader = dcp.FileSystemReader("")
    reader.fs = _Files(opened=opened)
    with _os_errors(where):
        reading = _Reading(reader)
        tree = decode(reading.structure(cut.grid.prefix))
        placed = pytree.tree_map_with_path(lambda path, leaf: _placed(path, leaf, reading, cut), tree)
        reading.read()
    return placed


@dataclass(frozen=True, slots=True)
class Written:
    """What one rank has written, for the metadata of the checkpoint."""

    items: list[WriteItem]
    results: list[WriteResult]


def _writer(create: Create, *, syncs: bool) -> dcp.FileSystemWriter:
    writer = dcp.FileSystemWriter("", sync_files=syncs)
    writer.fs = _Files(create=create)
    return writer


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


@contextmanager
def _os_errors(path: str) -> Iterator[None]:
    """torch's zip writer hides the error of the file system behind one of its own ("unexpected pos"), raised while the
    first one was handled."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno or errno.EIO, e.strerror or str(e), e.filename or path) from e
    except RuntimeError as e:
        raise _cause(e, path) from e


def _cause(error: BaseException, path: str) -> OSError:
    """The system's own error; EIO with the text of ``error`` if there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return OSError(errno.EIO, str(error).strip().split("\n", maxsplit=1)[0], path)
    return OSError(cause.errno, cause.strerror, cause.filename or path)


class _Source(DefaultSavePlanner):
    """What this rank writes. DCP calls it for each tensor just before writing it."""

    def __init__(self, state: dict[str, Any], writers: Writers, pace: Pace) -> None:
        super().__init__()
        self._pace, self._data = pace, dict[str, torch.Tensor]()
        self.items: list[WriteItem] = []
        structure = pytree.tree_map_with_path(lambda p, x: self._add(p, x, writers), state, is_leaf=is_part)
        if writers.describes:
            # DCP would turn its integer keys into strings.
            described = torch.frombuffer(bytearray(encode(structure, "the state")), dtype=torch.uint8)
            self._add_tensor(writers.grid.prefix + _STRUCTURE, described, (0,), described.shape)
        pace.begin()

    def _add(self, path: Path, leaf: Any, writers: Writers) -> Any:
        stands_for = placeholder(path, leaf, writers.grid.prefix)
        if stands_for is leaf:
            return leaf
        if isinstance(stands_for, Entry) and stands_for.dtype is not None and isinstance(leaf, torch.Tensor):
            leaf = leaf.contiguous().view(torch.uint8)
        name, tensor, shape = stands_for.name, leaf, tuple(getattr(leaf, "shape", ()))
        offsets, sizes = [0] * len(shape), list(shape)
        if isinstance(leaf, Part):
            tensor = leaf.local
            offsets, sizes = writers.grid.chunk(shape, leaf.dims)
        of_its_own = not writers.attempt  # no other rank's part has the name of an empty one
        if 0 not in sizes or tensor is leaf or writers.grid.own(()) or of_its_own:
            self._add_tensor(name, tensor, offsets, shape)
        return stands_for

    def _add_tensor(self, name: str, tensor: torch.Tensor, offsets: Sequence[int], shape: Sequence[int]) -> None:
        """``tensor``: the part at ``offsets`` of one of this ``shape``."""
        self._data[name] = tensor
        part = TensorWriteData(
            ChunkStorageMetadata(torch.Size(offsets), tensor.shape),
            TensorProperties.create_from_tensor(tensor),
            torch.Size(shape),
        )
        index = MetadataIndex(name, torch.Size(offsets))
        self.items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=part))

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        self._pace.rest()
        return self._data[write_item.index.fqn]


class _Reading(DefaultLoadPlanner):
    """Reads parts of tensors."""

    def __init__(self, reader: dcp.FileSystemReader) -> None:
        super().__init__()
        self._reader, self._items = reader, list[ReadItem]()
        self._homes: dict[str, torch.Tensor] = {}
        self.saved: Any = reader.read_metadata()

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._of(name).size)

    def tensor(
        self, name: str, offsets: Sequence[int], sizes: Sequence[int], stride: Sequence[int] | None = None
    ) -> torch.Tensor:
        """The home of a part, which :meth:`read` fills. ``stride``: of its memory; default: of a contiguous one."""
        saved = self._of(name)
        dtype = saved.properties.dtype
        home = self._homes[name] = (
            torch.empty(tuple(sizes), dtype=dtype)
            if stride is None
            else torch.empty_strided(sizes, stride, dtype=dtype)
        )
        if 0 not in sizes:
            wanted = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            self._items += create_read_items_for_chunk_list(name, saved, [wanted])
        return home

    def structure(self, prefix: str) -> bytes:
        """Raises ``ValueError`` for a checkpoint of other layers in a rank."""
        if (name := prefix + _STRUCTURE) not in self.saved.state_dict_metadata:
            saved = sorted(n.removesuffix(_STRUCTURE) for n in self.saved.state_dict_metadata if n.endswith(_STRUCTURE))
            raise ValueError(
                f"it has the layers of {', '.join(filter(None, saved)) or 'whole models'}, and this rank needs those "
                f"of {prefix or 'whole models'}: dimensions that divide layers must stay as they were (docs/sharded.md)"
            )
        described = self.tensor(name, (0,), self.shape_of(name))
        self.read()
        return bytes(described.numpy())

    def read(self) -> None:
        self._reader.set_up_storage_reader(self.saved, is_coordinator=True)
        self._reader.read_data(LoadPlan(self._items), self).wait()
        self._items = []

    def _of(self, name: str) -> TensorStorageMetadata:
        saved = self.saved.state_dict_metadata[name]
        if not isinstance(saved, TensorStorageMetadata):
            raise ValueError(f"{name} is no tensor")
        return saved

    # -- called by DCP's reader --------------------------------------------------------------------------------------
    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        home = self._homes[read_item.dest_index.fqn]
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            home = home.narrow(dim, start, length)
        return home

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """It was written in place."""


_STRUCTURE = "structure"


def _placed(path: Path, leaf: Any, reading: _Reading, cut: Cut) -> Any:
    """A tensor, or a part of one, to be read for a placeholder; anything else as it is."""
    if not isinstance(leaf, Entry | Sharded):
        return leaf
    shape = reading.shape_of(leaf.name)
    dims = cut.dims_of(path, shape)
    if dims is None and isinstance(leaf, Sharded) and cut.grid.shape.size > 1:
        dims = ((SHARDS, leaf.dim),)
    if dims is None:
        stride, dtype = getattr(leaf, "stride", None), getattr(leaf, "dtype", None)
        if dtype is not None:
            return reading.tensor(leaf.name, [0] * len(shape), shape).view(dtype)
        return reading.tensor(leaf.name, [0] * len(shape), shape, stride)
    stride = leaf.stride if isinstance(leaf, Sharded) else torch.empty(shape, device="meta").stride()
    return Part(reading.tensor(leaf.name, *cut.grid.chunk(shape, dims)), dims, shape, tuple(stride))
