#!/usr/bin/env python3
"""Operator, etcd and API server are taken away for minutes, one after the other and all at once, while jobs train.

Needs the cluster of the e2e tests (``e2e/cluster/cluster.sh up && e2e/cluster/images.sh``). ``--help`` has the options,
docs/outages.md what is measured.
"""

from __future__ import annotations

import json as jsonlib
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))  # the cluster's commands are the tests' own

from harness import release
from harness.commands import CommandFailed, eventually, kubectl
from outages_harness.analysis import Result, Seen, audit_problems, judge, markdown
from outages_harness.load import MOST_JOBS, SIZE, WANTED, Training, Watcher, end, training
from outages_harness.parties import CASES, Outage

CONVERGE_SECONDS = 300.0


Pods = dict[str, dict[str, set[str]]]
"""UIDs of all pods that each worker's name had, by job."""


def measure(case: str, seconds: float, jobs: list[Training], pods: Pods) -> Result:
    """One outage, and the convergence after it. Adds the pods that were there before and after to ``pods``."""
    for job in jobs:
        job.wait_size(SIZE, CONVERGE_SECONDS)
    before = {job.name: job.pods_by_name() for job in jobs}
    outage, watcher = Outage(CASES[case]), Watcher(jobs)

    def ask() -> None:
        for job in jobs:
            job.scale(WANTED)

    try:
        outage.begin(ask)
        watcher.start()
        time.sleep(seconds)
    finally:
        if watcher.is_alive():
            watcher.end()
        outage.end()
    back = time.monotonic()
    converged = {job.name: _converged(job, back) for job in jobs}
    seen = [
        Seen(job.name, before[job.name], job.pods_by_name(), watcher.steps[job.name], converged[job.name])
        for job in jobs
    ]
    for look in seen:
        for name, worker in (*look.before.items(), *look.after.items()):
            pods[look.job].setdefault(name, set()).add(worker.uid)
    for job in jobs:
        job.scale(SIZE)
    return judge(case, seconds, seen)


def _converged(job: Training, back: float) -> float | None:
    """Seconds since ``back`` until the job has the size asked for and commits steps; None: not in time."""
    try:
        job.wait_size(WANTED, CONVERGE_SECONDS)
        job.wait_condition("CoordinationAvailable")
        at = job.committed()
        eventually(f"{job.name} commits steps", lambda: job.committed() > at + 1, 60)
    except AssertionError as error:
        typer.echo(str(error), err=True)
        return None
    return time.monotonic() - back


def main(
    *,
    seconds: Annotated[float, typer.Option(min=10, help="How long each outage lasts.")] = 600.0,
    outages: Annotated[str, typer.Option(help=f"Which, in this order: {', '.join(CASES)}.")] = ",".join(CASES),
    jobs: Annotated[int, typer.Option(min=1, max=MOST_JOBS, help="Jobs of two workers that train.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Where the figures are written too.")] = None,
) -> None:
    """Take parties away from the cluster while jobs train, and judge what it did to them.

    Exit codes: 0 every promise held, 1 one was broken (the last lines say which), 2 cannot be started as asked.
    """
    cases = [word.strip() for word in outages.split(",") if word.strip()]
    for case in cases:
        if case not in CASES:
            typer.echo(f"--outages: {case!r} must be one of {', '.join(CASES)}", err=True)
            raise typer.Exit(2)
    try:
        kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
    except CommandFailed as failure:
        typer.echo(
            f"there is no cluster; e2e/cluster/cluster.sh up && e2e/cluster/images.sh makes it\n{failure}", err=True
        )
        raise typer.Exit(2) from None
    release.install()
    results: list[Result] = []
    with training(jobs) as trained:
        pods: Pods = {job.name: {} for job in trained}
        for case in cases:
            typer.echo(f"{time.strftime('%H:%M:%S')} {case}: away for {seconds:.0f} s", err=True)
            results.append(measure(case, seconds, trained, pods))
            typer.echo(str(results[-1]), err=True)
        end(trained)
        audits = {job.name: job.audit() for job in trained}
    problems = [f"{r.case}: {p}" for r in results for p in r.problems]
    problems += [p for name, a in audits.items() for p in audit_problems(name, a, pods[name])]
    typer.echo(markdown(results, sum(a["samples"] for a in audits.values())))
    if json is not None:
        figures = {"results": [asdict(r) for r in results], "audits": audits, "problems": problems}
        json.write_text(jsonlib.dumps(figures, indent=1) + "\n")
    for problem in problems:
        typer.echo(f"broken: {problem}")
    raise typer.Exit(1 if problems else 0)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(main)
    app()
