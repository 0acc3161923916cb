"""What sums tensors over the ranks of one generation: the seam between the runtime and gloo or NCCL.

The runtime above knows four rules, and each transport keeps them in its own way:

- :meth:`Transport.sum` never waits and never raises for a peer's sake. What it returns may be awaited by whoever uses
  the sums; where they lie on a device, awaiting orders streams and the host runs on.
- The *cause* of an abort is on record (:attr:`Communicator.broken`) before :meth:`Transport.abort` begins, so whoever
  sees a sum after an abort also sees that it is worth nothing.
- Whoever reads a value on the host by a :class:`Reading` has waited for everything that was queued before it. Only then
  does :attr:`Communicator.broken` say whether a step counts.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Transport(Protocol):
    """Made by its class's constructor, which returns when all ranks of the generation are connected. One thread calls
    :meth:`sum`; the others are for any.
    """

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether it sums tensors of this kind."""

    def sum(self, buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """Begin to sum ``buffer`` over all ranks, in place. Raises ``RuntimeError`` if it cannot even begin."""

    def abort(self, cause: str) -> None:
        """Have all that is under way end within a bound, here. Idempotent; does not block."""

    def close(self) -> None:
        """Release everything; may take a while, so off the training thread."""


class Reading:
    """Reads small tensors of one device on the host, with a single synchronisation: one event.

    The event is recorded after the copy, on the stream that backward and DDP's own copies were queued on, which has
    been made to wait for every bucket: when it has come, no sum of the step is still under way.
    """

    def __init__(self, like: torch.Tensor) -> None:
        """For tensors on ``like``'s device, of its type and shape."""
        self._host = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        self._event = torch.cuda.Event(blocking=True)  # sleeps rather than spins: data loaders want the core

    def __call__(self, values: torch.Tensor) -> list[float]:
        self._host.copy_(values, non_blocking=True)
        self._event.record(torch.cuda.current_stream(values.device))
        self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


def completed(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The future of what is there already."""
    future = future_on(value)
    future.set_result(value)
    return future


def future_on(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future for a tensor on ``value``'s device. Awaiting one of a device orders streams; the host does not wait."""
    return torch.futures.Future(devices=[value.device] if value.is_cuda else None)
