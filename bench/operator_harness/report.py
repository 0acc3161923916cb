"""The figures for people: tables for a terminal and for the documentation. Pure but for printing."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from operator_harness.goals import goals
from operator_harness.results import Idle, Report, Rescale, Restart, Run
from operator_harness.systems import SYSTEMS
from rescale_harness.report import Table

FEW = 0.05
"""Requests a job below which a kind of them is not listed."""


def tables(report: Report) -> list[tuple[str, Table]]:
    """All tables that have a row, each with a title."""
    found = [
        ("From creation to deletion", _creation(report)),
        ("Requests to the API server from creation to Running, by the system's own process", _requests(report)),
        ("Who used the cores from creation to Running: processor milliseconds a job", _everybody(report)),
        ("elastrain with many jobs present", _presence(report)),
        ("Goals", _goals(report)),
    ]
    return [(title, table) for title, table in found if table.rows]


def show(report: Report, console: Console) -> None:
    console.print(_conditions(report), highlight=False)
    for title, table in tables(report):
        rich = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for i, name in enumerate(table.header):
            rich.add_column(name, justify="left" if i < table.left else "right")
        for row in table.rows:
            rich.add_row(*row)
        console.print(rich)


def markdown(report: Report) -> str:
    parts = [f"{_conditions(report)}\n"]
    for title, table in tables(report):
        rule = ["---" if i < table.left else "---:" for i in range(len(table.header))]
        rows = "\n".join("| " + " | ".join(row) + " |" for row in (table.header, rule, *table.rows))
        parts.append(f"**{title}**\n\n{rows}\n")
    return "\n".join(parts)


def _conditions(report: Report) -> str:
    machine = report.machine
    runs = Counter((r.system, r.jobs) for r in report.runs)
    counts = f"{min(runs.values())} to {max(runs.values())}" if len(set(runs.values())) > 1 else f"{max(runs.values())}"
    many = f", {counts} runs each: min / median / max" if max(runs.values()) > 1 else ", one run each"
    return (
        f"{machine.processor}, {machine.cores} cores for everything, {machine.memory_gib:g} GiB; Kubernetes "
        f"{report.kubernetes}, etcd {machine.etcd}, kwok {report.kwok}, {report.nodes} nodes; elastrain "
        f"{machine.revision or machine.elastrain}; {report.began}, load {machine.load:g} before, "
        f"{report.load_after:g} after{many}."
    )


def _creation(report: Report) -> Table:
    header = (
        "system", "jobs × pods", "create → all Running, s", "jobs/s", "CPU s", "peak RSS MB", "its API requests a job",
        "all API requests", "delete, s",
    )  # fmt: skip
    rows = []
    for (system, jobs), runs in _groups(report):
        create = [r.create for r in runs]
        rows.append(
            (
                system,
                f"{jobs:,} × {runs[0].workers}",
                spread((c.seconds for c in create), "{:.1f}"),
                spread((jobs / c.seconds for c in create), "{:.1f}"),
                spread((c.cpu for c in create), "{:.1f}"),
                spread((c.rss_mb for c in create), "{:.0f}"),
                spread((c.own_requests / jobs for c in create), "{:.1f}"),
                spread((c.all_requests for c in create), "{:,.0f}"),
                spread((r.delete.seconds for r in runs), "{:.1f}"),
            )
        )
    return Table(header, tuple(rows), left=2)


def _requests(report: Report) -> Table:
    rows = []
    for (system, jobs), runs in _groups(report):
        create = runs[-1].create
        kinds = [f"{count / jobs:.1f} {words}" for words, count in create.requests.items() if count / jobs >= FEW]
        rows.append((system, f"{jobs:,}", ", ".join(kinds)))
    return Table(("system", "jobs", "requests a job"), tuple(rows), left=3)


def _everybody(report: Report) -> Table:
    """Of the last run of each group."""
    groups = [(s, jobs, runs[-1].create.everybody) for (s, jobs), runs in _groups(report) if runs[-1].create.everybody]
    who = list(dict.fromkeys(name for *_, used in groups for name in used))
    rows = [
        (s, f"{jobs:,}", f"{1000 * sum(used.values()) / jobs:.0f}",
         *(f"{1000 * used[name] / jobs:.1f}" if name in used else "" for name in who))
        for s, jobs, used in groups
    ]  # fmt: skip
    return Table(("system", "jobs", "all", *who), tuple(rows), left=1)


def _rescale(of: Callable[[Rescale, Run], float]) -> Callable[[Run], float | None]:
    return lambda run: of(run.rescale, run) if run.rescale else None


def _idle(of: Callable[[Idle], float]) -> Callable[[Run], float | None]:
    return lambda run: of(run.idle) if run.idle else None


def _restart(of: Callable[[Restart], float]) -> Callable[[Run], float | None]:
    return lambda run: of(run.restart) if run.restart else None


_PRESENCE: tuple[tuple[str, Callable[[Run], float | None], str], ...] = (
    ("one more worker for every job: until all run, s", _rescale(lambda x, _: x.cost.seconds), "{:.1f}"),
    ("... changing the specs took, s", _rescale(lambda x, _: x.patching_seconds), "{:.1f}"),
    ("... spec change → pod created, p50, s", _rescale(lambda x, _: x.p50), "{:.2f}"),
    ("... p99, s", _rescale(lambda x, _: x.p99), "{:.2f}"),
    ("... operator CPU, ms a job", _rescale(lambda x, run: 1000 * x.cost.cpu / run.jobs), "{:.1f}"),
    ("... its API requests a job", _rescale(lambda x, run: x.cost.own_requests / run.jobs), "{:.1f}"),
    ("... peak RSS with all workers, MB", _rescale(lambda x, _: x.cost.rss_mb), "{:.0f}"),
    ("idle: operator, % of a core", _idle(lambda x: 100 * x.cpu / x.seconds), "{:.2f}"),
    ("idle: its etcd, % of a core", _idle(lambda x: 100 * x.etcd_cpu / x.seconds), "{:.2f}"),
    ("idle: its API requests a minute", _idle(lambda x: 60 * sum(x.requests.values()) / x.seconds), "{:.1f}"),
    ("restart: specs changed meanwhile", _restart(lambda x: float(x.changed)), "{:.0f}"),
    ("... start → the last of their pods created, s", _restart(lambda x: x.caught_up), "{:.1f}"),
    ("... operator CPU until it had looked at every job, s", _restart(lambda x: x.cpu), "{:.1f}"),
    ("... its API requests", _restart(lambda x: float(sum(x.requests.values()))), "{:.0f}"),
    ("... peak RSS, MB", _restart(lambda x: x.rss_mb), "{:.0f}"),
    ("playing the members, CPU s", lambda run: run.player_cpu, "{:.1f}"),
)
"""Words, figure of a run, and how it is written."""


def _presence(report: Report) -> Table:
    """One row for each figure, one column for each number of jobs."""
    groups = [(jobs, runs) for (system, jobs), runs in _groups(report) if system == "elastrain"]
    rows = [
        (words, *(spread((v for r in runs if (v := of(r)) is not None), how) for _, runs in groups))
        for words, of, how in _PRESENCE
    ]
    return Table(("", *(f"{jobs:,} jobs" for jobs, _ in groups)), tuple(r for r in rows if any(r[1:])))


def _goals(report: Report) -> Table:
    rows = [(g.words, g.bound, g.measured, "yes" if g.met else "no") for g in goals(report)]
    return Table(("goal", "bound", "measured (worst run)", "met"), tuple(rows), left=1)


def _groups(report: Report) -> list[tuple[tuple[str, int], list[Run]]]:
    order = list(SYSTEMS)
    keys = sorted({(r.jobs, order.index(r.system), r.system) for r in report.runs})
    return [((s, jobs), [r for r in report.runs if (r.system, r.jobs) == (s, jobs)]) for jobs, _, s in keys]


def spread(values: Iterable[float], how: str) -> str:
    """One value as it is, several as min / median / max; empty if there are none."""
    known: Sequence[float] = sorted(values)
    if not known:
        return ""
    shown = [how.format(v) for v in (known[0], statistics.median(known), known[-1])]
    return shown[0] if len(set(shown)) == 1 else " / ".join(shown)
