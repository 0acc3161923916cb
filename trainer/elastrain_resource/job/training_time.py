"""How much of the paid time trained a job, and what took the rest. Pure.

Effective training time (ETTR, goodput) is here the part of all accelerator seconds that the job's pods have held,
spares included, as in Google's ml-goodput-measurement. For a job of one size without spares that is Meta's ETTR, the
part of its wall clock ("Revisiting Reliability in Large-Scale Machine Learning Research Clusters", HPCA 2025).
"""

from __future__ import annotations

from elastrain_resource.job.status import AcceleratorSeconds

CAUSE_OF_PHASE = {
    "detect": "detection",
    "decide": "rendezvous",
    "connect": "rendezvous",
    "transfer": "state",
    "first_step": "start",
}
"""Phase of a rescale -> cause of lost time."""
CAUSES = ("detection", "rendezvous", "state", "start", "rescaling", "redone", "waiting", "spare")
"""``rescaling``: pauses whose phases are unknown, or longer than the trainer has measured."""


def split(usage: AcceleratorSeconds) -> dict[str, float]:
    """Accelerator seconds of ``training`` and of each cause: none is negative, and they add up to those held.

    A pause that is measured and not booked yet (``owed_rescaling``) counts only as far as it is booked.
    """
    measured = sum(usage.rescaling_phases.values())
    part = min(1.0, usage.rescaling / measured) if measured > 0 else 0.0
    found = dict.fromkeys(("training", *CAUSES), 0.0)
    for phase, seconds in usage.rescaling_phases.items():
        found[CAUSE_OF_PHASE.get(phase, "rescaling")] += seconds * part
    found["rescaling"] += max(0.0, usage.rescaling - measured * part)
    return found | {use: getattr(usage, use) for use in ("training", "redone", "waiting", "spare")}


def effective(usage: AcceleratorSeconds | None) -> float | None:
    """The part of the held accelerator seconds that trained, from 0 to 1, to four digits; None before there are any."""
    held = 0.0 if usage is None else sum(split(usage).values())
    return round(usage.training / held, 4) if usage is not None and held > 0 else None


def in_words(usage: AcceleratorSeconds) -> str:
    """``paid time: 97.31 % trains, 1.20 % waiting, 0.90 % detection``; empty before any is held."""
    found = split(usage)
    held = sum(found.values())
    if held <= 0:
        return ""
    lost = sorted(((seconds / held, cause) for cause, seconds in found.items() if cause != "training"), reverse=True)
    named = [f"{100 * part:.2f} % {cause}" for part, cause in lost if part >= 5e-5]
    return ", ".join([f"paid time: {100 * found['training'] / held:.2f} % trains", *named])
