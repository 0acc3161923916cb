"""The page's files, read once: compressed, each with an ETag for the browser's cache."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from aiohttp import web

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_WORTH_COMPRESSING = 1000
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Asset:
    """The body of an answer."""

    content_type: str
    body: bytes
    compressed: bytes
    etag: str

    @classmethod
    def of(cls, content_type: str, body: bytes, level: int = 9) -> Asset:
        compressed = gzip.compress(body, level, mtime=0) if len(body) >= _WORTH_COMPRESSING else b""
        return cls(content_type, body, compressed, f'"{hashlib.sha256(body).hexdigest()[:20]}"')

    def answer(self, request: web.Request, status: int = 200) -> web.Response:
        """The body, or 304 if the browser has it."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        tags = {tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")}
        if status == 200 and self.etag in tags:
            return web.Response(status=304, headers=headers)
        body = self.body
        if self.compressed and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = self.compressed
        return web.Response(status=status, body=body, headers=headers, content_type=self.content_type, charset="utf-8")


def load() -> dict[str, Asset]:
    """All files of ``static/`` by name."""
    folder = resources.files("elastrain_dashboard") / "static"
    found = {}
    for file in folder.iterdir():
        kind = TYPES.get("." + file.name.rpartition(".")[2])
        if kind:
            found[file.name] = Asset.of(kind, file.read_bytes())
    return found


def of_json(data: Any) -> Asset:
    """A JSON answer."""
    body = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return Asset.of("application/json", body, level=5)
