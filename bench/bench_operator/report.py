"""Goals and tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bench_harness.stats import text, text_of
from bench_harness.tables import Table
from bench_operator.results import Idle, Report, Rescale, Restart, Run

FEW = 0.05
"""Requests a job below which a kind of them is not listed."""
JOBS = 1000
"""Size at which the goals of a creation apply."""
MANY = 3000
"""Size at which the goal of an idle operator applies."""
ENOUGH_PODS = 10_000
"""Pods at which the goal of memory applies, with at least ``JOBS`` jobs."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Judged by the worst run."""

    words: str
    bound: float
    form: str
    """Of bound and figure."""
    worst: float

    @property
    def met(self) -> bool:
        return self.worst <= self.bound


def goals(report: Report) -> list[Goal]:
    """Those that the runs of ``report`` can answer. They hold for the operator as it is shipped."""
    ours = [r for r in report.runs if r.system == "elastrain"]
    at_size = [r for r in ours if r.jobs == JOBS]
    batch = [r for r in report.runs if (r.system, r.jobs) == ("batch", JOBS)]
    # Each creation against that of batch Jobs in the same turn: other work on the machine slows both.
    ratios = [a.create.seconds / b.create.seconds for a, b in zip(at_size, batch, strict=False)]
    waits = [r.rescale.p99 for r in at_size if r.rescale]
    large = [r for r in ours if r.jobs >= JOBS and _most_pods(r) >= ENOUGH_PODS]
    memory = [max(r.create.rss_mb, r.rescale.cost.rss_mb if r.rescale else 0) for r in large]
    idle = [100 * r.idle.cpu / r.idle.seconds for r in ours if r.idle and r.jobs == MANY]
    pods = max((_most_pods(r) for r in large), default=0)
    found = [
        (f"{JOBS:,} jobs all Running, against batch Jobs in the same turn", 2.0, "{:.2f} ×", ratios),
        (f"spec change → pod created while {JOBS:,} jobs train, p99", 1.5, "{:.2f} s", waits),
        ("its API requests a job until Running, at every size", 10.0, "{:.2f}", [_requests_a_job(r) for r in ours]),
        (f"peak RSS at {JOBS:,} jobs and {ENOUGH_PODS:,} pods (here {pods:,} pods)", 300.0, "{:.0f} MB", memory),
        (f"idle with {MANY:,} jobs, of a core", 2.0, "{:.2f} %", idle),
    ]
    return [Goal(words, bound, form, max(values)) for words, bound, form, values in found if values]


def _most_pods(run: Run) -> int:
    return run.jobs * (run.workers + (1 if run.rescale else 0))


def _requests_a_job(run: Run) -> float:
    return run.create.own_requests / run.jobs


def tables(report: Report) -> list[Table]:
    """All tables; those without a row are not shown."""
    judged = [
        (g.words, g.form.format(g.bound), g.form.format(g.worst), "yes" if g.met else "no") for g in goals(report)
    ]
    return [
        _creation(report),
        _requests(report),
        _by_process(report),
        _presence(report),
        Table("Goals", ("goal", "at most", "worst run", "met"), tuple(judged)),
    ]


def notes(report: Report) -> list[str]:
    return [
        *report.machine.lines,
        f"Kubernetes {report.kubernetes}, kwok {report.kwok}, {report.nodes} nodes; all processes share the cores.",
        "Three figures are minimum / median / maximum over the runs.",
    ]


def _groups(report: Report) -> list[tuple[str, int, list[Run]]]:
    """Runs by size and system."""
    keys = sorted({(r.jobs, r.system) for r in report.runs})
    return [(s, jobs, [r for r in report.runs if (r.system, r.jobs) == (s, jobs)]) for jobs, s in keys]


def _creation(report: Report) -> Table:
    header = (
        "system", "jobs × pods", "create → all Running, s", "jobs/s", "CPU s", "peak RSS MB", "its API requests a job",
        "all API requests", "delete, s",
    )  # fmt: skip
    rows = []
    for system, jobs, runs in _groups(report):
        row = (
            system,
            f"{jobs:,} × {runs[0].workers}",
            text_of(runs, lambda r: r.create.seconds, ".1f"),
            text_of(runs, lambda r: r.jobs / r.create.seconds, ".1f"),
            text_of(runs, lambda r: r.create.cpu, ".1f"),
            text_of(runs, lambda r: r.create.rss_mb, ".0f"),
            text_of(runs, _requests_a_job, ".1f"),
            text_of(runs, lambda r: r.create.all_requests, ",.0f"),
            text_of(runs, lambda r: r.delete.seconds, ".1f"),
        )
        rows.append(row)
    return Table("From creation to deletion", header, tuple(rows), left=2)


def _requests(report: Report) -> Table:
    """Of the last run of each group."""
    rows = []
    for system, jobs, runs in _groups(report):
        counts = runs[-1].create.requests.items()
        kinds = [f"{count / jobs:.1f} {words}" for words, count in counts if count / jobs >= FEW]
        rows.append((system, f"{jobs:,}", ", ".join(kinds)))
    title = "Requests to the API server from creation to Running, by the system's own process"
    return Table(title, ("system", "jobs", "requests a job"), tuple(rows), left=3)


def _by_process(report: Report) -> Table:
    """Of the last run of each group."""
    groups = [(s, jobs, runs[-1].create.by_process) for s, jobs, runs in _groups(report)]
    names = list(dict.fromkeys(name for *_, used in groups for name in used))
    rows = []
    for system, jobs, used in groups:
        each = [f"{1000 * used[name] / jobs:.1f}" if name in used else "" for name in names]
        rows.append((system, f"{jobs:,}", f"{1000 * sum(used.values()) / jobs:.0f}", *each))
    title = "Processor milliseconds a job from creation to Running, by process"
    return Table(title, ("system", "jobs", "all", *names), tuple(rows))


def _of_rescale(figure: Callable[[Rescale, Run], float]) -> Callable[[Run], float | None]:
    return lambda run: figure(run.rescale, run) if run.rescale else None


def _of_idle(figure: Callable[[Idle], float]) -> Callable[[Run], float | None]:
    return lambda run: figure(run.idle) if run.idle else None


def _of_restart(figure: Callable[[Restart], float]) -> Callable[[Run], float | None]:
    return lambda run: figure(run.restart) if run.restart else None


_PRESENCE: tuple[tuple[str, Callable[[Run], float | None], str], ...] = (
    ("one more worker for every job: until all run, s", _of_rescale(lambda x, _: x.cost.seconds), ".1f"),
    ("... changing the specs, s", _of_rescale(lambda x, _: x.patching_seconds), ".1f"),
    ("... spec change → pod created, p50, s", _of_rescale(lambda x, _: x.p50), ".2f"),
    ("... p99, s", _of_rescale(lambda x, _: x.p99), ".2f"),
    ("... operator CPU, ms a job", _of_rescale(lambda x, run: 1000 * x.cost.cpu / run.jobs), ".1f"),
    ("... its API requests a job", _of_rescale(lambda x, run: x.cost.own_requests / run.jobs), ".1f"),
    ("... peak RSS with all workers, MB", _of_rescale(lambda x, _: x.cost.rss_mb), ".0f"),
    ("idle: operator, % of a core", _of_idle(lambda x: 100 * x.cpu / x.seconds), ".2f"),
    ("idle: its etcd, % of a core", _of_idle(lambda x: 100 * x.etcd_cpu / x.seconds), ".2f"),
    ("idle: its API requests a minute", _of_idle(lambda x: 60 * sum(x.requests.values()) / x.seconds), ".1f"),
    ("restart: specs changed meanwhile", _of_restart(lambda x: float(x.changed)), ".0f"),
    ("... start → the last of their pods created, s", _of_restart(lambda x: x.caught_up), ".1f"),
    ("... operator CPU until every job was planned, s", _of_restart(lambda x: x.cpu), ".1f"),
    ("... its API requests", _of_restart(lambda x: float(sum(x.requests.values()))), ".0f"),
    ("... peak RSS, MB", _of_restart(lambda x: x.rss_mb), ".0f"),
    ("playing the members, CPU s", lambda run: run.player_cpu, ".1f"),
)
"""Words, figure of a run, and its format."""


def _presence(report: Report) -> Table:
    """One row for each figure, one column for each operator and number of jobs."""
    groups = [(f"{system}, {jobs:,} jobs", runs) for system, jobs, runs in _groups(report) if system != "batch"]

    def cells(of: Callable[[Run], float | None], form: str) -> Iterable[str]:
        return (text((of(r) for r in runs), form) for _, runs in groups)

    rows = [(words, *cells(of, form)) for words, of, form in _PRESENCE]
    title = "The operator with many jobs present"
    known = tuple(row for row in rows if any(cell != "–" for cell in row[1:]))
    return Table(title, ("", *(name for name, _ in groups)), known)
