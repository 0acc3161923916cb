"""The way of state between the host's memory, where it is sent, received and checked, and the device where it lies.

Through one page-locked buffer of a piece's size per connection: a device's memory needs nothing beside the state, and
the checksum is computed where the network reads and writes. Tensors of the host are used as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch


class Stage:
    """For the pieces of one connection, one after the other; for one thread."""

    def __init__(self, size: int) -> None:
        """``size``: bytes of the largest piece."""
        self._size = size
        self._buffer: torch.Tensor | None = None

    def to_host(self, piece: torch.Tensor) -> torch.Tensor:
        """The bytes of ``piece`` in the host's memory, until the next call."""
        if on_host(piece):
            return piece
        buffer = self._buffer_for(piece)
        buffer.copy_(piece)  # returns when it is done
        return buffer

    def begin(self, piece: torch.Tensor) -> torch.Tensor:
        """Host memory to receive the new bytes of ``piece`` into; :meth:`finish` brings them home."""
        return piece if on_host(piece) else self._buffer_for(piece)

    def finish(self, received: torch.Tensor, piece: torch.Tensor) -> None:
        if received is not piece:
            piece.copy_(received)  # returns when it is done

    def _buffer_for(self, piece: torch.Tensor) -> torch.Tensor:
        if self._buffer is None:
            self._buffer = page_locked(self._size, piece.device)
        return self._buffer[: piece.numel()]


def on_host(tensor: torch.Tensor) -> bool:
    kind: str = tensor.device.type
    return kind == "cpu"


def page_locked(size: int, device: torch.device) -> torch.Tensor:
    """Host memory that ``device`` can read and write by itself."""
    if device.type != "cuda":
        return torch.empty(size, dtype=torch.uint8)
    with torch.cuda.device(device):  # a new thread's current device is the first one, and would get a context
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait until nothing that this thread has queued for the tensors' devices is still to be done.

    What follows happens :func:`apart`, which is not ordered after it. Sums that others have queued are not waited for.
    """
    for device in {t.device for t in tensors if t.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def apart(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    """A context in which this thread's copies of the tensors wait for no training: on a stream of their own.

    Else each would come after the whole step that the training thread has queued already.
    """
    device = next((t.device for t in tensors if t.is_cuda), None)
    return nullcontext() if device is None else torch.cuda.stream(torch.cuda.Stream(device))
