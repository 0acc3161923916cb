"""The commands that need a cluster. ``kubectl etj`` consists of these alone.

Exit codes: 0: done; 1: the awaited job failed; 2: invalid or refused request; 3: the cluster is unreachable, lacks
elastrain or denies access; 130: Ctrl-C; 141: the reader of the output closed the pipe (SIGPIPE).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from elastrain.guests import way_out
from elastrain_cli.shell import completion, guests
from elastrain_cli.shell.answers import EXIT_REFUSED, Output
from elastrain_cli.shell.manual import Program
from elastrain_cli.shell.spelling import Commands, job_name
from elastrain_cli.shell.terminal import courteous

Job = Annotated[
    str,
    typer.Argument(help="Name of the job.", metavar="JOB", callback=job_name, autocompletion=completion.jobs),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Default: the namespace of the kubeconfig's context.",
        metavar="NAME",
        autocompletion=completion.namespaces,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig. Default: the current context.", autocompletion=completion.contexts),
]
Format = Annotated[Output, typer.Option("--output", "-o", help="table, wide, json, yaml or name.")]

app = Program(
    name="kubectl etj",
    cls=Commands,
    add_completion=False,  # kubectl asks kubectl_complete-etj
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Elastic training jobs on this cluster: the same commands as [bold]elastrain[/bold].

        kubectl etj list
        kubectl etj submit job.yaml
        kubectl etj watch digits
        kubectl etj explain digits
    """,
)


@app.command("list")
def list_(
    *,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="List the jobs of all namespaces.")
    ] = False,
    output: Format = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """List the jobs of a namespace.

    Examples: elastrain list -o wide, elastrain list -A, elastrain list -o json
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.list_jobs(Place(namespace, context), output, all_namespaces=all_namespaces))


@app.command(context_settings={"ignore_unknown_options": True})
def submit(
    file: Annotated[Path, typer.Argument(help="A manifest (.yaml), or a training script (.py).", metavar="FILE")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For a script: its arguments, after --.", metavar="[-- ARG...]")
    ] = None,
    *,
    image: Annotated[str | None, typer.Option(help="For a script: an image with torch and elastrain.")] = None,
    least: Annotated[int, typer.Option("--min", help="For a script: minReplicas.", min=1)] = 1,
    most: Annotated[int | None, typer.Option("--max", help="For a script: maxReplicas.", min=1)] = None,
    replicas: Annotated[int | None, typer.Option(help="For a script: initial number of workers.", min=1)] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="For a script: a worker's limit, such as nvidia.com/gpu=1 or memory=8Gi.", metavar="RESOURCE=N"
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="For a script: the job's name. Default: the file's name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; print the manifest.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Start a job on the cluster, from a manifest or from a training script.

    A ConfigMap carries the script; it is deleted with the job.

    Examples:

        elastrain submit job.yaml
        elastrain submit train.py --image registry.example/train:1 -- --epochs 3
        elastrain submit train.py --image registry.example/train:1 --max 8
        elastrain submit train.py --image registry.example/train:1 --dry-run
    """
    from elastrain_cli.cluster import submit
    from elastrain_cli.cluster.output import Place

    asked = submit.ScriptJob(name, image, (least, most, replicas), tuple(limit or ()), tuple(arguments or ()))
    raise typer.Exit(submit.submit(Place(namespace, context), file, asked, dry_run=dry_run))


@app.command()
def status(job: Job, output: Format = Output.TABLE, namespace: Namespace = None, context: Context = None) -> None:
    """Show the state of a job: its size, workers, last rescale and events.

    Examples: elastrain status digits, elastrain status digits -o yaml
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.status(Place(namespace, context), job, output))


@app.command()
def watch(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Follow a job until it ends. Exit code 0 if it succeeds, 1 if it fails. Ctrl-C exits with 130; the job continues.

    Example: elastrain watch digits
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.watch(Place(namespace, context), job))


@app.command()
def scale(
    job: Job,
    replicas: Annotated[int, typer.Argument(help="Number of workers, between minReplicas and maxReplicas.")],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Change the number of workers of a job. Training continues meanwhile.

    Example: elastrain scale digits 4
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.scale(Place(namespace, context), job, replicas))


@app.command()
def suspend(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Drain all workers of a job at a step boundary and keep the job. A job with spec.checkpoint writes a checkpoint
    first.

    Example: elastrain suspend digits
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.suspend(Place(namespace, context), job))


@app.command()
def resume(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Start the workers of a suspended job again, from its newest checkpoint.

    Example: elastrain resume digits
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.resume(Place(namespace, context), job))


@app.command()
def delete(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Delete a job and its workers.

    Example: elastrain delete digits
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.delete(Place(namespace, context), job))


@app.command()
def logs(
    job: Job,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the logs until the workers end.")] = False,
    tail: Annotated[int, typer.Option(help="Number of last lines of each worker.", min=0)] = 50,
    raw: Annotated[bool, typer.Option("--raw", help="Print the agents' log lines unchanged, as JSON.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of all workers, failed workers first.

    Examples: elastrain logs digits, elastrain logs digits -f --tail 10
    """
    from elastrain_cli.cluster import logs
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(logs.logs(Place(namespace, context), job, follow=follow, tail=tail, raw=raw))


@app.command()
def explain(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Explain the current size of a job and how to change it.

    Example: elastrain explain digits
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.explain(Place(namespace, context), job))


@app.command()
def doctor(namespace: Namespace = None, context: Context = None) -> None:
    """Check cluster, operator, etcd, accelerators, permissions and admission; each finding names its remedy. A dry run
    shows whether workers are admitted. Exit code 3 if a check finds a fault.

    Example: elastrain doctor
    """
    from elastrain_cli.cluster import commands
    from elastrain_cli.cluster.output import Place

    raise typer.Exit(commands.doctor(Place(namespace, context)))


guests.add(
    app,
    "dashboard",
    "elastrain_dashboard.app",
    "Serve a live page about the jobs until Ctrl-C: state, accelerators, every rescale, losses.",
)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Name the missing extra of elastrain if a command cannot import a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (command := way_out(error.name)) is None:
            raise
        typer.echo(f"this needs the package {error.name}: {command}", err=True)
        raise SystemExit(EXIT_REFUSED) from None


def start(program: typer.Typer, name: str) -> None:
    """Run ``program``, or answer a completion request of the shell."""
    if completion.variable(name) in os.environ:
        completion.prepare()
    with courteous(), explained():
        program(prog_name=name)


def main() -> None:
    """Entry point of ``kubectl-etj``, which kubectl runs for ``kubectl etj``."""
    start(app, "kubectl etj")


def complete() -> None:
    """Entry point of ``kubectl_complete-etj``, which kubectl runs to complete ``kubectl etj ...``."""
    completion.kubectl(app)
