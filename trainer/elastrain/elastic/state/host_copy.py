"""Copies of the training state in the host's memory, which a device makes while the host goes on.

Tensors on a CUDA device are copied into page-locked memory by the stream that trains. All that changes the state later
is queued behind the copies: an update, but also the statistics that a forward keeps, a perturbation of the weights or
an average. On a stream of their own the copies would run beside the next step, up to its first write, and those writes
have no one place (:mod:`elastrain.elastic.undo.leaves`). The host waits for nothing; a reader waits for an event.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

import torch

from elastrain.elastic.comm.stock.captures import relaxed
from elastrain.elastic.comm.transport import event_behind, page_locked
from elastrain.elastic.state import capture
from elastrain.elastic.torch_private import pytree

BLOCK_BYTES = 64 * 2**20
"""Of page-locked memory that is requested at a time, if no tensor is larger."""
DEVICE_SHARE = 1 / 16
"""Part of a device's memory up to which it holds a copy of its own tensors. A larger copy lies in page-locked memory of
the host: a script that fills its device still fits, and its steps are long beside the copy."""
_ALIGNED = 64
"""Bytes; a multiple of every type's size."""
Path = tuple[Any, ...]


class HostCopy:
    """The memory of one copy, which the next one uses again. For one thread."""

    def __init__(self) -> None:
        self._tree: Any = None

    def take(self, tree: Any) -> Copied:
        """Begin to copy ``tree``. Tensors of the host are copied on return. The copy before is no longer needed."""
        before = dict(pytree.tree_flatten_with_path(self._tree)[0])
        queued = {path: leaf for path, leaf in pytree.tree_flatten_with_path(tree)[0] if _is_queued(leaf)}
        homes = _homes(queued, before)

        def copy(path: Path, leaf: Any) -> Any:
            if path in homes:
                return homes[path].copy_(leaf.detach(), non_blocking=True)
            return capture.copy_of(leaf, before.get(path), "cpu")

        self._tree = pytree.tree_map_with_path(copy, tree)
        return Copied(self._tree, list(queued.values()))

    def forget(self) -> None:
        """Release the memory; that of a copy which is in use, later."""
        self._tree = None


class Copied:
    """A copy of which the last tensors may be under way, or a state of which nothing is."""

    def __init__(self, tree: Any, queued: Sequence[torch.Tensor] = ()) -> None:
        """``queued``: the tensors that this thread's current streams copy."""
        self._tree, self._queued = tree, queued
        self._events = [event_behind(device) for device in {tensor.device for tensor in queued}]

    def complete(self) -> Any:
        """The copied tree; waits for it. Any thread. Call it before the copy is given up: a device may write to it."""
        for event in self._events:
            with relaxed():
                event.synchronize()
        self._queued = ()  # only now may other tensors get their memory
        return self._tree


def _is_queued(leaf: Any) -> bool:
    """Whether a device copies it. Not a subclass that keeps its values otherwise, such as an 8-bit optimizer's."""
    if not isinstance(leaf, torch.Tensor) or type(leaf).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    return bool(leaf.is_cuda) and leaf.layout == torch.strided and not leaf.is_quantized


def _homes(leaves: Mapping[Path, torch.Tensor], before: Mapping[Path, Any]) -> dict[Path, torch.Tensor]:
    """Memory for the copy of each leaf: that of the copy ``before`` where it fits."""
    homes = {path: before[path] for path, leaf in leaves.items() if _fits(before.get(path), leaf)}
    new = {path: leaf for path, leaf in leaves.items() if path not in homes}
    blocks, places = packed([leaf.nbytes for leaf in new.values()])
    device = next((leaf.device for leaf in new.values()), torch.device("cpu"))
    memory = [page_locked(size, device).numpy() for size in blocks]
    for (path, leaf), (block, offset) in zip(new.items(), places, strict=True):
        stride = capture.slot(leaf).stride
        if not leaf.nbytes:
            homes[path] = torch.empty_strided(leaf.shape, stride, dtype=leaf.dtype)
            continue
        # A storage of its own: torch.save writes all of a tensor's storage.
        flat = torch.frombuffer(memory[block], dtype=torch.uint8, count=leaf.nbytes, offset=offset)
        homes[path] = flat.view(leaf.dtype).as_strided(leaf.shape, stride)
    return homes


def _fits(home: Any, leaf: torch.Tensor) -> bool:
    if not isinstance(home, torch.Tensor) or home.layout != torch.strided or home.device.type != "cpu":
        return False
    return (home.dtype, home.shape, home.stride()) == (leaf.dtype, leaf.shape, capture.slot(leaf).stride)


def packed(sizes: Sequence[int], block_bytes: int = BLOCK_BYTES) -> tuple[list[int], list[tuple[int, int]]]:
    """Memory for tensors of ``sizes`` bytes: its blocks, and of each tensor the block and its first byte there. Pure.

    Blocks are powers of two, since torch would round them up. The largest tensors come first, and smaller ones fill
    what they leave: one block each would take up to twice their bytes.
    """
    room: list[tuple[int, int]] = []  # the negative of a block's free bytes, which are its last ones, and its number
    blocks, places, left = list[int](), [(0, 0)] * len(sizes), sum(map(_aligned, sizes))
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size = _aligned(sizes[number])
        if not room or -room[0][0] < size:
            blocks.append(1 << (max(size, min(left, block_bytes)) - 1).bit_length())
            heapq.heappush(room, (-blocks[-1], len(blocks) - 1))
        free, block = room[0]
        places[number] = block, blocks[block] + free
        heapq.heapreplace(room, (free + size, block))
        left -= size
    return blocks, places


def _aligned(size: int) -> int:
    return -(-max(size, 1) // _ALIGNED) * _ALIGNED


# -- of a loop body ----------------------------------------------------------------------------------------------------
class Memory:
    """Of the copies with which a loop body begins; the next ones use it again. For one thread."""

    def __init__(self) -> None:
        self._homes, self._host = list[torch.Tensor](), HostCopy()

    def copy(self, tensors: list[torch.Tensor]) -> Copied:
        """Copies of ``tensors``: on their devices, or on the host if one of them is :func:`crowded`."""
        sizes = Counter[torch.device]()
        for tensor in tensors:
            sizes[tensor.device] += tensor.nbytes if tensor.layout is torch.strided else 0
        if any(crowded(nbytes, _memory_of(device)) for device, nbytes in sizes.items()):
            self._homes = []
            return self._host.take(tensors)
        self._host.forget()
        homes = chain(self._homes, repeat(None))
        self._homes = [capture.copy_of(tensor, home) for tensor, home in zip(tensors, homes, strict=False)]
        return Copied(self._homes)


def crowded(nbytes: int, memory: int | None) -> bool:
    """Whether a device with ``memory`` bytes has no room for a copy of ``nbytes``; None: it is the host. Pure."""
    return memory is not None and nbytes > DEVICE_SHARE * memory


def _memory_of(device: torch.device) -> int | None:
    """Bytes that ``device`` has, used or free; None: its memory is the host's."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
