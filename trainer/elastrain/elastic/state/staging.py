"""Copies state between the device where it lies and the host's memory, where it is sent, received and checked.

Each connection uses one page-locked buffer with the size of a piece. The device needs no memory beside the state, and
the checksum is computed on the host. Tensors of the host are used in place.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch


class Stage:
    """The staging buffer of one connection; for one thread and one piece at a time."""

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
        """Host memory to receive the new bytes of ``piece`` into; :meth:`finish` copies them to ``piece``."""
        return piece if on_host(piece) else self._buffer_for(piece)

    def finish(self, received: torch.Tensor, piece: torch.Tensor) -> None:
        """Copy ``received``, from :meth:`begin`, to ``piece``, unless it is ``piece`` itself."""
        if received is not piece:
            piece.copy_(received)  # returns when it is done

    def _buffer_for(self, piece: torch.Tensor) -> torch.Tensor:
        if self._buffer is None:
            self._buffer = page_locked(self._size, piece.device)
        return self._buffer[: piece.numel()]


def on_host(tensor: torch.Tensor) -> bool:
    """Whether the tensor lies in the host's memory."""
    kind: str = tensor.device.type
    return kind == "cpu"


def page_locked(size: int, device: torch.device) -> torch.Tensor:
    """``size`` bytes of host memory that ``device`` can read and write directly."""
    if device.type != "cuda":
        return torch.empty(size, dtype=torch.uint8)
    with torch.cuda.device(device):  # a new thread's current device is the first one, and would get a context
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def reserve(device: torch.device, count: int, size: int) -> None:
    """Have torch keep ``count`` page-locked buffers of ``size`` bytes for later.

    CUDA may hold an allocation of page-locked memory back until the device is idle. A learner's device waits for the
    other ranks in its sums, while the learner is to receive its state.
    """
    if device.type != "cpu":
        _ = [page_locked(size, device) for _ in range(count)]  # freed into torch's cache


def settle(tensors: Iterable[torch.Tensor]) -> None:
    """Wait for all work that this thread has queued for the tensors' devices.

    Call it before copies made :func:`apart`, which are not ordered after that work. Work that other threads have queued
    is not waited for.
    """
    for device in {t.device for t in tensors if t.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def apart(tensors: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    """A context in which this thread copies the tensors on a stream of its own.

    On the default stream each copy would wait for the whole step that the training thread has queued.
    """
    device = next((t.device for t in tensors if t.is_cuda), None)
    return nullcontext() if device is None else torch.cuda.stream(torch.cuda.Stream(device))
