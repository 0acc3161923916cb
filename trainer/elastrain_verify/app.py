"""The options of ``elastrain verify``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from elastrain_cli.shell.manual import Program

app = Program(add_completion=False)


class Types(StrEnum):
    """Of the numbers."""

    FLOAT64 = "float64"
    OWN = "own"


@app.command()
def verify(
    target: Annotated[
        Path, typer.Argument(help="A training script (.py), or the manifest of a job (.yaml).", metavar="FILE")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For a script: its arguments, after --.", metavar="[-- ARG...]")
    ] = None,
    *,
    steps: Annotated[
        int | None, typer.Option(help="Steps of each run. Default: what the script computes in 4 s, 12 to 16.", min=1)
    ] = None,
    time: Annotated[
        float, typer.Option(help="Start no further run after so many seconds; those not run are named.", min=1)
    ] = 120.0,
    workers: Annotated[int, typer.Option(help="Largest number of workers.", min=2, max=8)] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this run, by its name in --json, and the reference. Repeatable.", metavar="RUN"),
    ] = None,
    dtype: Annotated[
        Types | None, typer.Option(help="float64, or own: the script's types. Default: float64 where it runs.")
    ] = None,
    whole_epochs: Annotated[
        bool, typer.Option("--whole-epochs", help="Leave epochs as long as they are. Default: 5 steps.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="Keep the output of all runs in this folder.", metavar="DIR")
    ] = None,
    etcd: Annotated[Path | None, typer.Option(help="The etcd binary. Default: $ELASTRAIN_ETCD, PATH.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a field of the job, as of elastrain run.", metavar="F=V")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", help="Set a variable for the script.", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Check that a script trains the same model, whatever happens to its workers. Takes a minute or two.

    The script runs in plain torch first, then on 1, 2 and 3 workers, then with a worker that joins, is killed or
    leaves, and from a checkpoint. After each step the state of each rank is compared with that of plain torch. The
    command stops at the first difference and names its step, entry, rank and kind.

    The script is not changed. It runs in a copy of its working directory, for a few steps, in float64. Exit codes: 0:
    safe; 1: a run differs or fails; 2: not judged, for example because two runs in plain torch differ.

    Examples:

        elastrain verify train.py -- --lr 0.1
        elastrain verify job.yaml --env EPOCHS=2
        elastrain verify train.py --keep runs --json
    """
    from elastrain_verify.command.command import Options
    from elastrain_verify.command.command import verify as judge

    options = Options(
        target, arguments or [], steps=steps, seconds=time, workers=workers, only=only or [], dtype=dtype,
        whole_epochs=whole_epochs, as_json=json, keep=keep, etcd=etcd, overrides=set_ or [], variables=env or [],
    )  # fmt: skip
    raise typer.Exit(judge(options))
