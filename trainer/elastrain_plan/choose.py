"""The settings that lose least of the paid time, with the reason for each. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from elastrain_plan import model
from elastrain_plan.model import GB, HOUR, Cluster, Settings, Split

FEW = 0.01
"""Replicas; fewer are not counted in words."""
REDONE_STEPS = 20
"""Default of `parallelism.maxRedoneSteps`."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One setting."""

    setting: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings, what they give, and why."""

    settings: Settings
    split: Split
    advice: tuple[Advice, ...]


def smallest_group(cluster: Cluster, card_bytes: float) -> int:
    """The fewest cards that hold one copy of the state in ``card_bytes`` of each, such that groups fill the job.

    Raises ``ValueError`` if the whole job holds no copy.
    """
    halves = (n for n in range(1, math.isqrt(cluster.cards) + 1) if not cluster.cards % n)
    for group in sorted({part for n in halves for part in (n, cluster.cards // n)}):
        fits = not cluster.per_node % group or not group % cluster.per_node
        if cluster.state <= group * card_bytes and (fits or group == cluster.cards):
            return group
    raise ValueError(
        f"--state {cluster.state / GB:g} GB: {cluster.cards} cards with {card_bytes / GB:g} GB each for the state hold "
        "no copy of it. Take more --cards, or raise --card-memory"
    )


def interval(cluster: Cluster, group: int) -> int:
    """Steps between durable checkpoints that lose least: Young's sqrt(2 C M), "A first order approximation to the
    optimum checkpoint interval" (CACM 1974), with C the stall of a save and M the time between losses that need it.

    Losses need the durable one if all copies are gone; with one copy of the state all do while it is the newer one.
    Not less than writing takes, and, of the whole numbers of steps beside each optimum, the best one.
    """
    least = max(1, math.ceil(model.writing(cluster) / cluster.step))
    cost = model.stall(cluster, group)
    parts = {cluster.fatal} if cluster.cards // group > 1 else {cluster.fatal, 1.0}
    optima = [math.sqrt(2 * cost / (cluster.rate * (part or 1.0))) / cluster.step for part in parts]
    found = {max(least, math.floor(best) + more) for best in optima for more in (0, 1)}
    if not cluster.fatal:  # by the model nothing needs it: as often as if each loss did
        return min(found)

    def lost(steps: int) -> float:
        again = model.repeated(cluster, Settings(group, 0, steps, REDONE_STEPS))
        return cost / (steps * cluster.step) + cluster.rate * again * cluster.step

    return min(sorted(found), key=lost)


def spares(cluster: Cluster, full_size: float) -> int:
    """Replicas to hold in reserve so that no replica is missing for the part ``full_size`` of the time.

    Losses within the time of one repair are a Poisson variable. Raises ``ValueError`` if it cannot be held.
    """
    if not 0 <= full_size < 1:
        raise ValueError(f"--full-size {full_size:g}: must be a part of the time, from 0 to below 1, such as 0.95")
    if not full_size:
        return 0
    mean, covered, count = away(cluster), 0.0, -1
    while covered < full_size:
        count += 1
        covered += model.poisson(mean, count)
    return count


def away(cluster: Cluster) -> float:
    """The mean number of replicas that are lost and not yet replaced."""
    return cluster.rate * cluster.constants.repair


def choose(cluster: Cluster, card_bytes: float, group: int | None = None, full_size: float = 0.0) -> Plan:
    """The plan for ``cluster``; ``group`` is that of the caller, or None. ``card_bytes``: of each card, for the state.
    ``full_size``: as of :func:`spares`.

    Raises ``ValueError`` with the option, its value and the way out.
    """
    size = smallest_group(cluster, card_bytes) if group is None else group
    if cluster.cards % size:
        raise ValueError(f"--group {size}: must divide --cards {cluster.cards}; leave it out, and the plan chooses one")
    if away(cluster) * model.unit(cluster, size) > cluster.cards / 2:
        raise ValueError(
            f"--mttf {cluster.mttf:g}: with repair={cluster.constants.repair:g} s, {away(cluster):.2g} replicas of "
            f"{model.unit(cluster, size)} cards are away on average, more than half of the job. "
            "Correct --mttf or --set repair=SECONDS, or take a smaller --group"
        )
    found = Settings(size, spares(cluster, full_size), interval(cluster, size), REDONE_STEPS)
    advice = (
        _of_group(cluster, found, card_bytes, chosen=group is None),
        _of_spares(cluster, found, full_size),
        _of_interval(cluster, found),
        _of_tier(cluster, found),
    )
    return Plan(found, model.split(cluster, found), advice)


def _of_group(cluster: Cluster, found: Settings, card_bytes: float, *, chosen: bool) -> Advice:
    copies = cluster.cards // found.group
    value = "parallelism.shards: all" if copies == 1 and found.group > 1 else f"parallelism.shards: {found.group}"
    held = f"the job holds {copies} {'copies' if copies > 1 else 'copy'} of the state"
    if not chosen:
        why = f"--group: {held}"
    elif found.group == 1:
        why = f"one card holds the state ({cluster.state / GB:g} GB in {card_bytes / GB:g} GB): no sharding"
    else:
        why = (
            f"the fewest cards that hold {cluster.state / GB:g} GB at {card_bytes / GB:g} GB a card: {held}, and a "
            f"lost card stops {model.unit(cluster, found.group)} cards"
        )
    return Advice("group", value, why)


def _of_spares(cluster: Cluster, found: Settings, full_size: float) -> Advice:
    size, missing = model.unit(cluster, found.group), model.shortage(away(cluster), found.spares)
    replica = "1 card" if size == 1 else f"{size} cards"
    why = f"on average {missing:.2f} replicas of {replica} are missing"
    if missing < FEW:
        why = f"on average less than {FEW} replicas of {replica} are missing"
    if full_size:
        why = f"all replicas train for {100 * full_size:g} % of the time (--full-size); {why}"
    else:
        why += ": the job trains on without them, and a spare would idle more. --full-size 0.95 holds the size"
    return Advice("spares", f"warmSpares: {found.spares}", why)


def _of_interval(cluster: Cluster, found: Settings) -> Advice:
    if found.interval <= max(1, math.ceil(model.writing(cluster) / cluster.step)):
        why = f"writing {cluster.state / GB:g} GB takes the store {model.writing(cluster):.3g} s: the shortest interval"
    elif cluster.fatal:
        between = 1 / (cluster.rate * cluster.fatal) / HOUR
        why = (
            f"Young's optimum: a save stops training for {model.stall(cluster, found.group):.2g} s, and all copies "
            f"are lost once in {duration(between * HOUR)}"
        )
    else:
        why = "as if each loss took all copies: with all_lost=0 the model needs no checkpoint"
    seconds = found.interval * cluster.step
    if seconds > HOUR:
        hourly, cost = max(1, round(HOUR / cluster.step)), 100 * model.stall(cluster, found.group) / HOUR
        why += (
            f". The model counts no mistake of a script or a person, which only a checkpoint undoes: one each hour "
            f"(everySteps: {hourly}) stops training for {cost:.2g} % of the time"
        )
    return Advice("checkpoint", f"checkpoint.everySteps: {found.interval} ({duration(seconds)})", why)


def duration(seconds: float) -> str:
    """In the unit that a person would take: ``70.7 min``, ``23.6 h``, ``12.7 days``, ``71.3 years``."""
    for unit, size, until in (("min", 60.0, 120.0), ("h", HOUR, 48.0), ("days", 24 * HOUR, 730.0)):
        if seconds < until * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / (8766 * HOUR):,.3g} years"


def _of_tier(cluster: Cluster, found: Settings) -> Advice:
    copies = cluster.cards // found.group
    if cluster.nodes == 1:
        return Advice("tier", "durable", "one node: its loss takes every copy of the state")
    if copies > 1:
        why = f"{copies} copies of the state: a loss repeats no committed step, except one of all copies"
        return Advice("tier", "survivors' state, then durable", why)
    why = "one copy of the state: its shards are kept twice, and a loss repeats the steps since the last snapshot"
    return Advice("tier", f"another node's memory (parallelism.maxRedoneSteps: {found.redone}), then durable", why)
