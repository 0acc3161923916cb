"""A list of one resource kept up to date by a watch: each object is parsed on arrival, and only the result is kept.

Serves the allocator's inventory, which kopf cannot (docs/decisions/0080): a missing permission must not stop the
operator, and kopf has one selector for each resource, which the worker pods use.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import structlog

from elastrain_operator.kube.client import ApiError

RETRY_DELAYS = (1.0, 2.0, 5.0, 10.0)
"""Seconds before the next attempt: by failures in a row."""
RESUME_DELAY = 0.5
"""Seconds before a watch that the API server ended in its time is resumed."""
GONE = 410
"""The API server's history does not reach back to where the watch stopped."""
DENIED = frozenset({401, 403})

T = TypeVar("T")
log = structlog.get_logger(__name__)


class Source(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    def list_pages(
        self, path: str, what: str, query: Mapping[str, str]
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]: ...

    def changes(
        self, path: str, what: str, query: Mapping[str, str], version: str
    ) -> AsyncIterator[dict[str, Any]]: ...


class Reflector(Generic[T]):
    """The objects of one resource. Lives in one event loop."""

    def __init__(
        self,
        source: Source,
        path: str,
        what: str,
        *,
        parse: Callable[[Mapping[str, Any]], T | None],
        on_change: Callable[[], None],
        query: Mapping[str, str] | None = None,
    ) -> None:
        """``what``: the plural, for messages. ``parse`` returns None for an object that does not matter. ``query``:
        selectors. ``on_change`` is called once for all objects that change together, and when ``problem`` changes.
        """
        self.values: dict[str, T] = {}
        """By UID. The last known values stay while the API server is silent."""
        self.problem: str | None = f"the {what} of the cluster are not listed yet"
        """Why ``values`` cannot be relied on; None: they can."""
        self.denied = False
        """The API server has refused the list: time will not help."""
        self._source = source
        self._path = path
        self._what = what
        self._parse = parse
        self._on_change = on_change
        self._query = query or {}
        self._version = ""  # from which to watch on; empty: list first
        self._failures = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                delay = RESUME_DELAY
            except ApiError as error:
                delay = self._failed(error)
            except Exception:
                # A bug in the operator is logged and does not end the watch.
                log.exception("the watch failed", of=self._what)
                self._version, delay = "", RETRY_DELAYS[-1]
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        found: dict[str, T] = {}
        at = ""
        async for items, version in self._source.list_pages(self._path, f"list {self._what}", self._query):
            at = version
            for body in items:
                value = self._parse(body)
                if value is not None:
                    found[body["metadata"]["uid"]] = value
        changed = found != self.values or self.problem is not None
        self.values, self.problem, self.denied = found, None, False
        self._version, self._failures = at, 0
        if changed:
            self._on_change()

    async def _follow(self) -> None:
        async for event in self._source.changes(self._path, f"watch {self._what}", self._query, self._version):
            body = event["object"]
            if event["type"] != "BOOKMARK":
                self._take(body, gone=event["type"] == "DELETED")
            self._version = body["metadata"]["resourceVersion"]
            self._failures = 0

    def _take(self, body: Mapping[str, Any], gone: bool) -> None:
        uid = body["metadata"]["uid"]
        before, value = self.values.get(uid), None if gone else self._parse(body)
        if value == before:
            return
        if value is None:
            del self.values[uid]
        else:
            self.values[uid] = value
        self._on_change()

    def _failed(self, error: ApiError) -> float:
        """Seconds until the next attempt."""
        if error.code == GONE:
            self._version = ""
            return RESUME_DELAY
        log.warning(f"{self._what} are not known", error=str(error))
        if error.code in DENIED:
            self._version, self.problem, self.denied = "", str(error), True
        elif self.problem is not None:
            self.problem = str(error)
        if self.problem is not None:
            self._on_change()
        self._failures += 1
        return RETRY_DELAYS[min(self._failures, len(RETRY_DELAYS)) - 1]
