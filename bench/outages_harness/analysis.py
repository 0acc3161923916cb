"""What an outage did to the jobs, judged from what was seen. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STALL_SECONDS = 10.0
"""Committing nothing for longer counts as not training. (A step takes half a second here, a busy machine some more.)"""


@dataclass(frozen=True)
class Worker:
    """A worker's pod, and what runs in it."""

    uid: str
    agent: int | None
    """Pid; None: it has ended."""


@dataclass(frozen=True)
class Seen:
    """One job during one outage."""

    job: str
    before: Mapping[str, Worker]
    """Its workers when the outage began, by name."""
    after: Mapping[str, Worker]
    """When it had converged, or the wait for that was over."""
    steps: Sequence[tuple[float, int]]
    """Seconds since the outage began, and committed steps by the audit log, about once a second while it lasted."""
    converged: float | None
    """Seconds from when everybody was back until the size asked for meanwhile trained; None: it never did."""


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    case: str
    seconds: float
    """How long it lasted."""
    jobs: int
    steps: int
    """Committed by all jobs meanwhile."""
    longest_pause: float
    """Seconds in which one of the jobs committed nothing."""
    replaced: tuple[str, ...]
    """Workers that were there before and are not the same pod any more, or whose agent has ended."""
    converged: float | None
    """The last job's."""
    problems: tuple[str, ...] = field(default=())


def longest_pause(steps: Sequence[tuple[float, int]]) -> float:
    """The longest time without a newly committed step; from the first look to the last one if there was none."""
    if not steps:
        return 0.0
    progress = [steps[0], *(b for a, b in itertools.pairwise(steps) if b[1] > a[1])]
    times = [at for at, _ in progress] + [steps[-1][0]]
    return max(b - a for a, b in itertools.pairwise(times))


def replaced(before: Mapping[str, Worker], after: Mapping[str, Worker]) -> tuple[str, ...]:
    """Names of the workers of ``before`` that are gone, another pod, or have ended."""
    return tuple(sorted(name for name, worker in before.items() if after.get(name) != worker))


def judge(case: str, seconds: float, seen: Iterable[Seen]) -> Result:
    """The line of one outage, with a problem in words for each promise that was broken."""
    looks = list(seen)
    pause = max((longest_pause(s.steps) for s in looks), default=0.0)
    lost = tuple(f"{s.job}/{name}" for s in looks for name in replaced(s.before, s.after))
    late = [s.job for s in looks if s.converged is None]
    problems = [f"{s.job} committed nothing for {longest_pause(s.steps):.0f} s" for s in looks
                if longest_pause(s.steps) > STALL_SECONDS]  # fmt: skip
    problems += [f"{name} was restarted or replaced" for name in lost]
    problems += [f"{job} did not reach the size that was asked for meanwhile" for job in late]
    return Result(
        case=case,
        seconds=seconds,
        jobs=len(looks),
        steps=sum(s.steps[-1][1] - s.steps[0][1] for s in looks if s.steps),
        longest_pause=pause,
        replaced=lost,
        converged=None if late else max((s.converged for s in looks if s.converged is not None), default=None),
        problems=tuple(problems),
    )


def audit_problems(job: str, verdict: Mapping[str, Any], pods: Mapping[str, Collection[str]]) -> list[str]:
    """What ``elastrain audit`` says against a job's whole run. ``pods``: UIDs of all pods that a worker's name had: a
    name that is used again after a shrink is a new worker, and each has one training process."""
    found = [f"{job}: {verdict[k]} {what}" for k, what in _AUDITED.items() if verdict[k]]
    found += [f"{job}: {problem}" for problem in verdict["problems"]]
    return found + [
        f"{job}/{worker}: {len(pids)} training processes in {len(pods.get(worker, ()))} pods"
        for worker, pids in verdict["pids"].items()
        if len(pids) > len(pods.get(worker, ()))
    ]


_AUDITED = {"lost": "samples lost", "repeated": "samples repeated", "redone": "steps redone"}


def markdown(results: Iterable[Result], samples: int) -> str:
    """The table, and what the audit counted."""
    lines = [
        "| away | for, s | jobs | steps meanwhile | longest pause, s | workers replaced | converged after, s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        after = "never" if r.converged is None else f"{r.converged:.0f}"
        cells = (r.case, f"{r.seconds:.0f}", r.jobs, f"{r.steps:,}", f"{r.longest_pause:.1f}", len(r.replaced), after)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, "", f"{samples:,} samples consumed."])
