#!/usr/bin/env python3
"""What one GPU shows of elastrain, in nine minutes. ``--help`` explains its use."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from bench_gpu.checks import CHECKS, Site
from bench_gpu.report import Line, Report
from bench_harness import tables
from bench_harness.played_ranks import Fresh

SECONDS = 520.0
"""After it no further check begins."""

HELP = """Check and measure on one GPU what no CPU can show; without one, run the same with gloo in NCCL's place.

Ranks that share the card need NCCL >= 2.30, preloaded if torch brings an older one (LD_PRELOAD=.../libnccl.so.2),
or, with an older one, a NCCL_HOSTID each, which NVIDIA does not support. Nothing else is needed than torch, pydantic,
structlog, typer, rich, psutil, numpy and xxhash, and an etcd for the example.

Exit codes: 0 nothing failed, 1 a check failed, 2 the checks cannot be started as asked."""
Json = Annotated[Path | None, typer.Option(help="File for the report. Default: bench/results/gpu-TIME.json.")]
Only = Annotated[str, typer.Option(help=f"Checks to run, separated by commas: {', '.join(CHECKS)}.")]


def main(json: Json = None, only: Only = "") -> None:
    names = [name for name in only.split(",") if name] or list(CHECKS)
    if unknown := [name for name in names if name not in CHECKS]:
        typer.echo(f"--only: {unknown[0]!r} must be one of {', '.join(CHECKS)}", err=True)
        raise typer.Exit(2)
    out = json or Path(__file__).parent / time.strftime("results/gpu-%Y%m%d-%H%M%S.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    began, lines = time.monotonic(), list[Line]()
    with tempfile.TemporaryDirectory(prefix="elastrain-gpu-") as folder:
        site = Site(Path(folder), Fresh(), dry=not torch.cuda.is_available())
        for name in names:
            if time.monotonic() - began > SECONDS:
                lines.append(Line(name=name, outcome="fail", seconds=0.0, why=f"not begun within {SECONDS:g} s"))
                continue
            for line in CHECKS[name](site):
                typer.echo(f"{time.monotonic() - began:6.1f} s  {line.name}: {line.outcome} {line.why}", err=True)
                lines.append(line)
                out.write_text(report(lines, dry=site.dry).model_dump_json(indent=1) + "\n")
    result = report(lines, dry=site.dry)
    tables.show(result.tables, [*result.notes, f"Report: {out}."], Console())
    raise typer.Exit(1 if result.failed else 0)


def report(lines: list[Line], *, dry: bool) -> Report:
    """The lines so far, with where they come from."""
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else "none"
    return Report(
        dry=dry,
        command=shlex.join([f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        began=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        device="CPU" if dry else torch.cuda.get_device_name(0),
        torch=torch.__version__,
        nccl=f"{nccl}{' (preloaded)' if 'nccl' in os.environ.get('LD_PRELOAD', '') else ''}",
        lines=lines,
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=HELP)(main)
    app()
