"""The command line of a benchmark: options that all have, refusals, progress, results, and the exit code."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import BaseModel
from rich.console import Console

from bench_harness.tables import Table, markdown, show
from elastrain_cli.etcd_server import EtcdNotFound

EXIT_FAILED = 1
EXIT_REFUSED = 2
EXIT_INTERRUPTED = 130
RESULTS = Path(__file__).parent.parent / "results"

EXIT_CODES = """Exit codes: 0 measured (the tables show missed goals), 1 the measured system did not get where it should
within the limit, 2 the benchmark cannot be started as asked, 130 interrupted (the JSON file has what was measured)."""

Json = Annotated[Path | None, typer.Option(help="File for all figures. Default: figures.json in --logs.")]
Logs = Annotated[Path | None, typer.Option(help="New directory for logs. Default: bench/results/NAME-TIME.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")]


class Failed(Exception):
    """The measured system did not do something within the limit; the message says what, and where the logs are."""


def refuse(message: str) -> NoReturn:
    """Leave with code 2."""
    typer.echo(message, err=True)
    raise typer.Exit(EXIT_REFUSED)


def choose(option: str, given: str, known: Sequence[str]) -> list[str]:
    """The comma-separated words of ``given``; leaves with a message that names an unknown one."""
    words = [word.strip() for word in given.split(",") if word.strip()]
    for word in words:
        if word not in known:
            refuse(f"{option}: {word!r} must be one of {', '.join(known)}")
    return words


def numbers(option: str, given: str, least: int = 1) -> list[int]:
    """The comma-separated numbers of ``given``; leaves with a message if one is less than ``least``."""
    try:
        found = [int(word) for word in given.split(",") if word.strip()]
    except ValueError:
        refuse(f"{option} {given!r}: must be numbers, separated by commas")
    if any(number < least for number in found):
        refuse(f"{option} {given!r}: each must be at least {least}")
    return found


def cards(device: str) -> int:
    """The number of CUDA devices, 1 for the CPU; leaves with a message if there are none."""
    if device == "cpu":
        return 1
    import torch

    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        refuse(f"--device {device}: torch {torch.__version__} ({built}) sees no GPU")
    return int(torch.cuda.device_count())


class Output:
    """Where a benchmark writes its logs, its figures and its progress."""

    def __init__(self, name: str, json: Path | None, logs: Path | None, as_markdown: bool) -> None:
        """``name``: of the benchmark. Creates the directory of the logs."""
        self.logs = logs or RESULTS / time.strftime(f"{name}-%Y%m%d-%H%M%S")
        self.logs.mkdir(parents=True, exist_ok=True)
        self._json = json or self.logs / "figures.json"
        self._markdown = as_markdown
        self._console = Console(stderr=True)
        self._status = self._console.status("starting")
        self._doing = ""

    def begins(self, what: str) -> None:
        """Announce the next part, such as a run."""
        self._doing = what
        self.says(what)

    def waiting(self, what: str) -> None:
        """Say what the present part waits for now."""
        self._status.update(f"{self._doing}: waiting for {what}")

    def says(self, words: str) -> None:
        """Print a line of progress."""
        self._console.print(f"{time.strftime('%H:%M:%S')} {words}", style="dim", highlight=False, soft_wrap=True)

    def keep(self, report: BaseModel) -> None:
        """Write the figures measured so far."""
        self._json.write_text(report.model_dump_json(indent=1) + "\n")

    def show(self, tables: Sequence[Table], notes: Sequence[str]) -> None:
        """Print the result."""
        if self._markdown:
            typer.echo(markdown(tables, notes))
        else:
            show(tables, notes, Console())

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Show progress; turn failures and Ctrl-C into exit codes. All processes must end within the context."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.says(f"logs: {self.logs}, figures: {self._json}")
        try:
            with self._status:
                yield
        except Failed as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(EXIT_FAILED) from None
        except KeyboardInterrupt:
            typer.echo("interrupted: all processes of the benchmark have been ended", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None


def run(main: Callable[..., Any], help_text: str) -> None:
    """Run a program whose options are the parameters of ``main``."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(help=help_text + "\n\n" + EXIT_CODES)(main)
    try:
        app()
    except EtcdNotFound as error:
        typer.echo(str(error), err=True)
        raise SystemExit(EXIT_REFUSED) from None
