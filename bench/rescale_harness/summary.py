"""The figures of all runs of a system together, and beside another one's. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from rescale_harness import undisturbed
from rescale_harness.events import START_NODES
from rescale_harness.results import EventResult, EventSummary, Phases, RunResult, Spread, SystemResult


def system_result(about: str, runs: Sequence[RunResult]) -> SystemResult:
    """Min, median and max over ``runs``."""
    samples = [r.samples for r in runs if r.samples is not None]
    return SystemResult(
        about=about,
        runs=tuple(runs),
        start=Spread.of(r.start for r in runs if r.nodes == START_NODES),
        step=Spread.of(r.step for r in runs),
        longest_step=Spread.of(r.longest_step for r in runs),
        undisturbed=undisturbed.over_runs(runs),
        events=event_summaries(runs),
        samples_committed=sum(s.committed for s in samples),
        samples_lost=sum(s.lost for s in samples),
        samples_repeated=sum(s.repeated for s in samples),
        rolled_back=Spread.of(r.rolled_back for r in runs),
        problems=tuple(p for s in samples for p in s.problems),
    )


def event_summaries(runs: Sequence[RunResult]) -> tuple[EventSummary, ...]:
    """Per event, in the order of their first coming."""
    by_label: dict[str, list[EventResult]] = defaultdict(list)
    for run in runs:
        for event in run.events:
            by_label[event.label].append(event)
    return tuple(_event_summary(label, events) for label, events in by_label.items())


def _event_summary(label: str, events: Sequence[EventResult]) -> EventSummary:
    stalls, again, thrown = (
        Spread.of(figures)
        for figures in ([e.stall for e in events], [e.redone for e in events], [e.discarded for e in events])
    )
    assert stalls is not None and again is not None and thrown is not None
    return EventSummary(
        label=label,
        from_size=events[0].from_size,
        to_size=events[0].to_size,
        runs=len(events),
        recovered=sum(e.recovered for e in events),
        stall=stalls,
        pause=Spread.of(e.pause for e in events),
        redone=again,
        discarded=thrown,
        pids_changed=sum(e.pids_changed for e in events),
        changes=Spread.of(e.changes for e in events),
        phases=phase_medians([r for e in events for r in e.rescales]),
    )


def phase_medians(rescales: Sequence[Phases]) -> tuple[Phases, ...]:
    """One for each name, in the order of their first coming; a phase counts in those that have it."""
    by_name: dict[str, list[Phases]] = defaultdict(list)
    for rescale in rescales:
        by_name[rescale.name].append(rescale)
    return tuple(
        Phases(
            name=name,
            pause=statistics.median(r.pause for r in of),
            seconds={
                phase: statistics.median(r.seconds[phase] for r in of if phase in r.seconds)
                for phase in dict.fromkeys(p for r in of for p in r.seconds)
            },
        )
        for name, of in by_name.items()
    )


def with_ratios(systems: dict[str, SystemResult], reference: str) -> dict[str, SystemResult]:
    """The same, with each median as a multiple of the ``reference`` system's; unchanged where that is missing."""
    if reference not in systems:
        return systems
    base = {e.label: e for e in systems[reference].events}
    return {
        name: system.model_copy(update={"events": tuple(_with_ratios(e, base.get(e.label)) for e in system.events)})
        for name, system in systems.items()
    }


def _with_ratios(event: EventSummary, base: EventSummary | None) -> EventSummary:
    if base is None:
        return event
    return event.model_copy(
        update={"stall_ratio": _ratio(event.stall, base.stall), "pause_ratio": _ratio(event.pause, base.pause)}
    )


def _ratio(figure: Spread | None, base: Spread | None) -> float | None:
    if figure is None or base is None or base.median == 0:
        return None
    return figure.median / base.median
