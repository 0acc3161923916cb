"""The gradients' noise scale, from gradients that a step computes anyway (McCandlish et al. 2018, appendix A).

A small batch's gradient is longer than a large one's, by its noise: E|g|² = |G|² + v/b for b samples. A step has both:
those of single ranks, or of their first micro-batches, and that of the global batch. Their squared lengths give
unbiased estimates of v and |G|², whose averages over many steps give v / |G|².

Gradients become shorter while a model learns, by orders of magnitude at first, and a long average would be that of the
oldest ones. The averages therefore extend over the last third of the steps, up to :data:`MEMORY` measurements, and a
young job measures more often. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

SETTLED = 50
"""Measurements before the noise scale counts."""
RECENT = 3
"""The averages extend over the last of so many equal parts of the steps."""
MEMORY = 60
"""Most measurements over which the averages extend."""
YOUNG = 100
"""A job measures each step at first, and each n-th one from its (n - 1) * YOUNG-th on."""
LARGEST = 100.0
"""Most batches that a noise scale is worth: a greater one cannot be told from no signal."""


def interval(step: int, every: int) -> int:
    """Steps from one measurement to the next, at the job's ``step``-th step: 1 at first, ``every`` in the end."""
    return min(step // YOUNG + 1, every)


def is_due(step: int, every: int) -> bool:
    """Whether the job's ``step``-th step measures."""
    return step % interval(step, every) == 0


def weight(step: int, every: int) -> float:
    """Of the measurement of this step in the averages."""
    return max(min(RECENT * interval(step, every) / (step + 1), 1.0), 1 / MEMORY)


@dataclass(slots=True)
class NoiseScale:
    """Averages over the steps that measured."""

    variance: float = 0.0
    """Of one sample's gradient: v."""
    signal: float = 0.0
    """|G|²."""
    count: int = 0

    def add(self, small: float, inverse: float, large: float, samples: int, *, part: float) -> None:
        """``small``: mean squared length of small batches' gradients, ``inverse``: mean of 1 / their samples;
        ``large``: squared length of the gradient of ``samples``. ``part``: as of :func:`weight`."""
        spread = inverse - 1 / samples
        if not (spread > 1e-3 * inverse and small < float("inf") and large < float("inf")):
            return  # one part, or gradients that have overflowed
        variance = (small - large) / spread
        self.count += 1
        part = 1.0 if self.count == 1 else part
        self.variance += part * (variance - self.variance)
        self.signal += part * (large - variance / samples - self.signal)

    def samples(self, batch: int) -> float | None:
        """The noise scale, in samples; None: not known yet. ``batch``: the present one, for the bound."""
        if self.count < SETTLED or self.variance <= 0:
            return None
        return self.variance / max(self.signal, self.variance / (LARGEST * batch))

    def state(self) -> list[float]:
        return [self.variance, self.signal, self.count]
