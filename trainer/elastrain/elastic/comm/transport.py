"""The seam between the runtime and what sums tensors over the ranks of one generation: TCP connections or NCCL.

The runtime relies on three rules. Each transport keeps them in its own way:

- :meth:`Transport.sum` never waits and never raises because of a peer. The returned future can be awaited. For a tensor
  on a device, awaiting orders streams and the host continues.
- The cause of an abort is recorded (:attr:`Communicator.broken`) before anything ends by that abort. A caller that
  reads a sum after an abort therefore also sees that the sum is invalid.
- After :meth:`Communicator.await_sums` no sum of this rank is under way. Only then may the rank vote for the step
  (:mod:`elastrain.elastic.commit.vote`): its own sums may be wrong if a *peer* has aborted, and then that peer
  does not vote.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import structlog
import torch

from elastrain.elastic.comm.header import Label

CONNECT_SECONDS = 30.0
"""Bound of connecting to all peers after the ranks of a generation have met (:mod:`elastrain.elastic.comm.meeting`),
once for each transport."""
COLLECTIVE_SECONDS = 1800.0
"""Bound of one collective, torch's own default. It does not apply to lost peers: their generation is aborted."""

log = structlog.get_logger(__name__)


class CalledOff(Exception):
    """The caller no longer needs the connections that were being formed."""


class Transport(Protocol):
    """Connected on construction. One thread calls :meth:`sum`."""

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether the transport sums tensors with this device and layout."""

    def sum(self, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum ``buffer`` over all ranks, in place, for the purpose ``label``.

        Raises ``RuntimeError`` if the sum cannot begin.
        """


def wait_for(device: torch.device) -> None:
    """Return when all work is done that is queued on this thread's current stream of ``device``.

    The strategies have made that stream wait for every sum.
    """
    if device.type == "cuda":
        event_behind(device).synchronize()


def event_behind(device: torch.device) -> torch.cuda.Event:
    """An event behind all work that is queued on this thread's current stream of ``device``, a CUDA one.

    A thread that waits for it sleeps instead of spinning: data loaders need the core.
    """
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event


class OnHost:
    """Numbers on their way to the host, which goes on meanwhile.

    The copy follows the work that is queued on this thread's current stream. After a wait for later work of that stream
    (:func:`wait_for`) reading them waits for nothing.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._value, self._copied = value.detach(), None
        if value.is_cuda:
            self._value = page_locked(value.shape, value.device, value.dtype).copy_(value.detach(), non_blocking=True)
            self._copied = event_behind(value.device)

    def number(self) -> float:
        """The only one. Waits for its copy."""
        if self._copied is not None:
            self._copied.synchronize()
        number: float = self._value.tolist()
        return number


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` itself, or a complete copy of one on a device, in page-locked memory."""
    if tensor.device.type == "cpu":
        return tensor
    copy = page_locked(tensor.shape, tensor.device, tensor.dtype).copy_(tensor, non_blocking=tensor.is_cuda)
    wait_for(tensor.device)
    return copy


def page_locked(shape: int | Sequence[int], device: torch.device, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """Memory of the host that ``device``, a CUDA one, reads and writes directly; for another device ordinary memory.

    Ordinary memory too, with one warning, where none can be page-locked: copies then block the host. torch keeps what
    is freed, and takes a power of two of bytes for each request.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    if device.type == "cuda":
        try:
            with torch.cuda.device(device):  # a new thread's current device is the first one, and would get a context
                return torch.empty(shape, dtype=dtype, pin_memory=True)
        except RuntimeError as e:
            _warn_of_ordinary_memory(first_line(e))
    return torch.empty(shape, dtype=dtype)


@functools.cache
def _warn_of_ordinary_memory(error: str) -> None:
    log.warning("the host's memory cannot be page-locked: copies from and to devices are slower", error=error)


def completed(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future that already holds ``value``."""
    future = future_on(value)
    future.set_result(value)
    return future


def future_on(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future for a tensor on ``value``'s device. On CUDA, awaiting it orders streams; the host continues."""
    return torch.futures.Future(devices=[value.device] if value.is_cuda else None)


def described(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    line = first_line(error)
    return line if line == type(error).__name__ else f"{type(error).__name__}: {line}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the class name if the message is empty."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
