"""The commands that need a cluster, and ``kubectl etj``, which is these alone.

Exit codes: 0 done; 1 the job that was waited for has failed; 2 asked wrongly, or refused; 3 the cluster cannot be
reached, does not know elastrain or does not allow it; 130 Ctrl-C; 141 the reader of the output has gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from elastrain.cli.shell import completion
from elastrain.cli.shell.answers import EXIT_REFUSED, Output
from elastrain.cli.shell.manual import Program
from elastrain.cli.shell.spelling import Commands, job_name
from elastrain.cli.shell.terminal import courteous

Job = Annotated[
    str,
    typer.Argument(help="Name of the job.", metavar="JOB", callback=job_name, autocompletion=completion.jobs),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Default: that of the kubeconfig's context.",
        metavar="NAME",
        autocompletion=completion.namespaces,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(help="Context of the kubeconfig. Default: its current one.", autocompletion=completion.contexts),
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
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of the whole cluster.")] = False,
    output: Format = Output.TABLE,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """List the jobs of a namespace.

    Examples: elastrain list -o wide, elastrain list -A, elastrain list -o json
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

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
    replicas: Annotated[int | None, typer.Option(help="For a script: workers wanted at first.", min=1)] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(help="For a script: of each worker, as nvidia.com/gpu=1 or memory=8Gi.", metavar="RESOURCE=N"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="For a script: the job's name. Default: the file's.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Send nothing; print what would be.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Start a job on the cluster, from a manifest or straight from a training script.

    A script travels in a ConfigMap, which is deleted with the job.

    Examples:

        elastrain submit job.yaml
        elastrain submit train.py --max 8 --image ghcr.io/me/train:1 --limit nvidia.com/gpu=1 -- --epochs 3
        elastrain submit train.py --max 8 --image ghcr.io/me/train:1 --dry-run > job.yaml
    """
    from elastrain.cli.cluster import submit
    from elastrain.cli.cluster.output import Place

    asked = submit.ScriptJob(name, image, (least, most, replicas), tuple(limit or ()), tuple(arguments or ()))
    raise typer.Exit(submit.submit(Place(namespace, context), file, asked, dry_run=dry_run))


@app.command()
def status(job: Job, output: Format = Output.TABLE, namespace: Namespace = None, context: Context = None) -> None:
    """Show how a job stands: its size, workers, last rescale and events.

    Examples: elastrain status digits, elastrain status digits -o yaml
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.status(Place(namespace, context), job, output))


@app.command()
def watch(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Follow a job until it ends. Exit code 0 if it has succeeded, 1 if it has failed. Ctrl-C leaves it running
    (130).

    Example: elastrain watch digits
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.watch(Place(namespace, context), job))


@app.command()
def scale(
    job: Job,
    replicas: Annotated[int, typer.Argument(help="Workers wanted, between minReplicas and maxReplicas.")],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Change how many workers a job wants. It goes on training meanwhile.

    Example: elastrain scale digits 4
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.scale(Place(namespace, context), job, replicas))


@app.command()
def suspend(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Drain all workers of a job at a step boundary, write a checkpoint where it has one, and keep the job.

    Example: elastrain suspend digits
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.suspend(Place(namespace, context), job))


@app.command()
def resume(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Start the workers of a suspended job again, from its newest checkpoint.

    Example: elastrain resume digits
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.resume(Place(namespace, context), job))


@app.command()
def delete(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Delete a job and its workers.

    Example: elastrain delete digits
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.delete(Place(namespace, context), job))


@app.command()
def logs(
    job: Job,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the workers end.")] = False,
    tail: Annotated[int, typer.Option(help="Lines of each worker.", min=0)] = 50,
    raw: Annotated[bool, typer.Option("--raw", help="The agents' own lines, too, as they are: JSON.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of all workers, those of a failed one first.

    Examples: elastrain logs digits, elastrain logs digits -f --tail 10
    """
    from elastrain.cli.cluster import logs
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(logs.logs(Place(namespace, context), job, follow=follow, tail=tail, raw=raw))


@app.command()
def explain(job: Job, namespace: Namespace = None, context: Context = None) -> None:
    """Say why a job has the size that it has, and what would change it.

    Example: elastrain explain digits
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.explain(Place(namespace, context), job))


@app.command()
def doctor(namespace: Namespace = None, context: Context = None) -> None:
    """Check cluster, operator, etcd, accelerators and permissions; each finding comes with its fix. Exit code 3 if
    something is broken.

    Example: elastrain doctor
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    raise typer.Exit(commands.doctor(Place(namespace, context)))


@app.command()
def dashboard(
    *,
    namespaces: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="May be repeated. Default: that of the kubeconfig's context."),
    ] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of the whole cluster.")] = False,
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 8090,
    address: Annotated[str, typer.Option(help="Where to listen. Default: for this machine only.")] = "127.0.0.1",
    key: Annotated[bool, typer.Option("--key/--no-key", help="Whether the address has a key in it.")] = True,
    context: Context = None,
) -> None:
    """Serve a page about the jobs, live, until Ctrl-C: state, accelerators, every rescale, losses. It only reads, by
    your own rights; nothing has to be installed on the cluster.

    Examples: elastrain dashboard, elastrain dashboard -A, elastrain dashboard -n research --port 0
    """
    from elastrain.cli.cluster import commands
    from elastrain.cli.cluster.output import Place

    place = Place(None, context)
    shown = () if all_namespaces else tuple(namespaces or ())
    raise typer.Exit(
        commands.dashboard(place, shown, all_namespaces=all_namespaces, address=address, port=port, keyed=key)
    )


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Say which part of elastrain is not installed, if a command needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in {"kubernetes", "aiohttp"}:
            raise
        typer.echo(f"this needs the package {error.name}: pip install 'elastrain[client]'", err=True)
        raise SystemExit(EXIT_REFUSED) from None


def start(program: typer.Typer, name: str) -> None:
    """Run ``program``, or answer the shell's question what may stand for a word of its command line."""
    if completion.variable(name) in os.environ:
        completion.prepare()
    with courteous(), explained():
        program(prog_name=name)


def main() -> None:
    """Entry point of ``kubectl-etj``, which kubectl runs for ``kubectl etj``."""
    start(app, "kubectl etj")
