#!/usr/bin/env python3
"""The cost of the operator with thousands of jobs. ``--help`` explains its use.

(Not ``operator.py``: beside a running script, that name would hide the standard library's module.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from bench_harness import program
from bench_harness.machine import Machine, machine
from bench_operator.cluster import BUILD, missing, version
from bench_operator.net import Refused
from bench_operator.report import notes, tables
from bench_operator.results import Report, Run
from bench_operator.scenario import Settings, measure
from bench_operator.systems import MAX_WORKERS, SYSTEMS

HELP = """Measure what it costs the operator, and the API server, to run thousands of jobs.

Each run starts a control plane of its own on loopback (etcd, API server, controllers, scheduler; kwok plays nodes and
pods), creates all jobs with one `kubectl create`, waits until all pods run, and deletes them with one `kubectl delete`.
elastrain's jobs are also scaled by one worker each, left alone for a minute, and their operator restarts. Systems take
turns, size by size. 1,000 jobs take about two minutes for each system, 3,000 about eight. Use a machine that does
nothing else; other work hardly changes processor seconds and counts, but it changes seconds.

\b
Examples:
  bench/operator_scale.py                                       all sizes: half an hour
  bench/operator_scale.py --jobs 100 --idle 10                  a quick look
  bench/operator_scale.py --jobs 1000 --runs 3 --idle 0         creation and deletion only, three times
  bench/operator_scale.py --jobs 300 --systems elastrain --profile    where the operator's time goes

\b
Systems:
{systems}

\b
Figures:
  create → all Running   from the start of kubectl until the last pod runs
  CPU, RSS               of the system's own process: the operator, or the controller manager
  its API requests       requests of that process to the API server, by its audit log
  spec change → pod      from just before the request with the change until the API server had created the pod

Needs `{build}` (once), and an etcd.""".format(
    systems="\n".join(f"  {name:12}{system.about}" for name, system in SYSTEMS.items()), build=BUILD
)


def choose_sizes(given: str, settings: Settings) -> list[int]:
    """The numbers of jobs of ``given``; leaves with a message if the nodes have no room for them."""
    most = settings.nodes * 32 // (settings.workers + 2)
    sizes = program.numbers("--jobs", given)
    if not sizes or max(sizes) > most:
        program.refuse(f"--jobs {given!r}: each must be from 1 to {most:,}: {settings.nodes} nodes have 32 GPUs each")
    return sizes


def run_all(
    turns: Sequence[tuple[int, int, str]], settings: Settings, where: Machine, output: program.Output
) -> Report:
    """Every turn (size, number of the run, system). The figures are kept after each. Raises ``Failed``."""
    done: list[Run] = []
    for size, number, system in turns:
        output.begins(f"{system}, {size} jobs, run {number}")
        try:
            run = measure(system, size, settings, output.logs / f"{system}-{size}-{number}", output.says)
        except Refused as error:
            raise program.Failed(str(error)) from None
        done.append(run)
        report = Report(
            machine=where,
            kubernetes=version("kube-apiserver"),
            kwok=version("kwok"),
            nodes=settings.nodes,
            runs=tuple(done),
        )
        output.keep(report)
    return report


def main(
    *,
    jobs: Annotated[str, typer.Option(help="Sizes, separated by commas.")] = "100,1000,3000",
    workers: Annotated[int, typer.Option(min=1, max=MAX_WORKERS - 2, help="Pods of a job, one GPU each.")] = 4,
    systems: Annotated[str, typer.Option(help="Which, in this order.")] = ",".join(SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each size and system.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that kwok plays, 32 GPUs each.")] = 600,
    idle: Annotated[float, typer.Option(min=0, help="Seconds left alone; 0: no idling, no restart.")] = 60,
    limit: Annotated[float, typer.Option(min=10, help="Seconds that one phase may take.")] = 1200,
    secret: Annotated[
        bool,
        typer.Option("--secret", help="Workers use a Secret, so the API server compares them with their jobs."),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Run the operator under cProfile: LOGS/*/operator-1.prof; no real figures."),
    ] = False,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    settings = Settings(nodes, workers, idle, limit, secret, profile)
    names, sizes = program.choose("--systems", systems, list(SYSTEMS)), choose_sizes(jobs, settings)
    if (lacks := missing()) is not None:
        program.refuse(lacks)
    where, output = machine(), program.Output("operator", json, logs, markdown)
    turns = [(size, number, name) for size in sizes for number in range(1, runs + 1) for name in names]
    with output.measuring():
        report = run_all(turns, settings, where, output)
    output.show(tables(report), notes(report))


if __name__ == "__main__":
    program.run(main, HELP)
