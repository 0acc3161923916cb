"""Shows a local job on the terminal: a live display, or plain lines in a pipe."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from elastrain.api.records import Progress
from elastrain.cli.local.changes import changes, duration, progress_line, rescale_line
from elastrain.cli.local.status import LocalStatus, eta_seconds, samples_per_second
from elastrain.cli.shell.terminal import ReaderGone
from elastrain.sizing.describe import batch_line

PROGRESS_SECONDS = 5.0
"""Seconds between two progress lines of the plain view."""
PHASE_STYLES = {"Running": "green", "Succeeded": "green", "Failed": "red", "Rescaling": "yellow", "Draining": "yellow"}


class View:
    """Shows a job; a context manager. Call :meth:`show` at every change and :meth:`line` for each line of a worker."""

    def __init__(self, console: Console | None = None, *, live: bool) -> None:
        self.console = console or Console()
        self.reader_gone = False
        """True once the reader closed the pipe, as ``head`` does. Later output is discarded."""
        self._lock = threading.Lock()
        self._before: LocalStatus | None = None
        self._rate: float | None = None
        self._looked: tuple[float, Progress] | None = None
        self._printed = 0.0
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

    def show(self, status: LocalStatus) -> None:
        """Show the job's newest status."""
        with self._lock:
            before, self._before = self._before, status
        for sentence in changes(before, status):
            self.say(sentence, style="dim")
        self._measure(status)
        if self._live is not None:
            self._live.update(render(status, self._rate))
        elif status.progress is not None and time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            self.say(progress_line(status.progress, self._rate), style="")

    def _measure(self, status: LocalStatus) -> None:
        if status.progress is None or (self._looked is not None and status.progress == self._looked[1]):
            return
        now = (time.monotonic(), status.progress)
        self._rate = samples_per_second(self._looked, now)
        self._looked = now

    def _print(self, text: Text) -> None:
        try:
            self.console.print(text, highlight=False, soft_wrap=True)
        except ReaderGone:  # raised once, in the thread that prints first
            self.reader_gone = True


def render(status: LocalStatus, rate: float | None) -> Group:
    """The live picture: one headline, one bar, the workers and the last rescales."""
    style = PHASE_STYLES.get(status.phase, "")
    head = Text.assemble(
        (status.job, "bold"),
        "  ",
        (status.phase, style),
        f"  {status.in_force} of {status.desired} workers (min {status.min}, max {status.max})",
    )
    if status.spares:
        head.append(f"  spares {len(status.standing_by)}/{status.spares}")
    if status.generation is not None:
        head.append(f"  generation {status.generation.number} ({status.generation.reason})")
    parts: list[Text | Table | ProgressBar] = [Text(""), head]
    if status.progress is not None:
        parts.append(_bar(status.progress, rate))
        if status.progress.batch is not None:
            parts.append(Text(f"  {batch_line(status.progress.batch)}", style="dim"))
    parts.append(_workers(status))
    if status.progress is not None:
        parts += [Text(f"  {rescale_line(r)}", style="dim") for r in status.progress.rescales[-4:]]
    return Group(*parts)


def _bar(progress: Progress, rate: float | None) -> Table:
    table = Table.grid(padding=(0, 2))
    total = progress.total_steps
    steps = f"step {progress.step}/{total}" if total else f"step {progress.step}"
    eta = eta_seconds(progress)
    table.add_row(
        ProgressBar(total=float(total) if total else None, completed=float(progress.step), width=30),
        steps,
        f"epoch {progress.epoch}",
        "" if progress.loss is None else f"loss {progress.loss:.4f}",
        "" if rate is None else f"{rate:.0f} samples/s",
        "" if eta is None else f"{duration(eta)} left",
    )
    return table


def _workers(status: LocalStatus) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("worker", "node", "pid", "phase", "generation", "restarts", ""):
        table.add_column(column)
    shown = [w for w in status.workers if not w.ended or w.phase == "failed"][-12:]
    for w in shown:
        note = "leaving" if w.leaving and not w.ended else w.message
        note = note or ("stands by" if w.name in status.standing_by else "")
        style = "red" if w.phase == "failed" else "green" if w.phase == "ready" else "yellow"
        table.add_row(
            w.name,
            w.node,
            str(w.pid),
            Text(w.phase, style=style),
            str(w.generation or ""),
            str(w.restarts or ""),
            Text(note),  # a note may contain the script's text, which is not markup
        )
    return table


def wants_live(plain: bool) -> bool:
    """Whether to use the live display: only on a terminal."""
    return not plain and sys.stdout.isatty()
