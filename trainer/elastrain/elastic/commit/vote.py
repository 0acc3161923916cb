"""The control vector (:mod:`elastrain.elastic.commit.control`) as this rank's vote for a step.

The commit rule (docs/architecture.md): a step counts on a rank only if it has the sum of the votes of all ranks of the
generation. A rank votes once nothing that it may do afterwards can damage a gradient of the step on any rank:

- gradients in the host's memory travel over the generation's own connections. An abort ends these and never delivers
  other bytes, so that the vote may travel behind them, with the last bucket;
- gradients on a device are summed by kernels, and a kernel that an abort has ended may leave its peers with old data
  that looks like a sum. A rank therefore votes when its device has finished the sums and it has not begun an abort.

The vote always travels over the host's connections, in two hops: a rank that has the sum knows that all have voted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.small_gradient import SmallGradient


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
    save: int = 0
    """This rank's vote on a checkpoint after this step."""
    kept: bool = False
    """Whether this rank adds the gradients of this step to those of a step before."""
    batch: tuple[int, float] = (0, 0.0)
    """With ``spec.batch``: as of :meth:`elastrain.elastic.batching.ScriptsBatch.votes`."""
    replica: int | None = None
    """As of :meth:`elastrain.elastic.replicas.replicas.Replicas.take_number`; None on all ranks, or on none."""

    @property
    def known(self) -> list[float]:
        """The values from ``control.LEARNING`` on, which no device computes."""
        decided = [float(self.save), float(self.kept)]
        return [float(self.learning), float(self.stop), self.counted, *control.digits(self.count), *decided]


class Published:
    """The control vector that a rank contributes to one step. A late sum therefore never reaches the next step."""

    def __init__(self, values: torch.Tensor, inputs: ControlInputs) -> None:
        self.values = values
        """Shape (control.SIZE,), or (control.WITH_BATCH,)."""
        self.connected: frozenset[int] = frozenset()
        self.replicas: torch.Tensor | None = None
        """Shape (ranks,): the numbers of all replicas, once they are summed: each rank adds its own."""
        self._inputs = inputs

    def add_replica(self, rank: int, ranks: int) -> list[torch.Tensor]:
        """What travels beside the vector: :attr:`replicas` if they are compared in this step."""
        if (mine := self._inputs.replica) is None:
            return []
        self.replicas = torch.zeros(ranks, dtype=torch.int64)
        self.replicas[rank] = mine
        return [self.replicas]

    def add_connected(self) -> None:
        """Add the present connections, just before the sum begins. Any thread."""
        self.connected = frozenset(self._inputs.connected())
        self.values.numpy()[: control.SLOTS] = control.encode(self.connected)


class ControlVector:
    """Published once a step, and read as the sum over all ranks. For the training thread and autograd's threads."""

    def __init__(self, like: torch.Tensor) -> None:
        """For gradients like this tensor: of its type if that is float32 or float64. The vector lies on the host."""
        self.small: SmallGradient | None = None
        """With ``spec.batch``: what this rank measures of the noise. The vector has the slots for it then."""
        self._dtype = _type_for(like)
        self._inputs: ControlInputs | None = None
        self._loss = torch.zeros(())
        self._published: Published | None = None
        self._sum: torch.futures.Future[torch.Tensor] | None = None

    def prepare(self, inputs: ControlInputs, loss: torch.Tensor) -> None:
        """Set the values of this step. ``loss``: this rank's part of the mean loss, a scalar; nothing waits for it."""
        self._inputs, self._loss, self._published = inputs, loss, None

    def travels_with(self, communicator: Communicator, last: torch.Tensor) -> bool:
        """Whether the vote can travel with the ``last`` bucket of gradients."""
        return self._inputs is not None and self._published is None and communicator.is_on_host(last)

    def vote(
        self, communicator: Communicator, *beside: torch.Tensor, kind: Kind = Kind.GRADIENTS
    ) -> list[torch.futures.Future[torch.Tensor]]:
        """Begin the sum of the votes, and of tensors of the host ``beside`` it, whose futures are returned."""
        inputs = self._inputs
        assert inputs is not None
        size = control.SIZE if self.small is None else control.WITH_BATCH
        self._published = published = Published(torch.zeros(size, dtype=self._dtype), inputs)
        numbers = published.values.numpy()  # the same memory; writing single numbers is ten times as fast
        if self.small is not None:
            numbers[control.SIZE :] = (*inputs.batch, *self.small.votes())
        numbers[control.LEARNING : control.SIZE] = inputs.known
        numbers[control.LOSS], numbers[control.COMPUTE] = self._loss.item(), inputs.compute
        replicas = published.add_replica(communicator.rank, communicator.world_size)
        *others, self._sum = communicator.sum_together(
            *beside, *replicas, published.values, kind=kind, before=published.add_connected
        )
        return others[: len(beside)]

    def conclude(self, communicator: Communicator, *beside: torch.Tensor) -> Summed:
        """The sum of the votes of all ranks, void if the communicator has broken. Nothing of the step is under way.

        Votes now, unless the vote went with the last bucket: then ``beside`` travels with it.
        """
        if self._published is None:
            communicator.await_sums()
            torch.futures.wait_all(self.vote(communicator, *beside, kind=Kind.CONTROL))
        published = self._published
        assert published is not None and self._sum is not None
        self._sum.wait()
        self._inputs = self._published = self._sum = None
        replicas = [] if published.replicas is None else published.replicas.tolist()
        return Summed(published.values.tolist(), published.connected, replicas=replicas)


def _type_for(like: torch.Tensor) -> torch.dtype:
    return like.dtype if like.dtype in (torch.float32, torch.float64) else torch.float32
