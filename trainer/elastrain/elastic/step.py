"""The step that is being computed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from elastrain.data.order import Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.contract import Phase


@dataclass(slots=True)
class Step:
    """One execution of one step on this rank: its micro-batches, one after the other."""

    number: int
    place: Place
    """This rank's place in the generation that computes the step."""
    share: Share
    """The share of the global batch that this rank computes."""
    parts: tuple[Slice, ...]
    """The micro-batches of this rank."""
    unit: float = 1.0
    """Loss sums are multiplied by it before gradients are added, to keep them in range: 1 / global batch size."""
    span: int = 1
    """Batches of the script that it takes."""
    samples: int = 0
    """Of the global batch, with ``spec.batch``."""
    warm_up: bool = False
    """The step is never committed."""
    in_micro_batches: bool = False
    """Whether the loop body runs once for each micro-batch, of which this rank may have only one."""
    begun: int = 0
    """Micro-batches whose loop body has begun."""
    done: int = 0
    """Micro-batches that have run backward."""
    backwards: int = 0
    """Backwards of the last micro-batch; several if the loop body has several."""
    in_backward: bool = False
    """Whether autograd runs, and with it hooks of the script."""
    closures: bool = False
    """Of the warm-up: an optimizer runs backward between its updates."""
    counted: int = 0
    """Those whose losses are sums over a count; with several backwards in a loop body, of the present one."""
    count: int = 0
    """Sum of these counts on this rank."""
    losses: torch.Tensor | None = None
    """Of the same: this rank's part of the mean loss."""
    counts: bool = False
    """Gradients are complete on this rank, and its state can be updated: the step is committed when its body ends."""
    by: int = 0
    """The generation whose votes it counts by."""
    incomplete: bool = False
    """Of a learner: a part of its state has not arrived. Only the optimizers' updates of this step count for it."""
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    learning: bool = False
    """Some ranks will still be receiving their state in the next step."""
    factor: float = 1.0
    """What the summed gradients are multiplied by to be those of the mean."""
    keeps: bool = False
    """Whether this rank adds the gradients to those of a step before."""
    kept: float = 0.0
    """Ranks that do so, without learners."""
    mixed: bool = False
    """Losses of the step were means in some calls and sums over a count in others: there is no mean of both."""
    loss: float = 0.0
    """Mean loss over the global batch."""
    saves: int = 0
    """The sum of the ranks' votes on a checkpoint after this step."""
    batch: tuple[float, ...] = ()
    """As of :attr:`Summed.of_batch`."""
    discarded: bool = False
    """The state was put back to the one with which the step has begun."""
    stops: bool = False
    """Training ends with this step: a rank has asked for it."""

    def decide(
        self, summed: Summed | None, generation: int, *, intact: bool, updatable: bool, incomplete: bool = False
    ) -> None:
        """Decide whether this execution of the step counts, after its last backward; nothing else decides it.

        With several backwards in a loop body it is called after each, until one fails, and the last one decides.

        ``summed``: the sum of the votes of all ranks of ``generation``; None: this rank lacks it.
        ``intact``: the generation had not broken when it had arrived. ``updatable``: this rank holds the state that the
        gradients belong to. ``incomplete``: not yet all of it. Pure.
        """
        self.counts, self.factor, self.mixed = False, 1.0, False
        if self.warm_up or summed is None or not intact or not updatable:
            return
        self.counts, self.by, self.incomplete = True, generation, incomplete
        self.agreed = summed.agreed(generation)
        if counting := summed.sums[control.COUNTED]:
            self.mixed, count = counting != self.share.parts, summed.sums[control.COUNT]
            self.factor = 1.0 / (self.unit * count) if count else 0.0
        self.loss, self.kept = summed.sums[control.LOSS] * self.factor, summed.sums[control.KEPT]
        self.learning = summed.sums[control.LEARNING] > 0
        self.stops = summed.sums[control.STOP] > 0
        self.saves = int(summed.sums[control.SAVE])
        self.batch = tuple(summed.of_batch)

    def take(self, count: int | None) -> Slice:
        """The next micro-batch, or the last one again, runs backward, with this count or a mean.

        Returns it with the weight of its loss.
        """
        if self.complete:
            self.counted, self.count, self.losses = 0, 0, None
        else:
            self.done += 1
        self.backwards += self.complete
        part = self.parts[self.done - 1]
        if count is None:
            return part
        self.counted += 1
        if not part.indices:
            return replace(part, weight=0.0)
        self.count += count
        return replace(part, weight=self.unit)

    def add_loss(self, part: Slice, unscaled: torch.Tensor) -> None:
        """The backward of ``part`` follows, with this loss. Nothing waits for a device."""
        value = unscaled.detach().double() * part.weight
        self.losses = value if self.losses is None else self.losses + value

    @property
    def counts_given(self) -> float:
        """1 if each micro-batch had a count, 0 if none had, 0.5 if some had."""
        return 0.5 if 0 < self.counted < self.done else float(self.counted > 0)

    @property
    def complete(self) -> bool:
        """Whether all micro-batches have run backward."""
        return self.done == len(self.parts)

    @property
    def first(self) -> bool:
        """Whether no backward was before the present one."""
        return self.done == 1 and self.backwards <= 1

    @property
    def phase(self) -> Phase:
        """The phase of the loop body."""
        if self.in_backward:
            return Phase.BACKWARD
        if self.done == 0:
            return Phase.FRESH
        if self.warm_up:
            return Phase.WARM_UP
        if not self.complete:
            return Phase.PARTIAL
        if self.incomplete:
            return Phase.LEARNING
        return Phase.COMMITTED if self.counts else Phase.DISCARDED
