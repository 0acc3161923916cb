"""The time that a rank computes on a device, by events: the host goes on before its device has computed.

Two events enclose each part of a step in which the rank waits for no other one. An event on a stream without work is
reached at once, so that the host's own time (data, Python) counts where the device waits for it. Nothing here waits for
the device: the host waits once a step for its sums (:meth:`Communicator.await_sums`), which come behind the last event,
and only then are the times read.
"""

from __future__ import annotations

import torch


class DeviceTime:
    """Of the present step. For the training thread and autograd's threads."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        """Of the computation: the training thread's current one. The sums of a sharded model have others."""
        self._began: torch.cuda.Event | None = None
        """Of the part under way; None: the rank waits, or is outside of a step."""
        self._parts: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def begin(self) -> None:
        """A step begins in the training thread."""
        self._parts, self._began = [], None
        self.follow()

    def follow(self) -> None:
        """The training thread computes on its current stream."""
        self._stream = torch.cuda.current_stream(self._device)

    def computes(self) -> None:
        """From now on this rank waits for no other one."""
        self._began = self._event()

    def waits(self) -> None:
        """What follows may wait for others."""
        if self._began is not None:
            self._parts.append((self._began, self._event()))
            self._began = None

    @property
    def seconds(self) -> float:
        """Of the parts that are over; 0: the device has not reached the end of one, so that its time is not known."""
        if not all(end.query() for _, end in self._parts):
            return 0.0
        milliseconds: float = sum(began.elapsed_time(end) for began, end in self._parts)
        return milliseconds / 1e3

    def _event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event
