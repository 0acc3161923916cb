"""The steps of a learner: a rank that receives its state while the other ranks compute the whole batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import torch
from torch import nn

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.control_vector import ControlInputs
from elastrain.elastic.membership.control import Summed


class Bucket(Protocol):
    """What is used of torch's ``GradBucket`` and its like."""

    def parameters(self) -> list[nn.Parameter]: ...

    def gradients(self) -> list[torch.Tensor]: ...

    def buffer(self) -> torch.Tensor: ...


class LearnerModel(Protocol):
    """What a learner uses of a :class:`~elastrain.elastic.strategies.replicated.ReplicatedModule`."""

    def prepare(self, inputs: ControlInputs, loss: torch.Tensor) -> None: ...

    def empty_buckets(self) -> Sequence[Bucket]: ...

    def begin_sum(
        self, communicator: Communicator, buffer: torch.Tensor, *, last: bool
    ) -> torch.futures.Future[torch.Tensor]: ...

    def publish(self, communicator: Communicator) -> None: ...

    def control_sums(self, communicator: Communicator) -> Summed: ...


class Learner:
    """Takes the sum of the other ranks' gradients in place of a backward, and adds nothing to it.

    The optimizer of a learner then applies the same update as on all other ranks.
    """

    def __init__(self, model: LearnerModel) -> None:
        self._model = model
        self._gradients: list[tuple[nn.Parameter, torch.Tensor]] = []
        """Where each parameter's gradient is summed."""
        self._sums: list[torch.futures.Future[torch.Tensor]] = []
        self.active = False
        """Whether :meth:`begin` was called, and neither :meth:`finish` nor :meth:`cancel` since."""

    def begin(self, communicator: Communicator, connected: Collection[int], *, receiving: bool) -> None:
        """Begin the sums of a step, while the state arrives; the first time before :meth:`ReplicatedModule.attach`.

        All ranks have agreed on it. ``connected``: numbers of the proposals that this rank could switch to.
        ``receiving``: after this step a part of the state will still be missing.
        """
        self._model.prepare(ControlInputs(lambda: connected, learning=receiving), torch.zeros(()))
        self.active, self._gradients, self._sums = True, [], []
        buckets = self._model.empty_buckets()
        for bucket in buckets:
            self._gradients.extend(zip(bucket.parameters(), bucket.gradients(), strict=True))
            self._sums.append(self._model.begin_sum(communicator, bucket.buffer(), last=bucket is buckets[-1]))
        self._model.publish(communicator)

    def finish(self, communicator: Communicator) -> Summed:
        """Wait for the sums: the gradients are those of the global batch, as after a backward.

        Returns the control vector of all ranks. After a failure the communicator is broken and the gradients are void.
        """
        self.active = False
        torch.futures.wait_all(self._sums)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self.cancel()
        return self._model.control_sums(communicator)

    def cancel(self) -> None:
        """Give the step up, after the communicator broke."""
        self.active, self._gradients, self._sums = False, [], []
