#!/usr/bin/env python3
"""Operator, etcd and API server are taken away for minutes, one by one and all at once, while jobs train.

``--help`` has the options, docs/outages.md what is measured.
"""

from __future__ import annotations

import json as jsonlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from elastrain.data.audit import verify
from operator_harness.cluster import ControlPlane, Failed, missing
from operator_harness.systems import Elastrain
from outages_harness.analysis import Result, audit_problems, judge, markdown
from outages_harness.site import CASES, MOST, START_SIZE, Site

NODES = 3


def refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


def run(cases: list[str], seconds: float, jobs: int, place: Path) -> dict[str, object]:
    """All outages, one after the other, on one control plane. Returns the figures; raises what a start raises."""
    results: list[Result] = []
    with ControlPlane(place, NODES) as plane:
        system = Elastrain(plane)
        try:
            system.start()
            site = Site(plane, system, jobs)
            site.start()
            for case in cases:
                typer.echo(f"{time.strftime('%H:%M:%S')} {case}: away for {seconds:.0f} s", err=True)
                results.append(judge(case, seconds, site.outage(case, seconds)))
                typer.echo(str(results[-1]), err=True)
            site.close()
            audits = {job: asdict(verify(site.audit_directory(job))) for job in site.jobs}
        finally:
            system.close()
    problems = [f"{r.case}: {p}" for r in results for p in r.problems]
    problems += [p for job, audit in audits.items() for p in audit_problems(job, audit, site.pods[job])]
    typer.echo(markdown(results, sum(a["samples"] for a in audits.values())))
    return {"results": [asdict(r) for r in results], "audits": audits, "problems": problems}


def main(
    *,
    seconds: Annotated[float, typer.Option(min=10, help="How long each outage lasts.")] = 600.0,
    outages: Annotated[str, typer.Option(help=f"Which, in this order: {', '.join(CASES)}.")] = ",".join(CASES),
    jobs: Annotated[int, typer.Option(min=1, help="Jobs of two workers that train.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Where the figures are written too.")] = None,
    logs: Annotated[Path | None, typer.Option(help="Where logs are left. Default: bench/results/TIME.")] = None,
) -> None:
    """Take parties away from a control plane while jobs train on it, and judge what it did to them.

    Exit codes: 0 every promise held, 1 one was broken (the last lines say which), 2 cannot be started as asked.
    """
    cases = [word.strip() for word in outages.split(",") if word.strip()]
    for case in cases:
        if case not in CASES:
            refuse(f"--outages: {case!r} must be one of {', '.join(CASES)}")
    if not 0 < len(cases) <= MOST - START_SIZE:
        refuse(f"--outages: from 1 to {MOST - START_SIZE} of them, since each adds a worker to every job")
    if (lacks := missing()) is not None:
        refuse(lacks)
    place = logs or Path(__file__).parent / "results" / time.strftime("outages-%Y%m%d-%H%M%S")
    try:
        figures = run(cases, seconds, jobs, place)
    except Failed as error:
        typer.echo(f"{error}; logs: {place}", err=True)
        raise typer.Exit(1) from None
    if json is not None:
        json.write_text(jsonlib.dumps(figures, indent=1) + "\n")
    for problem in figures["problems"]:  # type: ignore[attr-defined]
        typer.echo(f"broken: {problem}")
    raise typer.Exit(1 if figures["problems"] else 0)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(main)
    app()
