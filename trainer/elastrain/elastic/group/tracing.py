"""The traces of a rescale, from a rank to a trace collector. Nothing here runs between rescales."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from elastrain import tracing
from elastrain.api import names
from elastrain.elastic.group.report import Switch
from elastrain.tracing import ROOT, Attribute, Span, Tracer


def spans(switch: Switch, rank: int, first_commit: float) -> tuple[list[Span], Span]:
    """The spans of ``rank``'s phases in a rescale, and the span of the whole. Pure.

    The phases are those of :meth:`elastrain.elastic.group.report.Times.phases`, with their beginnings. In a
    planned change ``rank.connect`` lies before ``rank.pause``, beside training.
    """
    times = switch.times
    who: dict[str, Attribute] = {"elastrain.rank": rank}
    found = []
    connecting = times.heard
    if times.broken is not None:
        found.append(Span("rank.detect", min(times.since, times.broken), times.broken, who))
        found.append(Span("rank.decide", times.broken, max(times.broken, times.heard), who))
        connecting = max(times.heard, times.broken)
    found.append(Span("rank.connect", connecting, max(connecting, times.connected), who))
    found.append(Span("rank.transfer", times.entered, times.synchronised, who))
    found.append(Span("rank.first_step", times.synchronised, first_commit, who))
    pause = first_commit - times.since
    if times.last_commit is not None:
        found.append(Span("rank.pause", times.since, first_commit, who))
    facts: dict[str, Attribute] = {
        "elastrain.from_ranks": switch.from_size,
        "elastrain.to_ranks": switch.generation.world_size,
        "elastrain.reason": switch.generation.reason,
        "elastrain.step": switch.step,
        "elastrain.lost_steps": switch.lost_steps,
        "elastrain.pause_seconds": round(pause, 4),
    }
    return found, Span(ROOT, min(span.start for span in found), first_commit, who | facts)


class Recorder:
    """Called with each rescale and the time of its first commit."""

    def __init__(self, tracer: Tracer, job_uid: str, rank: Callable[[], int]) -> None:
        """``rank()``: the present rank of this process."""
        self._tracer, self._job_uid, self._rank = tracer, job_uid, rank

    def __call__(self, switch: Switch, first_commit: float) -> None:
        rank = self._rank()
        parts, whole = spans(switch, rank, first_commit)
        self._tracer.emit(self._job_uid, switch.generation.number, parts, whole if rank == 0 else None)

    def close(self) -> None:
        """Send all outstanding spans; bounded."""
        self._tracer.close()


def recorder(rank: Callable[[], int], environ: Mapping[str, str] = os.environ) -> Recorder | None:
    """The recorder for a rank with this environment; None if no trace collector is configured."""
    who = {"elastrain.worker": environ.get(names.ENV_WORKER, ""), "elastrain.job": environ.get(names.ENV_JOB, "")}
    tracer = tracing.from_environment(environ, "elastrain-rank", **who)
    return None if tracer is None else Recorder(tracer, environ.get(names.ENV_JOB_UID, ""), rank)
