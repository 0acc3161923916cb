"""The command ``elastrain convert``: reads the file, prints what the conversion gives, and writes it if asked."""

from __future__ import annotations

import sys
from pathlib import Path

from elastrain.api import names

NEEDS_A_PERSON = 1


def convert_script(script: Path, *, processes: int | None, micro_batches: int | None, write: bool) -> int:
    """Returns the exit code: 0 nothing is left to a person, 1 lines need one, 2 not converted."""
    try:
        from elastrain.convert import Options, convert
    except ModuleNotFoundError as e:
        return _refused(f"elastrain convert needs {e.name}: {sys.executable} -m pip install 'elastrain[convert]'")
    try:
        source = script.read_text()
        conversion = convert(source, Options(processes=processes, micro_batches=micro_batches))
    except (OSError, UnicodeDecodeError, ValueError) as e:
        return _refused(f"{script}: {e.strerror if isinstance(e, OSError) else e}")
    print(conversion.diff(str(script)), end="")  # noqa: T201 - this is the command line
    if write and conversion.after != source:
        script.write_text(conversion.after)
    for note in conversion.notes:
        _say(f"{script}:{note.line}: {note.why}\n    {note.way}")
    if conversion.after == source:
        reason = (
            "nothing to convert here" if conversion.notes else "calls elastrain.join(), or trains nothing: no change"
        )
        _say(f"{script}: {reason}")
        return names.EXIT_USAGE if conversion.notes else 0
    _say(f"Next: {'' if write else 'apply the diff (--write), then '}elastrain verify {script}")
    return NEEDS_A_PERSON if conversion.notes else 0


def _refused(message: str) -> int:
    _say(message)
    return names.EXIT_USAGE


def _say(message: str) -> None:
    print(message, file=sys.stderr)  # noqa: T201 - this is the command line
