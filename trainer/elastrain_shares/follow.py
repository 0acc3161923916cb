"""The decision about the shares, from the times of all ranks. Pure.

A *unit* has a share of its own: a replica of the model, which is one rank or a group of ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

WHOLE = 1 << 16
"""Sum of the weights of all units."""
WINDOW = 8
"""Steps of a decision, before a reversal."""
LONGEST = 64
"""Most windows of one decision."""
GAIN = 0.02
"""A decision changes the shares only if the step's computation becomes shorter by at least this part of its time."""
CHANGE = 0.5
"""A decision changes no share by more than this part of it."""
LEAST = 1 / 16
"""Of the equal share: a rank that is slower is a straggler (:mod:`elastrain.agent.core.health`)."""
JUMP = 1.25
"""A speed has jumped if the steps that show it all differ from the last decision by this factor, and less than so from
each other."""
SHOWS = 3
"""Steps that show a jump, as long as jumps do not come too soon."""
BIG = 1.5
"""A jump by this factor is shown by two thirds of them."""
RARE = 4
"""Times the steps that show a jump: one that comes sooner after the last one came too soon."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares in force, and what the next decision is made of. The same on all ranks of a generation."""

    weights: tuple[int, ...] = ()
    """By unit; empty: equal."""
    windows: int = 1
    """Windows of a decision: doubled by each reversal, so that a speed that flaps is averaged, and halved by each one
    that changes nothing, so that one that has flapped or scattered is followed again."""
    moved: tuple[int, ...] = ()
    """The last change of the weights."""
    times: tuple[tuple[float, ...], ...] = ()
    """By step since the last decision: seconds per sample, by unit."""
    seconds: tuple[float, ...] = ()
    """Per sample, by unit, as of the last decision; empty before the first one of a generation."""
    shows: int = SHOWS
    """Steps that show a jump: doubled where jumps come too soon, so that a speed that flaps faster is averaged; as at
    first after one that does not, and halved after a long time without any."""
    since: int = RARE * SHOWS
    """Steps since the last jump."""
    soon: int = 0
    """Jumps in a row that came too soon. One alone is the end of an outlier that counted as a jump."""


def begun(paces: Sequence[int], most: float = 1.0) -> Shares:
    """The shares at the begin of a generation. Pure.

    ``paces``: nanoseconds per sample that each unit has measured before; 0: not known. Such a one counts as the mean of
    the others. Equal shares if none is known. ``most``: of the whole, as of :func:`proportional`.
    """
    known = [pace for pace in paces if pace > 0]
    if not known:
        return Shares()
    mean = sum(known) / len(known)
    return Shares(proportional([(pace if pace > 0 else mean) / 1e9 for pace in paces], most))


def follow(now: Shares, times: Sequence[float], most: float = 1.0) -> Shares:
    """The shares of the next step, after a step with these ``times`` (seconds per sample, by unit). Pure.

    A step in which a unit has no time (0) is left out. Shares that are in proportion to the speeds stay; others move
    toward it, bounded by ``CHANGE``, ``LEAST`` and ``most`` (as of :func:`proportional`).

    A decision is made of a window of steps; or, where a speed has jumped, of the few steps that show it. Jumps that
    come too soon after each other are no longer followed, since each is over when it is seen: more steps have to show
    the next one.
    """
    if len(times) < 2 or min(times) <= 0.0:
        return now
    seen, since = (*now.times, tuple(times)), now.since + 1
    shows = max(SHOWS, now.shows // 2) if since % (RARE * RARE * now.shows) == 0 else now.shows
    now = replace(now, times=seen, shows=shows, since=since)
    if showing := jumped(seen[-now.shows :], now):
        soon = now.soon + 1 if since < RARE * now.shows else 0
        shows = min(2 * now.shows, WINDOW * LONGEST) if soon > 1 else now.shows if soon else SHOWS
        seconds = tuple(_trimmed(column) for column in zip(*seen[-showing:], strict=True))
        return _moved(replace(now, windows=1, shows=shows, since=0, soon=soon), seconds, most)
    if len(seen) < WINDOW * now.windows:
        return now
    seconds = tuple(_trimmed(column) for column in zip(*seen, strict=True))
    after = _moved(now, seconds, most)
    if after.weights == now.weights:
        return replace(after, windows=max(1, now.windows // 2))
    if sum(a * b for a, b in zip(after.moved, now.moved, strict=False)) < 0 and now.windows < LONGEST:
        # Look longer before going back.
        return replace(now, windows=2 * now.windows, times=(), moved=(), seconds=seconds)
    return after


def jumped(steps: Sequence[tuple[float, ...]], now: Shares) -> int:
    """How many of these ``steps``, the newest ones, show that a speed has jumped since the last decision. Pure."""
    if len(now.seconds) != len(steps[-1]):
        return 0
    units = [(u, known) for u, known in enumerate(now.seconds) if not known / JUMP < steps[-1][u] < known * JUMP]
    for count, factor in ((-(-2 * now.shows // 3), BIG), (now.shows, JUMP)):
        recent = steps[-count:]
        if len(recent) == count and any(_shows([s[u] for s in recent], known, factor) for u, known in units):
            return count
    return 0


def _shows(times: Sequence[float], known: float, factor: float) -> bool:
    """Whether all these times of a unit differ from the known one by this factor, and less so from each other."""
    low, high = min(times), max(times)
    return high < low * JUMP and (low > known * factor or high * factor < known)


def proportional(seconds: Sequence[float], most: float = 1.0) -> tuple[int, ...]:
    """Weights in proportion to the speeds, between ``LEAST`` of the equal one and ``most`` of the whole. Pure.

    ``seconds``: per sample, by unit. Equal ones if ``most`` allows no others.
    """
    units = len(seconds)
    if most * units <= 1.0:
        return even(units)
    speeds = [1.0 / s for s in seconds]
    low, high = LEAST / units, min(most, 1.0)

    def shares(scale: float) -> list[float]:
        return [min(max(scale * speed, low), high) for speed in speeds]

    # Their sum grows with the scale, in straight lines between those at which a share meets a bound.
    bends = sorted(bound / speed for speed in speeds for bound in (low, high))
    at = max(1, min(bisect_left(bends, 1.0, key=lambda scale: sum(shares(scale))), len(bends) - 1))
    below, above = (sum(shares(scale)) for scale in bends[at - 1 : at + 1])
    part = (1.0 - below) / (above - below) if above > below else 1.0
    return _whole(shares(bends[at - 1] + part * (bends[at] - bends[at - 1])))


def even(units: int) -> tuple[int, ...]:
    """Equal weights."""
    return _whole([1.0] * units)


def _moved(now: Shares, seconds: tuple[float, ...], most: float) -> Shares:
    """The shares toward the proportion to these speeds; the weights of before if that gains nothing."""
    old = now.weights or even(len(seconds))
    goal = proportional(seconds, most)
    before, after = (max(w * s for w, s in zip(weights, seconds, strict=True)) for weights in (old, goal))
    decided = replace(now, times=(), seconds=seconds)
    if after > before * (1.0 - GAIN):
        return decided
    moves = [new - was for new, was in zip(goal, old, strict=True)]
    part = min(1.0, *(CHANGE * was / abs(move) for was, move in zip(old, moves, strict=True) if move))
    new = _whole([was + part * move for was, move in zip(old, moves, strict=True)])
    return replace(decided, weights=new, moved=tuple(b - a for a, b in zip(old, new, strict=True)))


def _whole(shares: Sequence[float]) -> tuple[int, ...]:
    """Whole weights of at least 1 that add up to ``WHOLE``; the largest unit takes what rounding leaves."""
    total = sum(shares)
    weights = [max(1, round(WHOLE * share / total)) for share in shares]
    largest = max(range(len(weights)), key=lambda unit: weights[unit])
    weights[largest] += WHOLE - sum(weights)
    return tuple(weights)


def _trimmed(values: Sequence[float]) -> float:
    """The mean without the smallest and the largest eighth: a pause of one step does not count."""
    cut = len(values) // 8
    kept = sorted(values)[cut : len(values) - cut]
    return sum(kept) / len(kept)
