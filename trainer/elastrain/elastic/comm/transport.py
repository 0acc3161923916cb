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

from typing import Protocol

import torch

from elastrain.elastic.comm.header import Label

CONNECT_SECONDS = 30.0
"""Bound of connecting to all peers after the ranks of a generation have met (:mod:`elastrain.elastic.comm.exchange`),
once for each transport."""
COLLECTIVE_SECONDS = 1800.0
"""Bound of one collective, torch's own default. It does not apply to lost peers: their generation is aborted."""


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

    The strategies have made that stream wait for every sum. The thread sleeps instead of spinning: data loaders
    need the core.
    """
    if device.type == "cuda":
        done = torch.cuda.Event(blocking=True)
        done.record(torch.cuda.current_stream(device))
        done.synchronize()


class OnHost:
    """Numbers on their way to the host, which goes on meanwhile.

    The copy follows the work that is queued on this thread's current stream. After a wait for later work of that stream
    (:func:`wait_for`) reading them waits for nothing.
    """

    def __init__(self, value: torch.Tensor) -> None:
        self._value, self._copied = value.detach(), None
        if value.is_cuda:
            self._value = page_locked_like(value).copy_(value.detach(), non_blocking=True)
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record(torch.cuda.current_stream(value.device))

    def number(self) -> float:
        """The only one. Waits for its copy."""
        if self._copied is not None:
            self._copied.synchronize()
        number: float = self._value.tolist()
        return number


def page_locked_like(value: torch.Tensor) -> torch.Tensor:
    """Memory of the host for ``value``, which its device writes directly."""
    return torch.empty(value.shape, dtype=value.dtype, pin_memory=True)


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
