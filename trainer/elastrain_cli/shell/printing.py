"""Prints jobs: as a table, as data, or by name."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import yaml
from rich.console import Console

from elastrain_cli.shell import view
from elastrain_cli.shell.answers import Output
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.job.shown import Event, Worker

_UNCUT = 4096
"""Columns of a table in a pipe or a file; wide enough that no cell is cut."""


def print_job(job: ElasticTrainingJob, workers: Sequence[Worker], events: Sequence[Event], output: Output) -> None:
    """Print all about one job."""
    if output is Output.NAME:
        print_text(job.name)
    elif output in {Output.JSON, Output.YAML}:
        print_data(document(job), output)
    else:
        table_console().print(view.details(job, workers, events, datetime.now(UTC)))


def table_console() -> Console:
    """A console for tables: as wide as the terminal, or ``$COLUMNS``; elsewhere wide enough that no cell is cut."""
    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else _UNCUT
    return Console(width=width)


def document(job: ElasticTrainingJob) -> dict[str, Any]:
    """The job as its manifest: only the fields that are set."""
    found: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    found.get("metadata", {}).pop("managedFields", None)
    return found


def print_data(value: Any, output: Output) -> None:
    """Print as JSON, or as YAML."""
    print_text(json.dumps(value, indent=2) if output is Output.JSON else yaml.safe_dump(value, sort_keys=False))


def print_text(text: str) -> None:
    """Print with one final newline; print nothing if ``text`` is empty."""
    if text:
        print(text.rstrip("\n"))  # noqa: T201 - this is a command


def print_error(message: str, code: int, output: Output = Output.TABLE) -> None:
    """Print why a command failed on standard error; with ``-o json`` as one object, for programs."""
    text = json.dumps({"error": message, "exitCode": code}) if output is Output.JSON else message
    print(text, file=sys.stderr)  # noqa: T201 - this is a command


def print_now(text: str) -> None:
    """Print and flush, for a program that waits for the line."""
    print(text, flush=True)  # noqa: T201 - this is a command
