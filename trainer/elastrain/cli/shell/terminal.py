"""The terminal as it is: of another alphabet, or a pipe whose reader has gone.

:func:`courteous` is for entry points. It imports nothing heavy, so that it is in force before anything else is.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

EXIT_INTERRUPTED = 130
"""128 and SIGINT, as shells count it."""
EXIT_READER_GONE = 141
"""128 and SIGPIPE: what a program in C would have ended with."""

_PLAIN = {
    "→": "->", "−": "-", "×": "x", "│": "|", "✓": "+", "✗": "x", "▶": ">", "…": "...", "█": "#", "─": "-", "━": "-",
    "╸": "-", "╺": "-", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "•": "*", "·": ".", "▲": "^", "▼": "v",
    **dict(zip("▁▂▃▄▅▆▇", "_.,-=+*", strict=True)),
}  # fmt: skip
"""What we print, for an alphabet that lacks it; other characters become a question mark."""


class ReaderGone(SystemExit):
    """Whoever read what this program prints has gone, as ``head`` does. Nothing more is printed."""

    def __init__(self) -> None:
        super().__init__(EXIT_READER_GONE)


class _Stream(io.TextIOWrapper):
    """Standard output or error. Raises :class:`ReaderGone` once where Python would raise ``BrokenPipeError`` (which
    typer and rich each turn into an exit code that means something else here)."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._lose()

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._lose()

    def _lose(self) -> NoReturn:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())  # what is still buffered goes there, and all that follows
        os.close(nowhere)
        raise ReaderGone from None


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """An error handler for :func:`codecs.register_error`: what cannot be encoded, in ASCII."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


@contextlib.contextmanager
def courteous() -> Iterator[None]:
    """Run a command in here. Ctrl-C ends it with 130, a reader that has gone with 141, neither with a traceback; what
    the terminal's alphabet lacks is spelled out.
    """
    codecs.register_error("elastrain", spell_out)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # not a test's, nor None
            _adopt(name, stream)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def _adopt(name: str, stream: io.TextIOWrapper) -> None:
    utf8 = codecs.lookup(stream.encoding).name == "utf-8"
    options = {
        "encoding": stream.encoding,
        "errors": stream.errors if utf8 else "elastrain",
        "line_buffering": stream.line_buffering,
        "write_through": stream.write_through,
    }
    adopted = _Stream(stream.detach(), **options)  # type: ignore[arg-type]
    setattr(sys, name, adopted)
    setattr(sys, f"__{name}__", adopted)
