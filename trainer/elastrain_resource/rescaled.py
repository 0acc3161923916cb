"""The event ``Rescaled``: one sentence, written by the operator and parsed by the dashboard.

Only events record more than the newest rescale in the Kubernetes API. This module holds both directions, so that one
change of the text changes both.
"""

from __future__ import annotations

import re

from elastrain.api.records import in_words
from elastrain_resource.job import LastRescale

REASON = "Rescaled"
"""Reason of the event."""

_SENTENCE = re.compile(
    r"from (?P<before>\d+) to (?P<after>\d+) ranks \((?P<reason>\w+)\), pause (?P<pause>\d+\.\d+) s"
    r"(?: \((?P<phases>[^()]+)\))?, (?P<lost>\d+) steps lost"
)
_PHASE = re.compile(r"([a-z ]+) (\d+) ms")


def tell(rescale: LastRescale) -> str:
    """The sentence: ``from 2 to 3 ranks (Grow), pause 0.31 s (transfer 35 ms, first step 250 ms), 0 steps lost``."""
    words = f"from {rescale.from_} to {rescale.to} ranks ({rescale.reason}), pause {rescale.pause_seconds:.2f} s"
    phases = f" ({in_words(rescale.phases)})" if rescale.phases else ""
    return f"{words}{phases}, {rescale.lost_steps} steps lost"


def read(sentence: str) -> LastRescale | None:
    """The rescale in a sentence of :func:`tell`, to its digits; None for another sentence (of another version)."""
    found = _SENTENCE.fullmatch(sentence)
    if found is None:
        return None
    parts = [_PHASE.fullmatch(part) for part in (found["phases"] or "").split(", ") if part]
    return LastRescale(
        from_=int(found["before"]),
        to=int(found["after"]),
        reason=found["reason"],
        pause_seconds=float(found["pause"]),
        lost_steps=int(found["lost"]),
        phases={part[1].replace(" ", "_"): int(part[2]) / 1000 for part in parts if part},
    )
