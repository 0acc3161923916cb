"""The batch that the ranks have chosen, and their shares of it, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from elastrain.api.batch import ShareLimit
from elastrain_resource.sizing.speedup import WORTHWHILE, Batches


class Larger(Protocol):
    """As of :class:`elastrain.api.batch.LargerBatch`."""

    @property
    def samples(self) -> int: ...
    @property
    def gain(self) -> float: ...


class RankShare(Protocol):
    """As of :class:`elastrain.api.batch.RankShare`."""

    @property
    def rank(self) -> int: ...
    @property
    def share(self) -> float: ...
    @property
    def samples_per_second(self) -> float: ...
    @property
    def limit(self) -> str | None: ...


class Figures(Protocol):
    """A job's batch as its status or rank 0's report has it."""

    @property
    def samples(self) -> int: ...
    @property
    def base(self) -> int | None: ...
    @property
    def noise_scale(self) -> float | None: ...
    @property
    def larger(self) -> Larger | None: ...


def efficiency(batch: Figures) -> float | None:
    """What a sample is worth, in samples of the script's batch; None: the noise scale is not measured yet."""
    if not batch.noise_scale or not batch.base:
        return None
    return float(f"{Batches(batch.base, batch.samples, batch.noise_scale).efficiency(batch.samples):.2g}")


def batch_line(batch: Figures) -> str:
    """In one line: ``batch 128 (2 x 64), noise scale 1,100, efficiency 0.95, 256 would gain 3 %``."""
    parts = [f"batch {batch.samples:,}"]
    if batch.base and batch.samples > batch.base:
        parts[0] += f" ({batch.samples // batch.base} x {batch.base:,})"
    if batch.noise_scale is not None:
        parts.append(f"noise scale {batch.noise_scale:,.0f}")
    if (worth := efficiency(batch)) is not None:
        parts.append(f"efficiency {worth:.2f}")
    if batch.larger is not None:
        parts.append(_larger(batch.larger))
    return ", ".join(parts)


NAMED = 4
"""Most ranks in a line."""


def shares_line(shares: Sequence[RankShare]) -> str:
    """In one line: ``shares by speed: rank 1 0.67 (100 samples/s), rank 0 1.33 (200 samples/s)``; slowest first."""
    words = [f"rank {one.rank} {one.share:.2f} ({one.samples_per_second:,.3g} samples/s)" for one in shares[:NAMED]]
    bounds: dict[str | None, str] = {
        ShareLimit.MAX_SHARE: "spec.maxShare bounds",
        ShareLimit.LOSS: "the loss of a rank whose share had grown bounds",
    }
    held = [f"; {bounds[one.limit]} rank {one.rank} at {one.share:.2f}" for one in shares if one.limit in bounds]
    return f"shares by speed: {', '.join(words)}{', …' if len(shares) > NAMED else ''}{''.join(held[-1:])}"


def more_share(shares: Sequence[RankShare]) -> str:
    """How a share could grow that a bound holds; empty if none does."""
    ways: dict[str | None, str] = {
        ShareLimit.MAX_SHARE: "raise spec.maxShare if a rank's memory holds a larger part",
        ShareLimit.LOSS: "if memory was the cause, raise its limit; shares grow again when the whole job starts anew",
    }
    return next((ways[one.limit] for one in shares if one.limit in ways), "")


def why_this_batch(batch: Figures | None, least: int, most: int) -> tuple[str, str]:
    """Why the batch is what it is, and how to change that (may be empty). ``least``, ``most``: of ``spec.batch``."""
    bounds = f"between spec.batch.min ({least:,}) and spec.batch.max ({most:,})"
    if batch is None:
        return f"the batch of a step is not reported yet; rank 0 chooses it {bounds}", ""
    chosen = f"rank 0 chose a batch of {batch.samples:,} samples {bounds}"
    each = efficiency(batch)
    if batch.noise_scale is None or each is None:
        return (
            f"{chosen}; it stays until the noise scale of the gradients is measured",
            "if that lasts longer than 50 steps: give job.dataloader() a micro_batch_size, or the job a second rank",
        )
    worth = (
        f"a sample is worth {each:.2f} of one in the script's batch of {batch.base or least:,} "
        f"(noise scale {batch.noise_scale:,.0f})"
    )
    if batch.larger is not None:
        return f"{chosen}; {worth}; {_larger(batch.larger)} of goodput, and a change needs {WORTHWHILE - 1:.0%}", ""
    if batch.samples + (batch.base or least) > most:
        return f"{chosen}; {worth}; it is the largest", "suspend the job and raise spec.batch.max"
    return f"{chosen}; {worth}; a larger one is compared when the time of its steps is measured", ""


def _larger(larger: Larger) -> str:
    return f"{larger.samples:,} would {'gain' if larger.gain >= 0 else 'lose'} {abs(larger.gain):.0%}"
