"""The command line. Each command imports its modules when it runs, so that an agent starts fast and without torch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from elastrain import __version__
from elastrain_cli.cluster import app as cluster
from elastrain_cli.shell import guests
from elastrain_cli.shell.answers import EXIT_NO_CLUSTER, EXIT_REFUSED, Output
from elastrain_cli.shell.completion import Shell, script
from elastrain_cli.shell.completion import jobs as jobs_of_cluster
from elastrain_cli.shell.manual import Program
from elastrain_cli.shell.spelling import Commands, job_name

PANELS = HERE, BOTH, CLUSTER, PROGRAM, OPERATOR = (
    "On this machine", "On this machine or a cluster", "On a cluster", "This program", "Called by the operator",
)  # fmt: skip
"""Panels of ``--help``, in this order."""

app = Program(
    name="elastrain",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,  # the options would be the longest lines of the help; the command replaces them
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="""Elastic PyTorch training: jobs that grow, shrink and survive losses without a restart.

    [bold]On this machine[/bold], with the manifest that the cluster takes:

        elastrain exec train.py        a script for torchrun, elastic as it is
        elastrain convert train.py     the diff from DDP to an elastic script
        elastrain verify train.py      is the script safe? two minutes
        elastrain run job.yaml         train; Ctrl-C drains
        elastrain scale digits 4       from another terminal: go on with four
        elastrain status digits        the state of the job
        elastrain audit PATH/*         was every sample used exactly once?

    [bold]On a cluster[/bold] (the same as kubectl etj ...):

        elastrain submit job.yaml      or a script: train.py --max 8 --image ...
        elastrain list                 all jobs of the namespace
        elastrain watch digits         follow the job until it ends
        elastrain explain digits       why it has this size, and how to change it
        elastrain doctor               check the installation
        elastrain dashboard            a live page about the jobs, in the browser

    A name selects a job of this machine first; -n or --context select the cluster.

    Exit codes: 0: done; 1: the job failed; 2: invalid or refused request; 3: no cluster, or access denied; 130: Ctrl-C;
    141: the reader of the output closed the pipe (SIGPIPE).
    """,
)


def _job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion candidates: job names of this machine and of the cluster."""
    from elastrain_cli.local.control import control_directory, running_jobs

    here = [name for name in running_jobs(control_directory()) if name.startswith(incomplete)]
    return [*here, *(name for name in jobs_of_cluster(ctx, incomplete) if name not in here)]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"elastrain {__version__}")
        raise typer.Exit


Job = Annotated[
    str, typer.Argument(help="Name of the job.", metavar="JOB", callback=job_name, autocompletion=_job_names)
]
Manifest = Annotated[Path, typer.Argument(help="The job's manifest: YAML of kind ElasticTrainingJob.", metavar="FILE")]


@app.command(context_settings={"ignore_unknown_options": True}, rich_help_panel=OPERATOR)
def agent(
    command: Annotated[list[str], typer.Argument(help="The training command of one rank.", metavar="CMD...")],
) -> None:
    """Run the agent of a worker: it registers the worker, runs CMD as its ranks and forwards generations to them.

    The operator and local mode call this command. The environment holds the settings.

    Example: elastrain agent -- python train.py --epochs 3
    """
    from elastrain.agent.process.start import run_agent

    raise typer.Exit(run_agent(command))


@app.command(rich_help_panel=OPERATOR)
def preflight(
    *,
    accelerators: Annotated[int, typer.Option(help="Required number of accelerators. 0: train on the CPU.", min=0)] = 0,
    min_bandwidth: Annotated[
        float | None, typer.Option(help="Least memory bandwidth of each, in GB/s. Default: no limit.", min=0)
    ] = None,
    timeout: Annotated[float, typer.Option(help="Limit of the node's own checks, in seconds.", min=1)] = 300.0,
    pairs_wait: Annotated[
        float | None,
        typer.Option(
            help="Then measure all-reduces with other nodes; wait this many seconds for their workers. Needs the "
            "ELASTRAIN_ variables of a worker. Default: no.",
            min=1,
        ),
    ] = None,
) -> None:
    """Check that this node can train: accelerators, arithmetic, memory bandwidth, /dev/shm, network to other nodes.

    The operator runs this check before a worker whose job sets `spec.preflight`.

    Exit codes: 0 all checks passed, 10 accelerators missing, 11 wrong results, 12 slow memory, 13 /dev/shm, 14 time
    limit exceeded, 15 failed or slow all-reduces with two other nodes.

    Example: elastrain preflight --accelerators 8 --min-bandwidth 1500
    """
    from elastrain.api import names
    from elastrain_cli.preflight import run as check

    log = Path(names.DEFAULT_TERMINATION_LOG)
    raise typer.Exit(check(accelerators, min_bandwidth, timeout, log if log.exists() else None, pairs_wait=pairs_wait))


@app.command(rich_help_panel=HERE)
def run(
    manifest: Annotated[
        Path,
        typer.Argument(
            help="A manifest (.yaml), or a script (.py), which starts with 2 of 1 to 8 workers.", metavar="FILE"
        ),
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For a script: its arguments, after --.", metavar="[-- ARG...]")
    ] = None,
    *,
    etcd: Annotated[Path | None, typer.Option(help="The etcd binary. Default: $ELASTRAIN_ETCD, PATH.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory of logs and volumes. Default: .elastrain/JOB beside the manifest.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of a live display.")] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Serve a live page about the job until it ends, on this machine only.")
    ] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a field: replicas=2, checkpoint.everySteps=50, name=other.", metavar="F=V"),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="Set a variable for the workers.", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Train a job on this machine: etcd, agents and ranks run as processes.

    Ctrl-C drains: all ranks stop at the same step, a job with spec.checkpoint writes a checkpoint, and the command
    exits with 130. The next run resumes from the checkpoint. A second Ctrl-C kills the job. Exit codes: 0: finished; 1:
    failed; 2: the job cannot be started as requested.

    Examples:

        elastrain run examples/01-digits/job.yaml
        elastrain run job.yaml --dashboard --set checkpoint.everySteps=100
        elastrain run train.py --set replicas=4 -- --epochs 3
    """
    from elastrain_cli.local.command import run_job

    raise typer.Exit(
        run_job(
            manifest,
            etcd=etcd,
            state_dir=state_dir,
            plain=plain,
            dashboard=dashboard,
            overrides=set_ or [],
            variables=env or [],
            arguments=arguments or [],
        )
    )


for _name, _module, _summary in (
    ("convert", "elastrain_convert.app", "Propose the change of a training script to an elastic one, as a diff."),
    ("exec", "elastrain_exec.app", "Run a script written for torchrun as an elastic job. The file is not changed."),
    ("verify", "elastrain_verify.app", "Check that a script trains the same model, whatever happens to its workers."),
    (
        "audit",
        "elastrain_audit.app",
        "Check the audit logs of a run: did training use every sample of every epoch exactly once?",
    ),
    (
        "plan",
        "elastrain_plan.app",
        "Estimate by a model how much of the paid time a job trains, and which settings lose least.",
    ),
):
    guests.add(app, _name, _module, _summary, HERE)


@app.command(rich_help_panel=BOTH)
def scale(
    job: Job,
    replicas: Annotated[int, typer.Argument(help="Number of workers, between minReplicas and maxReplicas.")],
    namespace: cluster.Namespace = None,
    context: cluster.Context = None,
) -> None:
    """Change the number of workers of a running job, on this machine or on the cluster. Training continues meanwhile.

    Examples: elastrain scale digits 4, elastrain scale digits 4 -n research
    """
    if not _is_local(job, namespace, context):
        with _nor_here(job):
            cluster.scale(job, replicas, namespace, context)
    from elastrain_cli.local.command import scale_job
    from elastrain_cli.local.control import ControlError

    try:
        typer.echo(scale_job(job, replicas))
    except ControlError as error:
        _refuse(str(error))


@app.command(rich_help_panel=BOTH)
def status(
    job: Annotated[
        str | None,
        typer.Argument(
            help="Name of the job; absent: all jobs of this machine.", callback=job_name, autocompletion=_job_names
        ),
    ] = None,
    output: cluster.Format = Output.TABLE,
    namespace: cluster.Namespace = None,
    context: cluster.Context = None,
) -> None:
    """Show the state of a job, on this machine or on the cluster.

    Examples: elastrain status, elastrain status digits, elastrain status digits -n research -o yaml
    """
    if job is not None and not _is_local(job, namespace, context):
        with _nor_here(job) if output is not Output.JSON else contextlib.nullcontext():
            cluster.status(job, output, namespace, context)
    from elastrain_cli.local.command import show_status
    from elastrain_cli.local.control import ControlError

    try:
        show_status(job, output)
    except ControlError as error:
        _refuse(str(error), output)


@contextlib.contextmanager
def _nor_here(job: str) -> Iterator[None]:
    """Add the local jobs to the error if there is no cluster."""
    try:
        yield
    except typer.Exit as leaving:
        if leaving.exit_code == EXIT_NO_CLUSTER:
            typer.echo(f"no job {job} runs on this machine either; elastrain status lists the local jobs", err=True)
        raise


def _is_local(job: str, namespace: str | None, context: str | None) -> bool:
    """Whether a job of this name runs on this machine."""
    if namespace or context:
        return False
    from elastrain_cli.local.control import control_directory, running_jobs

    return job in running_jobs(control_directory())


@app.command(rich_help_panel=HERE)
def validate(manifest: Manifest) -> None:
    """Check a manifest by the cluster's rules and the pod API: each problem names the field, the value and the rule.
    Exit code 2 if the manifest is invalid.

    Example: elastrain validate job.yaml
    """
    from elastrain_cli import template
    from elastrain_resource import durability, podshape
    from elastrain_resource.manifest import InvalidManifest, load_for_cluster

    try:
        job = load_for_cluster(manifest)
        try:
            wrong = tuple(template.problems(job.spec.template))
        except ImportError:
            wrong = podshape.problems(job.spec.template)
            typer.echo("the template was not held against the pod API: that needs the extra 'client'", err=True)
        if wrong:
            raise InvalidManifest(str(manifest), wrong)
    except InvalidManifest as error:
        _refuse(str(error))
    spec = job.spec
    if problem := durability.problem(spec):
        typer.echo(f"warning: {problem}", err=True)
    try:
        ranks = spec.ranks_per_worker
    except ValueError as error:
        _refuse(f"{manifest}: not a valid {job.kind}\n  {error}")
    replicas = f"{spec.desired_replicas} {spec.replica}{'s' * (spec.desired_replicas != 1)}"
    each = f"of {spec.group_size} workers " if spec.group_size > 1 else ""
    typer.echo(
        f"{manifest}: valid: job {job.name}, {replicas} ({spec.min_replicas} to {spec.max_replicas}) "
        f"{each}of {ranks} rank{'s' * (ranks != 1)}"
    )


@app.callback()
def options(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Options of the program."""


@app.command(rich_help_panel=PROGRAM)
def completion(
    shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.", metavar="SHELL")],
) -> None:
    """Print the completion script of a shell. It completes commands, options, and names of jobs, namespaces and
    contexts.

    Examples:

        bash: elastrain completion bash > ~/.local/share/bash-completion/completions/elastrain
        zsh:  elastrain completion zsh > "${fpath[1]}/_elastrain"
        fish: elastrain completion fish > ~/.config/fish/completions/elastrain.fish

    The directory must exist; open a new shell afterwards. zsh needs `autoload -Uz compinit && compinit` in ~/.zshrc.
    bash needs the package bash-completion (or: source <(elastrain completion bash)).
    """
    typer.echo(script(shell))


@app.command(rich_help_panel=PROGRAM)
def version() -> None:
    """Print the version."""
    typer.echo(f"elastrain {__version__}")


for _command in cluster.app.registered_commands:
    if _command.callback not in {cluster.scale, cluster.status}:  # replaced above: they also serve local jobs
        _command = copy.copy(_command)  # kubectl etj has no panels
        _command.rich_help_panel = CLUSTER
        app.registered_commands.append(_command)
app.registered_commands.sort(key=lambda command: PANELS.index(str(command.rich_help_panel)))


def _refuse(message: str, output: Output = Output.TABLE) -> NoReturn:
    """Print the reason on standard error and exit with code 2."""
    from elastrain_cli.shell.printing import print_error

    print_error(message, EXIT_REFUSED, output)
    raise typer.Exit(EXIT_REFUSED)


def main() -> None:
    """Run the command line. (The ``elastrain`` script starts in ``__main__``.)"""
    cluster.start(app, "elastrain")


if __name__ == "__main__":
    main()
