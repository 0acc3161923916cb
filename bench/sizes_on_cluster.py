#!/usr/bin/env python3
"""Sizes by the real operator on a control plane, beside the simulator's. ``--help`` explains its use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_operator.cluster import BUILD, missing
from bench_sizes import cluster as on_cluster
from bench_sizes import report, task
from bench_sizes.report import Report
from bench_sizes.simulated import Cluster, Delays
from elastrain_operator.allocation.snapshot import Sharing
from elastrain_operator.config import CapacityConfig

KIT = Path(__file__).parent.parent.parent / "shared" / "scheduling"
SHARINGS = [s.value for s in Sharing]

HELP = f"""Let the real operator size the jobs of a published workload, and compare with the simulator.

One run starts a control plane of its own on loopback (etcd, API server, controllers, scheduler; kwok plays nodes and
pods) and the operator as a process. Jobs are created when they arrive. One process plays all their agents: they form
the generations that the operator's targets ask for, report the time of their steps, pause for each rescale, and end
when their work is done. Steps take what was measured for Pollux (OSDI 2021), divided by --faster, as do arrivals;
the operator's own times (reviews, reports, hysteresis) are not shortened.

The simulator plays the same jobs under a virtual clock, with the same `allocate` and settings: once with the delays
that the run has shown (creation → target, target → generation, as medians), and once without delays. Small changes of
times change sizes, so it does so {report.REPLAYS} times, with arrivals moved by up to {report.SHIFT_SECONDS:g} s.
The kit with workloads and step times is not part of this repository: --kit names its folder. docs/sharing.md has
the results, and what they do not show.

\b
Examples:
  bench/sizes_on_cluster.py                                 60 jobs on 16 GPUs: about 20 minutes
  bench/sizes_on_cluster.py --only-simulated                the simulator alone: a minute
  bench/sizes_on_cluster.py --jobs 12 --faster 120          a quick look: three minutes
  bench/sizes_on_cluster.py --sharing equal                 another policy

\b
Figures:
  JCT                a job's completion time: end - arrival
  simulator          with the run's delays; without a run: with --admission, --decision and --start
  difference         of a job's JCT on the cluster and its mean in the simulator

Needs `{BUILD}` (once), and an etcd."""


def main(
    *,
    folder: Annotated[Path, typer.Option("--kit", help="Folder of workloads and step times.")] = KIT,
    load: Annotated[str, typer.Option(help="1.0, 2.0 or realistic.")] = "1.0",
    workload: Annotated[str, typer.Option(help="One of the eight.")] = "3",
    jobs: Annotated[int, typer.Option(min=2, max=160, help="The first so many of the workload.")] = 60,
    nodes: Annotated[int, typer.Option(min=1, max=16)] = 4,
    gpus: Annotated[int, typer.Option(min=1, max=4, help="Of each node; the kit has times for up to 4.")] = 4,
    faster: Annotated[float, typer.Option(min=1, help="Steps and arrivals are so many times as fast.")] = 40,
    pause: Annotated[float, typer.Option(min=0, help="Seconds of a rescale and of a start; not shortened.")] = 1.0,
    startup: Annotated[float, typer.Option(min=0, help="Seconds from a running pod to ready ranks.")] = 0.5,
    sharing: Annotated[str, typer.Option(help="efficient, balanced or equal.")] = "efficient",
    limit: Annotated[float, typer.Option(min=10, help="Seconds that the run may take.")] = 2400,
    only_simulated: Annotated[bool, typer.Option("--only-simulated", help="No cluster.")] = False,
    admission: Annotated[float, typer.Option(min=0, help="For --only-simulated: creation → target.")] = 1.0,
    decision: Annotated[float, typer.Option(min=0, help="For --only-simulated: other event → target.")] = 0.5,
    start: Annotated[float, typer.Option(min=0, help="For --only-simulated: target → generation.")] = 1.0,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    [policy_name] = program.choose("--sharing", sharing, SHARINGS) or SHARINGS[:1]
    program.choose("--load", load, ("1.0", "2.0", "realistic"))
    program.choose("--workload", workload, task.WORKLOADS)
    if lacks := task.missing(folder):
        program.refuse(f"--kit {str(folder)!r}: {lacks} is missing: name the simulator's folder")
    if not only_simulated and (lacks := missing() or ""):
        program.refuse(lacks)
    room = Cluster(nodes, gpus)
    tasks = task.of_kit(folder, load, workload, jobs, nodes * gpus, faster)
    policy = CapacityConfig(sharing=Sharing(policy_name)).policy()
    title = (
        f"{len(tasks)} jobs of workload {workload}, load {load}, {faster:g} times as fast, on {nodes} × {gpus} GPUs, "
        f"{policy_name}, rescale {pause:g} s"
    )
    where, output = machine(), program.Output("sizes", json, logs, markdown)
    made = Report(machine=where, title=title)
    with output.measuring():
        delays, ran = Delays(admission, decision, start), None
        if not only_simulated:
            output.begins(title)
            ran = on_cluster.run(tasks, room, policy_name, pause, startup, limit, output.logs / "cluster", output.says)
            delays = ran.delays
            shown = report.measured(tasks, ran.jobs, delays, ran.seconds, ran.cpu, ran.requests)
            made = made.model_copy(update={"cluster": shown})
            output.keep(made)
        output.begins(f"{2 * report.REPLAYS} simulations")
        delayed = report.replays(tasks, room, policy, pause, delays)
        undelayed = report.replays(tasks, room, policy, pause, Delays())
        words = f"simulator, delays {delays.admission:.2f} / {delays.decision:.2f} / {delays.start:.2f} s"
        simulations = (
            report.simulation(words, tasks, delayed),
            report.simulation("simulator without delays", tasks, undelayed),
        )
        by_job = report.by_job(tasks, ran.jobs, delayed, undelayed) if ran else ()
        made = made.model_copy(update={"simulations": simulations, "jobs": by_job})
        output.keep(made)
    output.show(report.tables(made), [*report.notes(made), f"load average at the end: {os.getloadavg()[0]:.1f}"])


if __name__ == "__main__":
    program.run(main, HELP)
