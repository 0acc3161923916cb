"""What a plan hangs on: how much of the paid time trains if one number is half or twice what the model takes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from elastrain_plan import model
from elastrain_plan.model import Cluster, Settings

PARTS = frozenset({"silent", "all_lost"})
"""Constants that are parts of a whole: at most 1."""

ABOUT = {
    "mttf": "h between losses of one card",
    "detect": "s until survivors see a loss",
    "silent": "of losses that only a lease ends",
    "lease": "s, TTL of a lease",
    "decide": "s to decide on a generation",
    "per_member": "s more, for each worker of it",
    "connect": "s to connect few ranks",
    "per_rank": "s more to connect, for each rank",
    "bandwidth": "GB/s of state to a joiner",
    "first_step": "s more of a first step",
    "start": "s, cold start of a worker",
    "copy": "GB/s to host memory in a save",
    "store": "GB/s of the checkpoint store",
    "repair": "s until a node is replaced",
    "all_lost": "of losses that take all copies",
}
"""Unit and meaning of each number; without a unit: a part."""
ASSUMED = ("silent", "copy", "store", "repair", "all_lost")
"""Constants that were measured neither here nor by others."""
PUBLISHED = ("connect", "per_rank")
"""Constants that others have measured."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Of one number, with the settings of the plan."""

    name: str
    """A constant of the model, or ``mttf``."""
    value: float
    half: float
    """Part of the paid time that trains with half of ``value``."""
    twice: float

    @property
    def span(self) -> float:
        """Between both."""
        return abs(self.half - self.twice)


def effects(cluster: Cluster, settings: Settings) -> tuple[Effect, ...]:
    """Of ``mttf`` and of each constant that is not 0, the largest first. One number differs at a time."""
    numbers = {"mttf": cluster.mttf, **asdict(cluster.constants)}
    found = [
        Effect(name, value, *(_trains(cluster, settings, name, factor * value) for factor in (0.5, 2.0)))
        for name, value in numbers.items()
        if value
    ]
    return tuple(sorted(found, key=lambda effect: (-effect.span, effect.name)))


def _trains(cluster: Cluster, settings: Settings, name: str, value: float) -> float:
    if name == "mttf":
        other = replace(cluster, mttf=value)
    else:
        value = min(1.0, value) if name in PARTS else value
        other = replace(cluster, constants=replace(cluster.constants, **{name: value}))
    return model.split(other, settings).training
