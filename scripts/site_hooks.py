"""For mkdocs: what the pages need beyond Markdown.

- Links that leave ``docs/``, which lead somewhere in the repository, become the file's name on the site:
  ``[01](../examples/01-digits)`` reads ``01 (`examples/01-digits`)`` there. A link to a file that does not exist stays
  as it is, so that the strict build fails at it.
- Tables of up to five columns are marked, and each cell is named after its column: a phone shows rows as cards.
- Long names in tables may break at their separators.
- ``ELASTRAIN_REPOSITORY`` (an https address) adds links to the source, and to edit each page.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import Any

STACKED = 5
"""Columns of a table that a phone shows as cards: more are figures, which are read side by side."""
LONG = 28
"""Characters of a name that may break in a table."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]*)(?:#[^)\s]*)?\)")


def on_config(config: Any, **_: Any) -> Any:
    """Called by mkdocs once: the repository's address, which depends on who serves the site."""
    if repository := os.environ.get("ELASTRAIN_REPOSITORY"):
        config.repo_url, config.repo_name, config.edit_uri = repository, "source", "edit/main/docs/"
    return config


def on_page_content(text: str, **_: Any) -> str:
    """Called by mkdocs for each page as HTML."""
    return long_names_that_break(cells_named_after_columns(text))


def cells_named_after_columns(text: str) -> str:
    """``text`` with the attribute ``data-column`` in each cell of each table of at most `STACKED` columns."""

    def table(found: re.Match[str]) -> str:
        columns = [
            re.sub(r"<[^>]+>", "", head).strip() for head in re.findall(r"<th\b[^>]*>(.*?)</th>", found[0], re.S)
        ]
        if not 1 < len(columns) <= STACKED:
            return found[0]

        def row(cells: re.Match[str]) -> str:
            names = iter(columns)
            return re.sub(r"<td", lambda _: f'<td data-column="{html.escape(next(names, ""))}"', cells[0])

        marked = found[0].replace("<table>", f'<table data-stacks="{len(columns)}">', 1)
        return re.sub(r"<tr>.*?</tr>", row, marked, flags=re.DOTALL)

    return re.sub(r"<table>.*?</table>", table, text, flags=re.DOTALL)


def long_names_that_break(text: str) -> str:
    """``text`` whose long names in tables may break at their separators, so that other columns keep their room. An
    escaped ``|`` in code shows without its backslash, as on GitHub."""

    def name(found: re.Match[str]) -> str:
        return re.sub(r"(?<=\w)([_./,:=])(?=\w)", r"\1<wbr>", found[0])

    def code(found: re.Match[str]) -> str:
        return re.sub(rf"[^\s<>]{{{LONG},}}(?=[^<>]*<)", name, found[0].replace("\\|", "|"))

    return re.sub(
        r"<table.*?</table>", lambda table: re.sub(r"<code>[^<]*</code>", code, table[0]), text, flags=re.DOTALL
    )


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return names_for_links_out(markdown, Path(page.file.abs_src_path), Path(config.docs_dir))


def names_for_links_out(markdown: str, page: Path, docs: Path) -> str:
    """``markdown`` of ``page`` with such links replaced. ``docs``: the folder that the site is made from."""

    def replace(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        if docs.resolve() in target.parents or not target.exists():
            return link[0]
        name = target.relative_to(docs.resolve().parent)
        return f"`{name}`" if link[1].strip("`") in (str(name), name.name) else f"{link[1]} (`{name}`)"

    return _LINK.sub(replace, markdown)
