"""For mkdocs: links that leave ``docs/``, which lead somewhere in the repository, become the file's name on the site.

``[01](../examples/01-digits)`` reads ``01 (`examples/01-digits`)`` there. A link to a file that does not exist stays as
it is, so that the strict build fails at it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)#\s]*)(?:#[^)\s]*)?\)")


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
