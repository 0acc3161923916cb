"""The options of ``elastrain convert``. Imports little: every start of the command line imports it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    script: Annotated[Path, typer.Argument(help="A training script for DDP, torchrun or one GPU.", metavar="FILE")],
    *,
    processes: Annotated[
        int | None,
        typer.Option(
            help="Number of processes for which batch size and learning rate were chosen. Default: unknown.", min=1
        ),
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option(
            help="Use bitwise numerics, with so many micro-batches for each step: the result depends on no number of "
            "workers, also with dropout. Default: exact numerics, as of DDP.",
            min=1,
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file. Default: print the diff only.")] = False,
) -> None:
    """Propose the change of a training script to an elastic one, as a diff.

    The script is read, not run. The heading of each hunk says what it does. Lines that need a person go to standard
    error, with the reason and a way out; unknown shapes stay as they are. Exit codes: 0: nothing is left to a person;
    1: lines need a person; 2: not converted.

    Examples:

        elastrain convert train.py
        elastrain convert train.py --processes 8 | patch -p0
        elastrain convert train.py --write
    """
    from elastrain.cli.convert.command import convert_script

    raise typer.Exit(convert_script(script, processes=processes, micro_batches=micro_batches, write=write))
