"""A rank's vote for a step: the control vector (:mod:`elastrain.elastic.commit.control`), behind all gradients.

The commit rule (docs/architecture.md): a step counts on a rank only if it has the sum of the votes of all ranks of the
generation. A rank votes when no sum of the step is under way on it, and if it has begun no abort: then nothing that it
may do afterwards can damage a gradient of the step on any rank. For gradients on a device that is more than the end of
its own sums: a kernel that an abort has ended may leave its peers with old data that looks like a sum, and then the
rank that has aborted does not vote.

The vote is a sum of its own on every transport. It travels over the host's connections, up a tree of the ranks and down
again (:mod:`elastrain.elastic.comm.tree`): a rank that has the sum knows that all have voted, and has passed it on to
those that get it from this rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import torch

from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed


@dataclass(frozen=True, slots=True)
class Vote:
    """What a rank adds to the sum."""

    connected: Collection[int]
    """Numbers of the proposals that this rank is connected to. A proposal that misses this step waits for the next."""
    loss: float = 0.0
    """Its part of the mean loss over the global batch."""
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
    riders: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """What is summed beside it, by its name in :class:`Summed`: equally many numbers on all ranks."""
    replica: int | None = None
    """As of :meth:`elastrain.elastic.replicas.replicas.Replicas.take_number`; None on all ranks, or on none."""


def cast(communicator: Communicator, own: Callable[[], Vote]) -> Summed:
    """The sum of the votes of all ranks. Void if the communicator has broken, which the caller sees from it.

    ``own()``: this rank's vote, as late as possible. The host waits for the gradients' sums on devices, calls it, and
    then waits for the votes. The vector is new for each vote: a late sum never reaches the next step.
    """
    communicator.await_sums()
    vote = own()
    connected = frozenset(vote.connected)
    fixed = [
        vote.loss, vote.compute, vote.learning, vote.stop, vote.counted, vote.count, vote.save, vote.kept
    ]  # fmt: skip
    others = [number for numbers in vote.riders.values() for number in numbers]
    values = torch.tensor([*control.encode(connected), *fixed, *others], dtype=torch.float64)
    replicas = torch.zeros(0 if vote.replica is None else communicator.world_size, dtype=torch.int64)
    if vote.replica is not None:
        replicas[communicator.rank] = vote.replica  # 63 bits, which no floating-point sum keeps
    beside = [replicas] if len(replicas) else []
    torch.futures.wait_all(communicator.sum_together(*beside, values, kind=Kind.CONTROL))
    sums = iter(values.tolist())
    own_sums = [*islice(sums, control.SIZE)]
    riders = {name: [*islice(sums, len(numbers))] for name, numbers in vote.riders.items()}
    return replace(Summed(own_sums, connected, replicas=replicas.tolist()), **riders)
