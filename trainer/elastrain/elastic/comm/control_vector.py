"""The control vector of a rank (:mod:`elastrain.elastic.membership.control`) as a tensor beside its gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from elastrain.elastic.comm.transport import Reading
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed


@dataclass(frozen=True, slots=True)
class Words:
    """What a rank says in a step."""

    connected: Callable[[], Collection[int]]
    """Asked as late as possible, in any thread: a proposal that a rank is not connected to in time waits for another
    step."""
    loss: torch.Tensor
    """Its share of the mean loss; nothing waits for it."""
    compute: float = 0.0
    looking: bool = False
    stop: bool = False


class Said:
    """What a rank has said in one step; an object of its own, so that what comes late does not reach the next one."""

    def __init__(self, values: torch.Tensor, words: Words) -> None:
        self.values = values
        self.connected: frozenset[int] = frozenset()
        self._words = words

    def add_connected(self) -> None:
        """What this rank is connected to now, just before the sum begins. On the host; any thread."""
        self.connected = frozenset(self._words.connected())
        self.values.numpy()[: control.SLOTS] = control.encode(self.connected)


class ControlVector:
    """Said once a step, and heard as the sum of what all ranks have said. Training thread, and autograd's."""

    def __init__(self, like: torch.Tensor) -> None:
        """For gradients ``like`` this tensor: on its device, and of its type where that counts finely enough."""
        self._values = torch.zeros(control.SIZE, device=like.device, dtype=_type_for(like))
        self._words: Words | None = None
        self._told: tuple[frozenset[int], bool, bool] | None = None
        self._said: Said | None = None
        self._read: Reading | None = None

    @property
    def device(self) -> torch.device:
        return self._values.device

    def follow(self, device: torch.device) -> None:
        """The gradients have moved there."""
        self._values = self._values.to(device)

    def prepare(self, words: Words) -> None:
        """What is to be said in this step."""
        self._words, self._said = words, None

    @property
    def waits(self) -> bool:
        """Whether there is something to say that has not been said."""
        return self._words is not None and self._said is None

    def say_on_host(self) -> Said:
        """What is to be summed, in place, as soon as :meth:`Said.add_connected` has completed it."""
        words = self._words
        assert words is not None
        self._said = Said(self._values.clone(), words)
        numbers = self._said.values.numpy()  # the same memory, and ten times as quick to write single numbers to
        numbers[control.LOOKING], numbers[control.STOP] = words.looking, words.stop
        numbers[control.LOSS], numbers[control.COMPUTE] = words.loss.item(), words.compute
        return self._said

    def say_on_device(self) -> torch.Tensor:
        """What is to be summed, in place; what seldom changes costs no kernel as long as it does not."""
        words = self._words
        assert words is not None
        connected = frozenset(words.connected())
        seldom_changes = (connected, words.looking, words.stop)
        values = self._values
        if self._told != seldom_changes:
            told = torch.tensor(control.encode(connected), dtype=values.dtype)
            values[: control.SLOTS].copy_(told, non_blocking=True)  # to a GPU: staged before the call returns
            values[control.LOOKING], values[control.STOP] = float(words.looking), float(words.stop)
            self._told = seldom_changes
        values[control.LOSS] = words.loss.detach()
        values[control.COMPUTE] = words.compute
        self._said = Said(values.clone(), words)
        self._said.connected = connected
        return self._said.values

    def hear(self) -> Summed:
        """The sum, on the host, when it has been awaited. On a GPU the host waits for all that was queued until now."""
        said = self._said
        assert said is not None, "it has not been said"
        self._words = self._said = None
        if not said.values.is_cuda:
            return Summed(said.values.tolist(), said.connected)
        self._read = self._read or Reading(said.values)
        return Summed(self._read(said.values), said.connected)


def _type_for(like: torch.Tensor) -> torch.dtype:
    return like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
