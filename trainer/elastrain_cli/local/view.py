"""Shows a local job on the terminal: a live display, or plain lines in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from elastrain_cli.local.changes import changes
from elastrain_cli.local.status import LocalStatus, resource, workers
from elastrain_cli.shell.terminal import ReaderGone
from elastrain_cli.shell.view import details, progress_line
from elastrain_resource.job import ElasticTrainingJob

PROGRESS_SECONDS = 5.0
"""Seconds between two progress lines of the plain view."""


class View:
    """Shows a job; a context manager. Call :meth:`show` at every change and :meth:`line` for each line of a worker."""

    def __init__(self, console: Console | None = None, *, live: bool) -> None:
        self.console = console or Console()
        self.reader_gone = False
        """True once the reader closed the pipe, as ``head`` does. Later output is discarded."""
        self._lock = threading.Lock()
        self._before: LocalStatus | None = None
        self._printed = 0.0
        self._line = ""
        self._live = Live(console=self.console, refresh_per_second=4, transient=True) if live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def line(self, worker: str, text: str) -> None:
        """Print one line of a worker."""
        self._print(Text.assemble((f"{worker} │ ", "cyan"), Text.from_ansi(text)))

    def say(self, text: str, style: str = "bold") -> None:
        """Print a message of elastrain."""
        self._print(Text(text, style=style))

    def show(self, job: ElasticTrainingJob, status: LocalStatus) -> None:
        """Show the job's newest status."""
        with self._lock:
            before, self._before = self._before, status
        for _, sentence in changes(before, status):
            self.say(sentence, style="dim")
        now = datetime.now(UTC)
        shown = resource(job, status, now)
        if self._live is not None:
            self._live.update(details(shown, workers(status), (), now))
        elif shown.status and shown.status.progress and time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            if (line := progress_line(shown.status.step, shown.status.progress, now)) != self._line:
                self._line = line
                self.say(line, style="")

    def _print(self, text: Text) -> None:
        try:
            self.console.print(text, highlight=False, soft_wrap=True)
        except ReaderGone:  # raised once, in the thread that prints first
            self.reader_gone = True


def wants_live(plain: bool) -> bool:
    """Whether to use the live display: only on a terminal."""
    return not plain and sys.stdout.isatty()
