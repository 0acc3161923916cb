"""What is saved when, which checkpoint a job resumes from, and what is deleted. Pure.

:class:`Checkpoint` orders by lineage first: every cold start (a generation in which no rank holds state) begins a new
*lineage*, whose number is greater than all earlier ones. So the newest checkpoint is that of the newest lineage,
although an older lineage may have reached a higher step before its last checkpoints were lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEP = re.compile(r"step-(\d{9,})")
SWEPT_PER_SAVE = 8
"""Most partial checkpoints that one save deletes: a drain waits for the save."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    """Committed steps in it."""
    generation: int
    """Generation that wrote it."""
    lineage: str
    path: str
    """Its directory or URL."""
    torch: str = ""
    """The version that wrote it."""

    @property
    def order(self) -> tuple[int, int]:
        """Greatest for the newest checkpoint."""
        return number(self.lineage), self.step

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rsplit("/", maxsplit=1)[-1]


@dataclass(frozen=True, slots=True)
class Partial:
    """A checkpoint that is being written or deleted, or was left by a process that was killed meanwhile."""

    name: str
    step: int
    lineage: str


class NewerVersion(RuntimeError):
    """A checkpoint is not damaged, and only a newer version than this one's can read it."""

    def __init__(self, path: str, written_by: str, mine: str) -> None:
        super().__init__(
            f"cannot resume: {path} was written by {written_by}, and this image has {mine}: run the job in the image "
            "that wrote it, or a newer one"
        )


def is_newer(version: str, mine: str) -> bool:
    """Whether a ``version`` such as 2.15.0 is newer than ``mine``, by its first two numbers."""
    theirs, ours = (re.match(r"(\d{1,9})\.(\d{1,9})", text) for text in (version, mine))
    return theirs is not None and ours is not None and tuple(map(int, theirs.groups())) > tuple(map(int, ours.groups()))


def number(lineage: str) -> int:
    """The number of a lineage; 0 if its name has none."""
    found = re.match(r"(\d{1,18})-", lineage)
    return int(found[1]) if found else 0


def is_stale(lineage: str | None, owner: str | None) -> bool:
    """Whether a save of ``lineage`` must be refused where ``owner`` is the last one to have begun; None: none has.

    A later lineage takes over: it may have begun while this place could not be reached.
    """
    return owner not in (None, lineage) and number(owner or "") >= number(lineage or "")


def due(
    every_steps: int | None, every_seconds: int | None, *, step: int, saved_step: int, now: float, saved_at: float
) -> bool:
    """Whether to save after ``step`` committed steps.

    ``saved_step`` and ``saved_at`` (monotonic seconds, like ``now``) belong to the last attempt, before any to the
    start. A failed attempt counts, so that a full disk is tried again at the next interval and not at every step.
    """
    if step <= saved_step:
        return False
    by_steps = every_steps is not None and step // every_steps > saved_step // every_steps
    by_time = every_seconds is not None and now - saved_at >= every_seconds
    return by_steps or by_time


BUSY = 1 << 3
"""What a rank that cannot save adds to the votes of all ranks: more than rank 0, whose bits are the tiers, adds."""


def wanted(votes: int, tiers: int) -> list[int]:
    """The tiers to which all ranks save now, by the sum of their votes; none if one of them cannot save."""
    return [] if votes >= BUSY else [tier for tier in range(tiers) if votes & 1 << tier]


def candidates(found: Sequence[Sequence[Checkpoint]]) -> list[tuple[int, Checkpoint]]:
    """All checkpoints, each with the number of its tier, in the order in which they are tried: the newest first, a
    faster tier before a slower one. ``found``: by tier, the fastest first."""
    ways = [(tier, checkpoint) for tier, complete in enumerate(found) for checkpoint in complete]
    return sorted(ways, key=lambda way: (-way[1].order[0], -way[1].order[1], way[0]))


def surplus(complete: Iterable[Checkpoint], keep: int, saved: Checkpoint) -> list[Checkpoint]:
    """What is deleted after ``saved`` was written, to keep the ``keep`` newest.

    ``saved`` stays in any case: a slow writer ends after the next one.
    """
    newest = sorted(complete, key=lambda c: c.order, reverse=True)
    return [old for old in newest[keep:] if old != saved]


def leftovers(partial: Iterable[Partial], beside: Checkpoint) -> list[Partial]:
    """Partial checkpoints that are not needed ``beside`` one of the present lineage.

    A writer of an earlier lineage would be refused at its end. A writer of an earlier step of this lineage is an
    earlier rank 0, dead or replaced. Every other one may be at work.
    """
    return [p for p in partial if (number(p.lineage), p.step) < beside.order]


# -- a cold start without a readable checkpoint ---------------------------------------------------------------------
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
    partial_state: str
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
    if known.partial_state:
        way_out = f"none was completed in {known.path}" if known.path else "set spec.checkpoint"
        return (
            f"no worker holds the training state any more ({known.partial_state}), and there is no checkpoint to go on "
            f"from: {way_out}"
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
