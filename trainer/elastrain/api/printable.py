"""Text that others wrote, made harmless where it is shown: a terminal, a log, a page. Pure.

A worker's termination message, record, event or condition may hold escape sequences, which set the title of a terminal,
fill its clipboard or clear its screen, and marks of direction, by which a text is shown in another order than it has
(CVE-2021-42574). Control characters become visible signs, marks of direction and C1 controls U+FFFD; colours go.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json, to_json

_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
"""Select Graphic Rendition (ECMA-48): the only sequence that changes nothing but the look of the text after it."""
_HARMFUL = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""All controls but tab and newline; marks, embeddings and isolates of direction; separators of lines and paragraphs."""
_FOUND = re.compile(f"[{_HARMFUL}]")
_FOUND_IN_JSON = re.compile(rf"[{_HARMFUL}]|\\[ubfr]")
"""What may become one of these characters is found as well."""


def printable(text: str, *, colours: bool = False) -> str:
    """``text`` without characters that act instead of being shown. ``colours``: keep the sequences that set them."""
    if _FOUND.search(text) is None:
        return text
    parts = _COLOUR.split(text.replace("\r\n", "\n"))
    parts[::2] = [_FOUND.sub(_sign, part) for part in parts[::2]]
    return "".join(parts if colours else parts[::2])


def printable_tree(value: Any) -> Any:
    """``value``, as read from JSON, with :func:`printable` texts. Keys of objects are texts too."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_tree(key): printable_tree(item) for key, item in value.items()}
    return [printable_tree(item) for item in value] if isinstance(value, list) else value


def printable_json(raw: bytes | str) -> bytes | str:
    """JSON with :func:`printable` texts. What is no JSON is returned as it is, for its reader to refuse."""
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        return raw if _FOUND_IN_JSON.search(text) is None else to_json(printable_tree(from_json(text)))
    except ValueError:
        return raw


def _sign(found: re.Match[str]) -> str:
    """Unicode's picture of a C0 control or of DEL; for others the replacement character."""
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
