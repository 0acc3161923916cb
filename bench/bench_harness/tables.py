"""Tables for a terminal and, with the same content, in Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table as RichTable

WIDTH = 170
"""Columns of the widest table; a narrower terminal breaks its lines."""


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows. The first ``left`` columns are words, the others figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


def show(tables: Sequence[Table], notes: Sequence[str], console: Console) -> None:
    """Print the tables that have a row, and the notes."""
    console.width = max(console.width, WIDTH)
    for table in tables:
        if not table.rows:
            continue
        rich = RichTable(
            title=table.title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False
        )
        for i, name in enumerate(table.header):
            words = 0 < i < table.left  # may be long
            rich.add_column(name, justify="left" if i < table.left else "right", no_wrap=not words)
        for row in table.rows:
            rich.add_row(*row)
        console.print(rich)
    for note in notes:
        console.print(f"• {note}", style="dim", highlight=False, soft_wrap=True)


def markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """The same, to be pasted into a page."""
    parts = [f"**{table.title}**\n\n{_rows(table)}" for table in tables if table.rows]
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes)])


def _rows(table: Table) -> str:
    rule = ["---" if i < table.left else "---:" for i in range(len(table.header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (table.header, rule, *table.rows))
