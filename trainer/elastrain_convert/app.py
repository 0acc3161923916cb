"""The command ``elastrain convert``: reads the file, prints what the conversion gives, and writes it if asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from elastrain.api import names
from elastrain_cli.shell.manual import Program

NEEDS_A_PERSON = 1

app = Program(add_completion=False)


@app.command()
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
            help="Use bitwise numerics, with so many micro-batches for each step: the result does not depend on "
            "the number of workers, also with dropout. Default: exact numerics, as of DDP.",
            min=1,
        ),
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file. Default: print the diff only.")] = False,
) -> None:
    """Propose the change of a training script to an elastic one, as a diff.

    The script is read, not run. The heading of each hunk says what it does. Lines that need a person go to standard
    error, with the reason and a way out; unknown shapes stay as they are. Exit codes: 0: converted, and
    each call, value and option is known; 1: converted, and lines need a person; 2: not converted.

    Examples:

        elastrain convert train.py
        elastrain convert train.py --processes 8 | patch -p0
        elastrain convert train.py --write
    """
    raise typer.Exit(convert_script(script, processes=processes, micro_batches=micro_batches, write=write))


def convert_script(script: Path, *, processes: int | None, micro_batches: int | None, write: bool) -> int:
    """Returns the exit code: 0 nothing is left to a person, 1 lines need one, 2 not converted, and the file stays."""
    from elastrain_convert.conversion import Options, convert  # libcst is not at hand without the extra

    try:
        source = script.read_text()
        conversion = convert(source, Options(processes=processes, micro_batches=micro_batches))
    except (OSError, UnicodeDecodeError, ValueError) as e:
        return _refused(f"{script}: {e.strerror if isinstance(e, OSError) else e}")
    except Exception as e:
        return _refused(f"{script}: not converted: a fault of elastrain convert: {type(e).__name__}: {e}")
    print(conversion.diff(str(script)), end="")  # noqa: T201 - this is the command line
    if write and conversion.after != source:
        script.write_text(conversion.after)
    for note in conversion.notes:
        _say(f"{script}:{note.line}: {note.why}\n    {note.way}")
    if conversion.after == source:
        return _refused(f"{script}: not converted: no change")
    _say(f"Next: {'' if write else 'apply the diff (--write), then '}elastrain verify {script}")
    return NEEDS_A_PERSON if conversion.notes else 0


def _refused(message: str) -> int:
    _say(message)
    return names.EXIT_USAGE


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201 - this is the command line
