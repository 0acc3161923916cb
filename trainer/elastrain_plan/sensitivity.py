"""What a plan hangs on: how much of the paid time trains if one number is half or twice what the model takes. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from elastrain_plan import model
from elastrain_plan.model import Cluster, Settings

PARTS = frozenset({"silent", "all_lost"})
"""Constants that are parts of a whole: at most 1."""


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
