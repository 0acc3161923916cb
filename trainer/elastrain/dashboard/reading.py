"""The dashboard's requests to the API server: only ``GET``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from elastrain.api import names
from elastrain.client.connection import Connection

PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        (names.GROUP, names.PLURAL): ("list", "watch"),
        ("", "pods"): ("list", "watch"),
        ("", "events"): ("list", "watch"),
    }
)
"""(API group, resource) -> verbs, in each shown namespace. A test compares the chart's Role with it."""
NODE_PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({("", "nodes"): ("list", "watch")})
"""The same for the whole cluster, if all namespaces are shown."""

_PAGE = 500
"""Objects in one page of a list."""


class Reader(Protocol):
    """Lists and watches. Both raise :class:`~elastrain.client.ClusterError`."""

    def pages(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """The objects of a list, page by page, each with the version to watch from."""
        ...

    def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """The events of a watch, until the API server ends it."""
        ...


class ClusterReader:
    """Reads the API server, with the permissions of the connection's user."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def pages(
        self, path: str, what: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        go_on = ""
        while True:
            page = {**query, "limit": str(_PAGE), **({"continue": go_on} if go_on else {})}
            answer = await self._connection.call("GET", path, what, query=page)
            yield answer["items"], str(answer["metadata"].get("resourceVersion", ""))
            go_on = answer["metadata"].get("continue", "")
            if not go_on:
                return

    async def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        async with contextlib.aclosing(self._connection.lines(path, what, "", query)) as lines:  # type: ignore[type-var]
            async for line in lines:
                yield json.loads(line)
