"""Whether a job without a readable checkpoint, and without any rank that holds state, may begin at step 0. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_NAMED = 3
_REASON_CHARS = 80
"""Bounds of what the error tells of checkpoints: it has to fit into the message of the job's condition."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known at a cold start, after no checkpoint could be read."""

    path: str | None
    """The checkpoint directory; None: the job has no checkpoints."""
    used: bool
    """Whether a job has begun with this directory before."""
    unreadable: tuple[tuple[str, str], ...]
    """Names of the checkpoints in it that cannot be read, and the reasons."""
    saved_step: int
    """Step of the newest checkpoint in the job's records; 0: they name none, or were lost."""
    reached: int
    """Committed steps in the job's records; 0: none, or they were lost."""
    torn: str
    """Why the memory of the rank that would begin holds the state of no step; empty if it never held any."""


def why_stop(known: Evidence) -> str | None:
    """Why training must stop, in one line with the ways out; None: it begins at step 0.

    A checkpoint that was completed once is never given up silently, whether the directory or the job's records tell of
    it. Steps after which none was completed are repeated: nothing holds them any more.
    """
    if known.unreadable:
        return f"cannot resume: no checkpoint in {known.path} can be read. {_advice(known)}. Tried: {_reasons(known)}"
    if known.saved_step and known.path is None:
        return f"cannot resume: spec.checkpoint is not set. {_advice(known)}"
    if known.saved_step:
        why = "holds no checkpoint" if known.used else "was never used (is its volume mounted?)"
        return f"cannot resume: {known.path} {why}. {_advice(known)}"
    if known.torn:
        way_out = f"none was completed in {known.path}" if known.path else "set spec.checkpoint"
        return (
            f"no worker holds the training state any more ({known.torn}), and there is no checkpoint to go on from: "
            f"{way_out}"
        )
    return None


def _reasons(known: Evidence) -> str:
    named = [f"{name} ({' '.join(reason.split())[:_REASON_CHARS]})" for name, reason in known.unreadable[:_NAMED]]
    more = len(known.unreadable) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _advice(known: Evidence) -> str:
    records = f"The job had reached step {max(known.reached, known.saved_step)}"
    if known.saved_step:
        records += f", and a checkpoint of step {known.saved_step} was saved"
    restore = "Restore the volume" if known.path else "Set spec.checkpoint again"
    anew = "to begin at step 0, delete the job and create it with an empty checkpoint.path"
    return f"{f'{records}. ' if known.reached or known.saved_step else ''}{restore}; or, {anew}"
