"""The control vector of a rank (:mod:`elastrain.elastic.membership.control`) as a tensor beside its gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from elastrain.elastic.comm.transport import Reading
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed


@dataclass(frozen=True, slots=True)
class ControlInputs:
    """The values that a rank contributes in one step, beside its loss."""

    connected: Callable[[], Collection[int]]
    """Numbers of the proposals that this rank is connected to. Called as late as possible, in any thread: a proposal
    that misses this step waits for the next one."""
    compute: float = 0.0
    """Seconds that this rank computes per step."""
    learning: bool = False
    """Whether this rank will still be receiving its state in the next step."""
    stop: bool = False
    """Whether this rank asks to end training with this step."""
    counted: float = 0.0
    """1 if the script has given a count with each loss of this step; 0: with none; 0.5: with some."""
    count: int = 0
    """Their sum."""

    @property
    def known(self) -> list[float]:
        """The values from ``control.LEARNING`` on, which no device computes."""
        return [float(self.learning), float(self.stop), self.counted, *control.digits(self.count)]


class Published:
    """The control vector that a rank contributes to one step. A late sum therefore never reaches the next step."""

    def __init__(self, values: torch.Tensor, inputs: ControlInputs) -> None:
        self.values = values
        """Shape (control.SIZE,)."""
        self.connected: frozenset[int] = frozenset()
        self._inputs = inputs

    def add_connected(self) -> None:
        """Add the present connections, just before the sum begins. For tensors of the host; any thread."""
        self.connected = frozenset(self._inputs.connected())
        self.values.numpy()[: control.SLOTS] = control.encode(self.connected)


class ControlVector:
    """Published once a step, and read as the sum over all ranks. For the training thread and autograd's threads."""

    def __init__(self, like: torch.Tensor) -> None:
        """For gradients like this tensor: on its device, and of its type if that is float32 or float64."""
        self._values = torch.zeros(control.SIZE, device=like.device, dtype=_type_for(like))
        self._inputs: ControlInputs | None = None
        self._loss = torch.zeros(())
        self._on_device: list[float] = []
        """The values that do not come from a device, as ``_values`` holds them."""
        self._published: Published | None = None
        self._read: Reading | None = None

    @property
    def device(self) -> torch.device:
        return self._values.device

    def follow(self, device: torch.device) -> None:
        """The gradients have moved to ``device``."""
        self._values = self._values.to(device)

    def prepare(self, inputs: ControlInputs, loss: torch.Tensor) -> None:
        """Set the values of this step. ``loss``: this rank's part of the mean loss, a scalar; nothing waits for it."""
        self._inputs, self._loss, self._published = inputs, loss, None

    @property
    def pending(self) -> bool:
        """Whether values were prepared and not published."""
        return self._inputs is not None and self._published is None

    def publish_on_host(self) -> Published:
        """The vector to be summed in place, as soon as :meth:`Published.add_connected` has completed it."""
        inputs = self._inputs
        assert inputs is not None
        self._published = Published(self._values.clone(), inputs)
        numbers = self._published.values.numpy()  # the same memory; writing single numbers is ten times as fast
        numbers[control.LEARNING :] = inputs.known
        numbers[control.LOSS], numbers[control.COMPUTE] = self._loss.item(), inputs.compute
        return self._published

    def publish_on_device(self) -> torch.Tensor:
        """The vector to be summed in place. Values of the host cost one copy if they change, and otherwise nothing."""
        inputs = self._inputs
        assert inputs is not None
        connected = frozenset(inputs.connected())
        held = [*control.encode(connected), 0.0, 0.0, *inputs.known]
        values = self._values
        if self._on_device != held:
            values.copy_(torch.tensor(held, dtype=values.dtype), non_blocking=True)  # staged before the call returns
            self._on_device = held
        values[control.LOSS] = self._loss.detach()
        values[control.COMPUTE] = inputs.compute
        self._published = Published(values.clone(), inputs)
        self._published.connected = connected
        return self._published.values

    def read(self) -> Summed:
        """The sum, on the host, after it was awaited. On a GPU the host waits for all work queued until now."""
        published = self._published
        assert published is not None, "the vector was not published"
        self._inputs = self._published = None
        if not published.values.is_cuda:
            return Summed(published.values.tolist(), published.connected)
        self._read = self._read or Reading(published.values)
        return Summed(self._read(published.values), published.connected)


def _type_for(like: torch.Tensor) -> torch.dtype:
    return like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
