"""The batch of a job with ``spec.batch``: how many of the script's batches one step takes, and the learning rate.

Rank 0 decides, by the noise scale and the times of its steps (:mod:`elastrain_batches.goodput`), and publishes the
decision with its vote for a step. All ranks that commit the step take it over, and it is a part of the state that other
ranks receive from them. After any loss the survivors therefore agree on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog
import torch

from elastrain.api.batch import BatchFigures, LargerBatch
from elastrain.api.settings import BatchSettings
from elastrain.data.order import Order, Slice
from elastrain.data.share import Place
from elastrain.data.spans import Spans
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.commit.step import Step
from elastrain.elastic.strategies.strategy import ElasticModule
from elastrain_batches.goodput import choose, is_known, larger, learning_rate_factor
from elastrain_batches.noise import NoiseScale, is_due, weight
from elastrain_batches.small_gradient import SmallGradient, squared
from elastrain_resource.sizing.speedup import Batches, Measured

log = structlog.get_logger(__name__)

MEASURE_EVERY = 10
"""Steps from one measurement of the noise to the next, in the end: each costs a pass over the gradients."""
CHANGE_SECONDS = 30.0
"""Least seconds between two changes of the batch."""
REVIEW_SECONDS = 10.0
"""Seconds from a decision that changes nothing to the next one."""
SETTLED_STEPS = 5
"""Steps of one size and batch before their time counts."""
KEPT = 12
"""Sizes and batches whose times are kept."""
_SMOOTHING = 0.1


class ChosenBatch(ScriptsBatch):
    """A step takes as many as rank 0 has decided, within ``spec.batch``. For the training thread."""

    def __init__(self, settings: BatchSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.small: SmallGradient = SmallGradient()
        self.noise: float | None = None
        """The noise scale, in samples, as rank 0 has published it; None: not yet. Like :attr:`factor`, the same on all
        ranks at the same step."""
        self._settings, self._clock = settings, clock
        self._base, self._micro, self._steps = 0, 0, 0
        self._scale = NoiseScale()
        self._times: dict[tuple[int, int], float] = {}
        """Seconds of a step, by (ranks, samples)."""
        self._measuring: tuple[int, int, int] | None = None
        """Generation, ranks and samples of the steps that are being timed; how many, for how long, since when:"""
        self._count, self._seconds, self._last = 0, 0.0, 0.0
        self._next = clock() + CHANGE_SECONDS
        """When rank 0 decides again, if it knows enough then."""
        self._larger: LargerBatch | None = None
        """As of its last decision."""
        self._found: tuple[float, float, float, int] | None = None
        self._scaled_by = 1.0
        """The factor of the script's loss scaler."""

    # -- the loop ------------------------------------------------------------------------------------------------------
    def begin_loop(self, order: Order) -> None:
        base, s = order.global_batch_size, self._settings
        if order.batch_sampler is not None:
            raise ValueError(
                "job.dataloader(batch_sampler=…): not with spec.batch, which puts batches of one size together: "
                "give sampler=… and global_batch_size=…, or remove spec.batch"
            )
        if not s.min <= base <= s.max:
            raise ValueError(
                f"job.dataloader(global_batch_size={base}): must be between spec.batch.min ({s.min}) and "
                f"spec.batch.max ({s.max}): the batch of a step is a whole multiple of it"
            )
        if base != self._base:
            self._base, self.factor = base, min(self.factor, s.max // base)
        self._micro = min(order.micro_batch_size or base, -(-base // s.least_ranks))
        self.interrupt()

    @property
    def single(self) -> Spans:
        return Spans(limit=max(-(-self._base // self._settings.least_ranks), 1))

    def begin_step(self, end: int, stops: tuple[int, ...]) -> Spans:
        self.small.begin(measures=is_due(self._steps, MEASURE_EVERY))
        self._found, self._scaled_by = None, 1.0
        return replace(self.single, factor=self.factor, end=end, stops=stops)

    def of_part(self, step: Step, part: Slice, loss: torch.Tensor, unscaled: torch.Tensor) -> None:
        if not self.small.open or step.done > 1:
            return  # the first micro-batch is measured
        if unscaled is not loss:  # once in MEASURE_EVERY steps the host may wait for a device
            self._scaled_by = (loss.detach() / unscaled.detach()).item()
        counted = step.count if step.counted else 1
        self.small.of(len(part.indices), part.weight * counted * self._scaled_by)

    def votes(self, place: Place) -> Sequence[float]:
        """Of rank 0 the next factor and the noise scale, 0: no change; and what this rank has measured."""
        if place.rank != 0:
            return 0.0, 0.0, *self.small.votes()
        noise = self._scale.samples(self.factor * self._base)
        return float(self._propose(place.world_size, noise)), noise or 0.0, *self.small.votes()

    def measure(self, step: Step, model: ElasticModule) -> None:
        small, inverse, parts = step.result.summed.of_batch[2:]
        if parts < 1:
            return
        gradients = [p.grad for p in model.module.parameters() if p.grad is not None]
        large = squared(gradients).item() / self._scaled_by**2
        self._found = small / parts, inverse / parts, large, step.samples

    def commit(self, step: Step) -> None:
        if self._found is not None:
            self._scale.add(*self._found, part=weight(self._steps, MEASURE_EVERY))
        self._steps += 1
        self._time(step)
        self.lost += step.samples * (1 - self._efficiency(step.span))
        proposed, noise = step.result.summed.of_batch[:2]
        if noise > 0:
            self.noise = noise
        if proposed and int(proposed) != self.factor:
            log.info(
                "the batch changes", samples=int(proposed) * self._base, before=self.factor * self._base,
                noise_scale=self.noise, position=step.number + step.span,
            )  # fmt: skip
            self.factor, self._next, self._larger = int(proposed), self._clock() + CHANGE_SECONDS, None
            self.interrupt()

    def interrupt(self) -> None:
        self._measuring = None

    @property
    def learning_rate(self) -> float:  # type: ignore[override]
        return learning_rate_factor(self._settings.learning_rate, self.span, self._base, self.noise)

    # -- state, reports ------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        times = [[*size, seconds] for size, seconds in self._times.items()]
        return {
            "factor": self.factor, "base": self._base, "noise": self.noise, "steps": self._steps,
            "scale": self._scale.state(), "times": times, "lost": self.lost,
        }  # fmt: skip

    def load(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        variance, signal, count = state["scale"]
        base = self._base or state["base"]
        self.factor = max(min(state["factor"] * state["base"], self._settings.max) // base, 1)
        self._base, self.noise, self._steps, self.lost = base, state["noise"], state["steps"], state["lost"]
        self._scale = NoiseScale(variance, signal, int(count))
        self._times = {(ranks, samples): seconds for ranks, samples, seconds in state["times"]}
        self._next = self._clock() + CHANGE_SECONDS  # the others may have changed it just now
        self.interrupt()

    def figures(self, samples: int) -> BatchFigures:
        present = self.factor * self._base
        return BatchFigures(
            samples=present,
            base=self._base or None,
            micro_batch=self._micro or None,
            noise_scale=self.noise,
            effective_samples=samples - self.lost,
            larger=self._larger,
            step_seconds=None if self._measuring is None else self._times.get((self._measuring[1], present)),
        )

    # -- inside --------------------------------------------------------------------------------------------------------
    def _efficiency(self, factor: int) -> float:
        """What a sample is worth in a step of ``factor`` batches, in samples of the script's batch."""
        return Batches(self._base, self._settings.max, self.noise).efficiency(factor * self._base)

    def _propose(self, ranks: int, noise: float | None) -> int:
        """The factor of the next steps; 0: as before, or not the time to decide."""
        if (now := self._clock()) < self._next:
            return 0
        measured = tuple(Measured(w, 1, seconds, samples) for (w, samples), seconds in self._times.items())
        batches = Batches(self._base, self._settings.max, noise, micro=self._micro or None)
        if is_known(self.factor * self._base, ranks, measured, batches):
            self._next = now + REVIEW_SECONDS  # if the step fails, the decision is taken again then
            found = larger(factor=self.factor, ranks=ranks, measured=measured, batches=batches)
            self._larger = LargerBatch(samples=found[0], gain=found[1]) if found else None
        factor = choose(factor=self.factor, ranks=ranks, measured=measured, batches=batches)
        return 0 if factor == self.factor else factor

    def _time(self, step: Step) -> None:
        """Time the steps of one size and batch; the first one after a change is not."""
        now, place = self._clock(), step.place
        size = (place.generation, place.world_size, step.span * self._base)
        took, self._last = now - self._last, now
        if step.span != self.factor or step.share.parts != place.share.parts:
            self._measuring = None  # before an end, or with learners
        elif size != self._measuring:
            self._measuring, self._count, self._seconds = size, 0, 0.0
        else:
            self._count += 1
            took = min(took, 3 * self._seconds) if self._count > 1 else took
            self._seconds += max(1 / self._count, _SMOOTHING) * (took - self._seconds)
            if self._count >= SETTLED_STEPS:
                self._times.pop(size[1:], None)
                self._times[size[1:]] = self._seconds
                for old in list(self._times)[:-KEPT]:
                    del self._times[old]
