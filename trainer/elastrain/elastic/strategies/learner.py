"""The steps of a learner: a rank that receives its state while the other ranks compute the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.strategies.buckets import Bucket
from elastrain.elastic.torch_private import pytree


class Outputs:
    """The model's outputs in the warm-up, which loop bodies see as long as a part of the model has not arrived.

    The code of the script then computes with numbers of its own kind and shape, not with those of half a model.
    """

    def __init__(self) -> None:
        self._recorded: list[Any] = []
        self._next: int | None = None

    def record(self, output: Any) -> Any:
        """Note the output of a forward of the warm-up, and return it."""
        self._recorded.append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, output))
        return output

    def forget(self) -> None:
        """The state is complete: release the memory."""
        self._recorded = []

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Within it :meth:`replay` returns the recorded outputs, one for each forward."""
        self._next = 0
        try:
            yield
        finally:
            self._next = None

    @property
    def replaying(self) -> bool:
        """Whether the next forward returns a recorded output; False beyond the last one."""
        return self._next is not None and self._next < len(self._recorded)

    def replay(self) -> Any:
        """The next recorded output; its floating-point tensors require gradients, as after a forward."""
        assert self._next is not None
        output, self._next = self._recorded[self._next], self._next + 1
        return pytree.tree_map_only(torch.Tensor, _as_computed, output)


def _as_computed(recorded: torch.Tensor) -> torch.Tensor:
    if not (recorded.is_floating_point() or recorded.is_complex()):
        return recorded.clone()
    return recorded.detach().requires_grad_().clone()  # no leaf: scripts may change it in place


class Learner:
    """Takes the sum of the other ranks' gradients in place of a backward, and adds nothing to it.

    The optimizer of a learner then applies the same update as on all other ranks.
    """

    def __init__(self, buckets: Callable[[], Sequence[Bucket]]) -> None:
        """``buckets()``: those of the model's gradients, filled with zeros, for a step of a learner."""
        self._empty = buckets
        self._buckets: Sequence[Bucket] = ()
        self._sums: list[torch.futures.Future[torch.Tensor]] = []
        self.active = False
        """Whether :meth:`begin` was called, and neither :meth:`finish` nor :meth:`cancel` since."""
        self.receiving = False
        """Whether a part of the state will still be missing after the step."""
        self.outputs = Outputs()

    def begin(self, communicator: Communicator, *, receiving: bool) -> None:
        """Begin the sums of a step, while the state arrives; the first time before :meth:`ReplicatedModule.attach`.

        All ranks have agreed on it. ``receiving``: as of :attr:`receiving`.
        """
        self.active, self.receiving, self._buckets = True, receiving, self._empty()
        self._sums = [communicator.sum_bucket(bucket.flat) for bucket in self._buckets]

    def finish(self) -> None:
        """Wait for the sums: the gradients are those of the global batch, as after a backward.

        After a failure the communicator is broken and the gradients are void.
        """
        torch.futures.wait_all(self._sums)
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                parameter.grad = view
        self.cancel()

    def cancel(self) -> None:
        """Give the step up, after the communicator broke."""
        self.active, self._buckets, self._sums = False, (), []
