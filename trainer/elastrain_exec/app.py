"""The command ``elastrain exec``: on this machine as a job with workers; in a worker, the script itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from elastrain.api import names
from elastrain_cli.shell.manual import Program
from elastrain_exec.refusals import Refused

app = Program(add_completion=False)
EXIT_REFUSED = 2


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    script: Annotated[Path, typer.Argument(help="A training script for torchrun (.py).", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="[ARG...]")] = None,
    *,
    processes: Annotated[
        int, typer.Option(help="Processes that the script is written for: torchrun's --nproc-per-node.", min=1)
    ] = 1,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a field of the job, as of elastrain run.", metavar="F=V")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="Set a variable for the workers.", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Run a script written for torchrun as an elastic job. The file is not changed.

    The job has the batch, the order of samples and the world size of torchrun with as many processes, at any number of
    workers. On this machine the command starts the workers; as the command of a manifest it is a worker. Before
    the first step it prints what it tracks and carries. What it does not know it refuses, with the line. Exit codes:
    0: finished; 1: failed; 2: refused.

    Examples:

        elastrain exec --processes 4 train.py --epochs 10
        elastrain scale train 2                     from another terminal
    """
    if not script.is_file():
        sys.stderr.write(f"{script}: no such file: name a training script\n")
        raise typer.Exit(EXIT_REFUSED)
    if os.environ.get(names.ENV_AGENT_SOCKET):
        from elastrain_exec.enter import run

        run(script, arguments or [], processes)
        return
    from elastrain_exec.text import check

    try:
        check(str(script.resolve()))
    except (Refused, SyntaxError) as error:
        sys.stderr.write(f"elastrain exec: refused: {error}\n")
        raise typer.Exit(EXIT_REFUSED) from None
    raise typer.Exit(_job(script, arguments or [], processes, plain=plain, overrides=set_ or [], variables=env or []))


def _job(
    script: Path, arguments: list[str], processes: int, *, plain: bool, overrides: list[str], variables: list[str]
) -> int:
    """Run it on this machine, with as many workers as processes at first; returns the exit code."""
    from elastrain_cli.local.command import run_job
    from elastrain_cli.local.script import job_of

    job = job_of(script, arguments)
    container = job.spec.template["spec"]["containers"][0]
    container["command"] = [
        "python", "-m", "elastrain_exec.enter", "--processes", str(processes), str(script), *arguments,
    ]  # fmt: skip
    most = max(job.spec.max_replicas or 1, 2 * processes)
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"replicas": processes, "max_replicas": most})})
    return run_job(job, etcd=None, state_dir=None, plain=plain, overrides=overrides, variables=variables)
