"""The step that is being computed, and its outcome: the one place that says whether it counts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from elastrain.data.order import Slice
from elastrain.data.share import Place, Share
from elastrain.elastic.commit.decide import Adopted, Asks, Counts, Known, Outcome, Repeats, Why, decide
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
    keeps: bool = False
    """Whether this rank adds the gradients to those of a step before."""
    discarded: bool = False
    """The state was put back to the one with which the step has begun."""
    outcome: Outcome | None = None
    """Whether it counts; None before its last backward, and in the warm-up. Only the next three methods set it."""

    def decide(self, known: Known) -> bool:
        """The outcome by what this rank knows now. Returns whether it lacks the result of its vote, which its peers may
        have: the step does not count before.
        """
        decided = decide(known)
        self.outcome = Repeats(Why.NO_RESULT) if decided is Asks.PEERS else decided
        return decided is Asks.PEERS

    def leave(self) -> None:
        """The script has left the body before the update was complete."""
        self.outcome = Repeats(Why.BODY_LEFT)

    def adopt(self) -> None:
        """A peer has committed it, and this rank is about to load its state."""
        self.outcome = Adopted()

    @property
    def counts(self) -> bool:
        """Gradients are complete, and the state can be updated: the step is committed when its body ends."""
        return isinstance(self.outcome, Counts | Adopted)

    @property
    def incomplete(self) -> bool:
        """It counts on a learner of which a part of the state has not arrived: only optimizers' updates act."""
        return isinstance(self.outcome, Counts) and self.outcome.incomplete

    @property
    def result(self) -> Counts:
        """That of a step that counts by a vote."""
        assert isinstance(self.outcome, Counts)
        return self.outcome

    @property
    def loss(self) -> float:
        """Of a step that counts: the mean over the global batch."""
        return self.result.loss(self.unit)

    def take(self, count: int | None) -> Slice:
        """The next micro-batch, or the last one again, runs backward, with this count or a mean.

        Returns it with the weight of its loss: with a mean, that of its samples, of which each rank along a sequence
        has an equal part of the tokens.
        """
        if self.complete:
            self.counted, self.count, self.losses = 0, 0, None
        else:
            self.done += 1
        self.backwards += self.complete
        part = self.parts[self.done - 1]
        if count is None:
            return replace(part, weight=part.weight / self.place.shape.sequence_parts)
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
