"""The gradients' noise scale, from gradients that a step computes anyway (McCandlish et al. 2018, appendix A).

A small batch's gradient is longer than a large one's, by its noise: E|g|² = |G|² + v/b for b samples. A step has both:
those of single ranks, or of their first micro-batches, and that of the global batch. Their squared lengths give
unbiased estimates of v and |G|², whose averages over many steps give v / |G|². Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

SETTLED = 10
"""Measurements before the noise scale counts."""
MEMORY = 20
"""Measurements over which the averages extend."""
LARGEST = 1000.0
"""Most batches that a noise scale is worth: a greater one cannot be told from no signal."""


@dataclass(slots=True)
class NoiseScale:
    """Averages over the steps that measured."""

    variance: float = 0.0
    """Of one sample's gradient: v."""
    signal: float = 0.0
    """|G|²."""
    count: int = 0

    def add(self, small: float, inverse: float, large: float, samples: int) -> None:
        """``small``: mean squared length of small batches' gradients, ``inverse``: mean of 1 / their samples;
        ``large``: squared length of the gradient of ``samples``."""
        spread = inverse - 1 / samples
        if not (spread > 1e-3 * inverse and small < float("inf") and large < float("inf")):
            return  # one part, or gradients that have overflowed
        variance = (small - large) / spread
        self.count += 1
        weight = max(1 / self.count, 1 / MEMORY)
        self.variance += weight * (variance - self.variance)
        self.signal += weight * (large - variance / samples - self.signal)

    def samples(self, batch: int) -> float | None:
        """The noise scale, in samples; None: not known yet. ``batch``: the present one, for the bound."""
        if self.count < SETTLED or self.variance <= 0:
            return None
        return self.variance / max(self.signal, self.variance / (LARGEST * batch))

    def state(self) -> list[float]:
        return [self.variance, self.signal, self.count]
