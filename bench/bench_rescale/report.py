"""The tables of a report. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from bench_harness.names import WORKLOAD
from bench_harness.stats import text, text_of
from bench_harness.tables import Table
from bench_rescale.events import START_NODES, Event, kind
from bench_rescale.goals import judge
from bench_rescale.growth import FEWEST, leaks, per_cycle
from bench_rescale.results import EventResult, Phases, Report, RunResult, Undisturbed

FEWEST_RUNS = 3
LOST = "Lost"
"""Reason of a generation without a rank that was taken for dead."""
JUDGED = ("elastrain", "elastrain-hsdp")
"""Systems with goals."""


def tables(report: Report) -> list[Table]:
    """All tables; those without a row are not shown."""
    found = []
    for busy in (False, True):
        runs = [r for r in report.runs if r.busy is busy]
        beside = ", beside a load on every core" if busy else ""
        found += [
            events_table(runs, f"Cost of each event{beside}"),
            goals_table(runs, report.lease_ttl, f"Goals{beside}"),
            phases_table(runs, f"Phases of each rescale, by elastrain's own record{beside}"),
            undisturbed_table(runs, f"Undisturbed steps{beside}"),
            training_table(runs, f"Undisturbed training{beside}"),
            systems_table(runs, f"Systems{beside}"),
            growth_table(runs, report.cycles, f"Resources of each rank over {report.cycles} cycles{beside}"),
        ]
    return found


def notes(report: Report, about: dict[str, str]) -> list[str]:
    """What a reader needs to judge the figures. ``about``: the systems in words."""
    scenarios = Counter((r.subject, r.busy, r.scenario) for r in report.runs)
    fewest = min(scenarios.values(), default=FEWEST_RUNS)
    return [
        *([] if fewest >= FEWEST_RUNS else [f"Fewer than {FEWEST_RUNS} runs of a scenario: not for publication."]),
        *report.machine.lines,
        "Three figures are minimum / median / maximum over the runs.",
        *(f"{name}: {words}." for name, words in about.items()),
        f"{WORKLOAD}. 16 samples a rank at 2 ranks; at 3 ranks elastrain's global batch stays 32 samples, that of the "
        f"others grows to 48. A durable checkpoint every {report.checkpoint_every} steps. An event may take "
        f"{report.limit:g} s. The lease TTL is {report.lease_ttl} s where a node falls silent.",
        *(f"{r.system}: {p}" for r in report.runs if r.samples for p in r.samples.problems),
    ]


def by_system(runs: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """By subject, in the order in which they first came."""
    return {name: [r for r in runs if r.subject == name] for name in dict.fromkeys(r.subject for r in runs)}


def by_label(runs: Sequence[RunResult]) -> dict[str, list[EventResult]]:
    """Each event over the runs, in the order in which they first came."""
    events = [e for r in runs for e in r.events]
    return {label: [e for e in events if e.label == label] for label in dict.fromkeys(e.label for e in events)}


def events_table(runs: Sequence[RunResult], title: str) -> Table:
    header = ("event", "system", "recovered", "stall s", "time to size s", "redone", "discarded", "new pids")
    rows = []
    for label in by_label(runs):
        for system, of_system in by_system(runs).items():
            events = by_label(of_system).get(label, [])
            if not events:
                continue
            recovered = sum(e.recovered for e in events)
            row = (
                _name(events[0]),
                system,
                f"{recovered} of {len(events)}",
                (">" if recovered < len(events) else "") + _seconds([e.stall for e in events]),
                _seconds([e.time_to_size for e in events]),
                text_of(events, lambda e: e.redone, "g"),
                text_of(events, lambda e: e.discarded, "g"),
                f"{sum(e.pids_changed for e in events)} of {len(events)}",
            )
            rows.append(row)
    return Table(title, header, tuple(rows), left=2)


def goals_table(runs: Sequence[RunResult], lease_ttl: float, title: str) -> Table:
    """Of :data:`JUDGED` only."""
    rows = []
    for system, ours in by_system(runs).items():
        for events in by_label(ours).values() if ours[0].system in JUDGED else ():
            for judged in judge(events, over_runs(ours), lease_ttl):
                spread = judged.measured
                figures = ("–", "–") if spread is None else (f"{spread.median:.2f}", f"{spread.max:.2f}")
                words = f"{judged.goal.figure.replace('_', ' ')} ≤ {judged.goal.words}"
                rows.append((_name(events[0]), system, words, f"{judged.bound:.2f}", *figures, judged.kept))
    header = ("event", "system", "goal", "bound s", "median s", "max s", "kept")
    return Table(title, header, tuple(rows), left=3)


def phases_table(runs: Sequence[RunResult], title: str) -> Table:
    """Medians over the rescales of the same kind."""
    rows = []
    for label in by_label(runs):
        for subject, of_subject in by_system(runs).items():
            events = by_label(of_subject).get(label, [])
            rescales = [r for e in events for r in e.rescales]
            for name in dict.fromkeys(r.name for r in rescales):
                of_name = [r for r in rescales if r.name == name]
                pause = statistics.median(r.pause for r in of_name)
                rows.append((_name(events[0]), subject, name, f"{1000 * pause:.0f}", _phases(of_name)))
    return Table(title, ("event", "system", "rescale", "pause ms", "phases ms"), tuple(rows), left=3)


def _phases(rescales: Sequence[Phases]) -> str:
    names = dict.fromkeys(name for r in rescales for name in r.seconds)
    medians = {n: statistics.median(r.seconds[n] for r in rescales if n in r.seconds) for n in names}
    return ", ".join(f"{name} {1000 * value:.0f}" for name, value in medians.items())


def over_runs(runs: Sequence[RunResult]) -> list[Undisturbed]:
    """By size: medians of the runs' medians and percentiles; the longest of all."""
    steps = [u for r in runs for u in r.undisturbed]
    return [
        Undisturbed(
            size=size,
            steps=sum(u.steps for u in steps if u.size == size),
            median=statistics.median(u.median for u in steps if u.size == size),
            p95=statistics.median(u.p95 for u in steps if u.size == size),
            longest=max(u.longest for u in steps if u.size == size),
        )
        for size in sorted({u.size for u in steps})
    ]


def undisturbed_table(runs: Sequence[RunResult], title: str) -> Table:
    rows = [
        (system, str(u.size), str(u.steps), *(f"{1000 * value:.0f}" for value in (u.median, u.p95, u.longest)))
        for system, of_system in by_system(runs).items()
        for u in over_runs(of_system)
    ]
    return Table(title, ("system", "ranks", "steps", "median ms", "95 % ms", "longest ms"), tuple(rows))


def training_table(runs: Sequence[RunResult], title: str) -> Table:
    """Of each run: what was taken for a loss while nothing happened, and what training sent."""
    rows = []
    for run in runs:
        for event in run.events if run.system in JUDGED else ():
            if kind(event.label) is Event.TRAIN:
                losses = sum(one.name.startswith(LOST) for one in event.rescales)
                carried = "–" if event.carried is None else f"{event.carried / 1e9:.1f}"
                row = (run.subject, str(event.to_size), "yes" if event.recovered else "no", f"{event.seconds / 60:.1f}")
                counts = (str(len(event.rescales)), str(losses), str(event.steps), f"{event.stall:.2f}", carried)
                rows.append((*row, *counts))
    header = ("system", "nodes", "trained on", "minutes", "rescales", "losses", "steps", "longest step s", "GB sent")
    return Table(title, header, tuple(rows))


def systems_table(runs: Sequence[RunResult], title: str) -> Table:
    """The start, and the samples of all runs."""
    header = ("system", "runs", f"start of {START_NODES} nodes s", "samples", "lost", "repeated", "rolled back")
    rows = []
    for system, of_system in by_system(runs).items():
        samples = [r.samples for r in of_system if r.samples is not None]
        row = (
            system,
            str(len(of_system)),
            _seconds([r.start for r in of_system if r.nodes == START_NODES]),
            f"{sum(s.committed for s in samples):,}",
            str(sum(s.lost for s in samples)),
            str(sum(s.repeated for s in samples)),
            f"{statistics.median(r.rolled_back for r in of_system):.0%}",
        )
        rows.append(row)
    return Table(title, header, tuple(rows))


def growth_table(runs: Sequence[RunResult], cycles: int, title: str) -> Table:
    header = ("rank", "threads", "descriptors", "memory MiB", "memory KiB a cycle", "leaks")
    rows = []
    for run in runs:
        for rank, series in run.footprints.items():
            first, last, judged = series[0], series[-1], len(series) >= FEWEST
            row = (
                rank,
                f"{first.threads} → {last.threads}",
                f"{first.fds} → {last.fds}",
                f"{first.private_kib / 1024:.0f} → {last.private_kib / 1024:.0f}",
                f"{per_cycle(series, cycles)['private_kib']:+.1f}" if judged else "–",
                (", ".join(leaks(series, cycles)) or "none") if judged else "not measured",
            )
            rows.append(row)
    return Table(title, header, tuple(rows))


def _name(event: EventResult) -> str:
    return f"{event.label} {event.from_size}→{event.to_size}"


def _seconds(values: Sequence[float | None]) -> str:
    """Fewer digits for long times."""
    known = [v for v in values if v is not None]
    return text(known, ".1f" if known and min(known) >= 10 else ".2f")
