"""Figures and tables: the cluster beside the simulator. Pure."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench_harness.machine import Machine
from bench_harness.stats import Model
from bench_harness.tables import Table
from bench_sizes.simulated import Cluster, Delays, Outcome, play
from bench_sizes.task import Task
from elastrain_operator.allocation.snapshot import Policy

REPLAYS = 20
"""Simulations of the same jobs, with arrivals later by up to ``SHIFT_SECONDS``."""
SHIFT_SECONDS = 1.0
WITHIN = 0.05
"""Of the simulator's mean completion time."""


class Figures(Model):
    """Of one job. Times are seconds."""

    name: str
    application: str
    arrives: float
    jct: float
    """Completion time on the cluster: end - arrival."""
    simulated: float
    """Its mean in the simulator with the cluster's delays."""
    undelayed: float
    """Its mean in the simulator without delays."""
    rescales: int
    simulated_rescales: float
    waited: float
    """From its arrival to its first generation, on the cluster."""


class Simulation(Model):
    """Several simulations of the same jobs."""

    title: str
    mean: float
    """Mean completion time."""
    spread: float
    """Standard deviation of the mean completion time between the simulations."""
    median: float
    makespan: float
    rescales: float
    gpu_seconds: float


class Measured(Model):
    """The run on the cluster."""

    mean: float
    median: float
    makespan: float
    rescales: float
    gpu_seconds: float
    seconds: float
    admission: float
    decision: float
    start: float
    cpu: dict[str, float]
    """Processor seconds by process."""
    requests: int
    """Of the operator to the API server."""


class Report(Model):
    """Everything."""

    machine: Machine
    title: str
    cluster: Measured | None = None
    """None: only simulated."""
    simulations: tuple[Simulation, ...] = ()
    jobs: tuple[Figures, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The cluster's mean completion time over that of the first simulation."""
        return self.cluster.mean / self.simulations[0].mean if self.cluster else None


def replays(
    tasks: Sequence[Task], cluster: Cluster, policy: Policy, pause: float, delays: Delays
) -> list[dict[str, Outcome]]:
    """Outcomes with the arrivals as they are, then of ``REPLAYS`` - 1 with other ones: a small change of times changes
    sizes, so that one simulation says little. Ends are moved back by as much as the arrivals."""
    found = []
    for seed in range(REPLAYS):
        shift = random.Random(seed)
        moves = {t.name: shift.random() * SHIFT_SECONDS * (seed > 0) for t in tasks}
        moved = [replace(t, arrives=t.arrives + moves[t.name]) for t in tasks]
        made = play(moved, cluster, policy, pause, delays)
        found.append({n: replace(o, began=o.began - moves[n], ended=o.ended - moves[n]) for n, o in made.items()})
    return found


def simulation(title: str, tasks: Sequence[Task], outcomes: Sequence[Mapping[str, Outcome]]) -> Simulation:
    means = [statistics.mean(_times(tasks, o)) for o in outcomes]
    return Simulation(
        title=title,
        mean=statistics.mean(means),
        spread=statistics.stdev(means),
        median=statistics.mean(statistics.median(_times(tasks, o)) for o in outcomes),
        makespan=statistics.mean(max(x.ended for x in o.values()) for o in outcomes),
        rescales=statistics.mean(x.rescales for o in outcomes for x in o.values()),
        gpu_seconds=statistics.mean(sum(x.gpu_seconds for x in o.values()) for o in outcomes),
    )


def measured(
    tasks: Sequence[Task],
    jobs: Mapping[str, Outcome],
    delays: Delays,
    seconds: float,
    cpu: dict[str, float],
    requests: int,
) -> Measured:
    times = _times(tasks, jobs)
    return Measured(
        mean=statistics.mean(times),
        median=statistics.median(times),
        makespan=max(j.ended for j in jobs.values()),
        rescales=statistics.mean(j.rescales for j in jobs.values()),
        gpu_seconds=sum(j.gpu_seconds for j in jobs.values()),
        seconds=seconds,
        admission=delays.admission,
        decision=delays.decision,
        start=delays.start,
        cpu=cpu,
        requests=requests,
    )


def by_job(
    tasks: Sequence[Task],
    jobs: Mapping[str, Outcome],
    delayed: Sequence[Mapping[str, Outcome]],
    undelayed: Sequence[Mapping[str, Outcome]],
) -> tuple[Figures, ...]:
    return tuple(
        Figures(
            name=t.name,
            application=t.application,
            arrives=t.arrives,
            jct=jobs[t.name].ended - t.arrives,
            simulated=statistics.mean(o[t.name].ended for o in delayed) - t.arrives,
            undelayed=statistics.mean(o[t.name].ended for o in undelayed) - t.arrives,
            rescales=jobs[t.name].rescales,
            simulated_rescales=statistics.mean(o[t.name].rescales for o in delayed),
            waited=jobs[t.name].began - t.arrives,
        )
        for t in tasks
    )


def _times(tasks: Sequence[Task], jobs: Mapping[str, Outcome]) -> list[float]:
    return [jobs[t.name].ended - t.arrives for t in tasks]


def tables(report: Report) -> list[Table]:
    return [_whole(report), _applications(report), _farthest(report), _costs(report)]


def notes(report: Report) -> list[str]:
    return [
        *report.machine.lines,
        f"Simulator: mean of {REPLAYS} simulations, arrivals moved by up to {SHIFT_SECONDS:g} s; ± their standard "
        "deviation. Its jobs are those of the cluster, and the policy is the operator's.",
        "Pods run as soon as they are bound: a real worker also pulls its image and imports its libraries.",
    ]


def _whole(report: Report) -> Table:
    header = ("", "mean JCT, s", "cluster / simulator", "median", "makespan", "rescales a job", "GPU-seconds")
    rows = []
    if (c := report.cluster) is not None:
        rows.append(("cluster", f"{c.mean:.1f}", "", *_rest(c)))
    for s in report.simulations:
        ratio = f"{report.cluster.mean / s.mean:.3f}" if report.cluster else ""
        rows.append((s.title, f"{s.mean:.1f} ± {s.spread:.1f}", ratio, *_rest(s)))
    met = "" if report.ratio is None else f"; within {WITHIN:.0%}: {'yes' if abs(report.ratio - 1) <= WITHIN else 'no'}"
    return Table(report.title + met, header, tuple(rows))


def _rest(f: Measured | Simulation) -> tuple[str, ...]:
    return f"{f.median:.1f}", f"{f.makespan:.0f}", f"{f.rescales:.2f}", f"{f.gpu_seconds:,.0f}"


def _applications(report: Report) -> Table:
    rows = []
    for application in dict.fromkeys(j.application for j in report.jobs):
        mine = [j for j in report.jobs if j.application == application]
        mean = {f: statistics.mean(getattr(j, f) for j in mine) for f in ("jct", "simulated", "undelayed", "waited")}
        more = statistics.median(j.jct - j.simulated for j in mine)
        row = (*(f"{mean[f]:.1f}" for f in ("jct", "simulated", "undelayed", "waited")), f"{more:+.1f}")
        rows.append((application, str(len(mine)), *row))
    header = (
        "application",
        "jobs",
        "cluster",
        "simulator",
        "without delays",
        "waited for its start",
        "median difference",
    )
    return Table("Mean JCT by application, s", header, tuple(rows))


def _farthest(report: Report, count: int = 8) -> Table:
    jobs = sorted(report.jobs, key=lambda j: -abs(j.jct - j.simulated))[:count]
    rows = [
        (
            j.name,
            f"{j.jct:.1f}",
            f"{j.simulated:.1f}",
            f"{j.jct - j.simulated:+.1f}",
            str(j.rescales),
            f"{j.simulated_rescales:.1f}",
        )
        for j in jobs
    ]
    header = ("job", "cluster", "simulator", "difference", "rescales", "simulated")
    return Table("Jobs that differ most, JCT in s", header, tuple(rows))


def _costs(report: Report) -> Table:
    if (c := report.cluster) is None:
        return Table("", (), ())
    rows = [
        ("a job's creation → its first target, if a GPU is free, s", f"{c.admission:.2f}"),
        ("a worker's end → a larger target of another job, s", f"{c.decision:.2f}"),
        ("target → generation of that size, s", f"{c.start:.2f}"),
        ("operator, % of a core", f"{100 * c.cpu['operator'] / c.seconds:.1f}"),
        ("operator, CPU s", f"{c.cpu['operator']:.1f}"),
        ("all processes, CPU s", f"{sum(c.cpu.values()):.1f}"),
        ("operator's requests to the API server", f"{c.requests:,}"),
    ]
    return Table("What a change of sizes takes (medians), and its cost", ("", "cluster"), tuple(rows))
