"""The command ``elastrain audit``: prints the verdict on the audit logs of a run."""

from __future__ import annotations

import json as texts
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from elastrain_cli.shell.manual import Program

app = Program(add_completion=False)


@app.command()
def audit(
    directory: Annotated[Path, typer.Argument(help="A run's audit logs: STATE_DIR/audit/RUN.", metavar="DIR")],
    *,
    json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Check the audit logs of a run: did training use every sample of every epoch exactly once? Exit code 1 if not.

    Example: elastrain audit .elastrain/digits/audit/3f2a90c1d7be
    """
    try:
        ok = audit_directory(directory, as_json=json)
    except (OSError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(0 if ok else 1)


def audit_directory(directory: Path, *, as_json: bool) -> bool:
    """``elastrain audit``: prints the verdict; True if no sample was lost or repeated. Raises ``ValueError``."""
    from elastrain_audit.judge import verify  # numpy is not at hand without the extra

    verdict = verify(directory)
    console = Console()
    if as_json:
        console.print_json(texts.dumps({**asdict(verdict), "ok": verdict.ok}))
        return verdict.ok
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in ("steps", "epochs", "samples", "lost", "repeated", "redone"):
        table.add_row(name, str(getattr(verdict, name)))
    for worker, pids in verdict.pids.items():
        table.add_row(f"pids of {worker}", ", ".join(map(str, pids)))
    console.print(table)
    for problem in verdict.problems:
        console.print(problem, style="red", highlight=False)
    if verdict.incomplete is not None:
        text = (
            f"incomplete from step {verdict.incomplete} on: a log could not be written; the figures are of those before"
        )
        console.print(text, style="bold red")
    elif verdict.ok:
        console.print("no sample lost or repeated", style="bold green")
    else:
        console.print("samples were lost or repeated, or the logs contradict the order of the data", style="bold red")
    return verdict.ok
