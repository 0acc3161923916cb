"""Adapts output to the terminal: to alphabets without some characters, and to pipes that the reader closes.

:func:`courteous` is for entry points. It imports only small modules, so that it takes effect early.
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
"""128 plus SIGINT, as in a shell."""
EXIT_READER_GONE = 141
"""128 plus SIGPIPE, as for a program in C."""

_PLAIN = {
    "→": "->", "−": "-", "×": "x", "│": "|", "✓": "+", "✗": "x", "▶": ">", "…": "...", "█": "#", "─": "-", "━": "-",
    "╸": "-", "╺": "-", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "•": "*", "·": ".", "▲": "^", "▼": "v",
    **dict(zip("▁▂▃▄▅▆▇", "_.,-=+*", strict=True)),
}  # fmt: skip
"""Replacements for characters that the terminal's alphabet lacks; other characters become a question mark."""


class ReaderGone(SystemExit):
    """The reader of the output closed the pipe, as ``head`` does. The program prints no more."""

    def __init__(self) -> None:
        super().__init__(EXIT_READER_GONE)


class _Stream(io.TextIOWrapper):
    """Standard output or error. Raises :class:`ReaderGone` once in place of ``BrokenPipeError``, which typer and rich
    turn into exit codes with another meaning."""

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
        os.dup2(nowhere, self.fileno())  # discards the buffered output and all later output
        os.close(nowhere)
        raise ReaderGone from None


def spell_out(error: UnicodeError) -> tuple[str, int]:
    """An error handler for :func:`codecs.register_error`: replaces a character by ASCII."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


@contextlib.contextmanager
def courteous() -> Iterator[None]:
    """Run a command in this context. Ctrl-C ends it with 130 and a closed pipe with 141, both without a traceback.
    Characters that the terminal's alphabet lacks are spelled out."""
    codecs.register_error("elastrain", spell_out)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # not a test's stream, nor None
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
