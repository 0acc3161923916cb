"""Keeps the objects of one resource of the API server in memory, by a list and a watch: operator and dashboard.

Each object is parsed on arrival, and only the result is kept. A watch that ends is resumed. After two failures in a
row, or if the API server's history does not reach back far enough, the objects are listed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import structlog

PAGE = 500
"""Objects in one page of a list."""
RETRY_DELAYS = (1.0, 2.0, 5.0, 10.0)
"""Seconds until the next attempt, by number of failures in a row."""
WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch and the reflector resumes it."""
SILENT_SECONDS = WATCH_SECONDS + 15
"""Seconds after which a watch that the API server has not ended is dead."""
RESUME_SECONDS = 0.2
REFUSED_SECONDS = 60.0
"""Seconds after which refusals without another answer prove that a permission is missing. A single one proves nothing:
tokens and role bindings are replaced, and an API server that starts knows no roles yet."""
GONE = 410
"""The API server's history starts after the version that the watch asked for."""

Body = dict[str, Any]
Pages = AsyncGenerator[tuple[list[Body], str], None]
T = TypeVar("T")
log = structlog.get_logger(__name__)


class CallError(Exception):
    """A call of the API server failed. ``str()`` names the request and the cause."""

    denied = False
    """A permission is missing: waiting does not help."""
    expired = False
    """The API server's history starts after the version that a watch asked for."""


class Source(Protocol):
    """Lists and watches. Both raise :class:`CallError`."""

    def list_pages(self, path: str, what: str, query: Mapping[str, str]) -> Pages:
        """The objects of a list, page by page, each with the version to watch from."""
        ...

    def changes(self, path: str, what: str, query: Mapping[str, str]) -> AsyncGenerator[Body, None]:
        """The events of a watch, until the API server ends it."""
        ...


async def pages(read: Callable[[Mapping[str, str]], Awaitable[Body]], query: Mapping[str, str]) -> Pages:
    """The objects of a list, page by page, each with the version to watch from. ``read`` makes one request."""
    query = {**query, "limit": str(PAGE)}
    while True:
        page = await read(query)
        yield page.get("items") or [], str(page["metadata"].get("resourceVersion", ""))
        if not (more := page["metadata"].get("continue")):
            return
        query["continue"] = more


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the values may be stale."""

    text: str
    since: datetime
    denied: bool
    """An attempt was refused for a missing permission, and none has succeeded since."""
    lasting: bool = False
    """All attempts of :data:`REFUSED_SECONDS` were: waiting does not help."""


class Reflector(Generic[T]):
    """The objects of one resource. Lives in one event loop. The last known state remains during an outage."""

    def __init__(
        self,
        source: Source,
        path: str,
        what: str,
        query: Mapping[str, str] | None = None,
        *,
        parse: Callable[[Mapping[str, Any]], T | None],
        on_change: Callable[[str, T | None, T | None], None],
        on_problem: Callable[[], None] = lambda: None,
        retry_delays: tuple[float, ...] = RETRY_DELAYS,
    ) -> None:
        """``what``: the plural, for messages: ``jobs``, ``pods of namespace research``. ``query``: selectors.

        ``parse`` returns None for an object to ignore. ``on_change(key, before, after)`` is called for each changed
        value, also for the last one of a deleted object, and then without ``after``; ``on_problem`` after a change of
        ``problem`` or ``listed``.
        """
        self.what = what
        self.values: dict[str, T] = {}
        """By ``namespace/name``; the namespace of a cluster's own objects is empty."""
        self.problem: Problem | None = None
        self.listed = False
        """Whether a list was ever complete."""
        self._source = source
        self._path = path
        self._query = query or {}
        self._parse = parse
        self._on_change = on_change
        self._on_problem = on_problem
        self._retry_delays = retry_delays
        self._version = ""  # the version to resume from; empty: list first
        self._failures = 0  # in a row
        self._refused: float | None = None  # since when all attempts have been refused, in seconds of the event loop

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                delay = RESUME_SECONDS
            except CallError as error:
                delay = self._failed(str(error), error.denied)
            except Exception as error:
                # A malformed answer, or an object too large for a line of a watch: a list can still read it. A bug here
                # must neither end the watch for good nor go unnoticed.
                log.exception("the watch failed", what=self.what)
                self._version = ""
                delay = self._failed(f"cannot read {self.what}: {error!r}", denied=False)
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        found: dict[str, T] = {}
        async for bodies, version in self._source.list_pages(self._path, f"list {self.what}", self._query):
            at = version
            for body in bodies:
                value = self._parse(body)
                if value is not None:
                    found[_key(body)] = value
            await asyncio.sleep(0)  # a large cluster's list must not block the event loop
        failed: Exception | None = None
        for key in [*found, *(self.values.keys() - found.keys())]:
            try:
                self._put(key, found.get(key))
            except Exception as error:  # the changes of other objects are not lost for it
                failed = failed or error
        was, self.listed, self.problem, self._version = (self.listed, self.problem), True, None, at
        if was != (True, None):
            log.info("listed", what=self.what)
            self._on_problem()
        if failed is not None:
            raise failed

    async def _follow(self) -> None:
        query = {
            **self._query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        what = f"watch {self.what}"
        try:
            async with (
                asyncio.timeout(SILENT_SECONDS),
                contextlib.aclosing(self._source.changes(self._path, what, query)) as changes,
            ):
                async for change in changes:
                    self._take(what, change["type"], change["object"])
                    if not self._version:
                        return
        except TimeoutError:
            raise CallError(f"cannot {what}: no answer for {SILENT_SECONDS} s") from None
        except CallError as error:
            if not error.expired:
                raise
            self._version = ""
        self._failures = 0

    def _take(self, what: str, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "ERROR":
            self._version = ""
            if body.get("code") != GONE:
                raise CallError(f"cannot {what}: {body.get('message') or body}")
            return
        if kind != "BOOKMARK":
            self._put(_key(body), self._parse(body))
        if kind == "DELETED":
            self._put(_key(body), None)
        self._version, self._failures = str(body["metadata"]["resourceVersion"]), 0

    def _put(self, key: str, value: T | None) -> None:
        before = self.values.get(key)
        if before == value:
            return
        self._store(key, value)
        try:
            self._on_change(key, before, value)
        except BaseException:
            self._store(key, before)  # the next list finds the change again
            raise

    def _store(self, key: str, value: T | None) -> None:
        if value is None:
            del self.values[key]
        else:
            self.values[key] = value

    def _failed(self, text: str, denied: bool) -> float:
        """Seconds until the next attempt. A watch may fail once: a resumed one delivers all changes."""
        now = asyncio.get_running_loop().time()
        if not denied:
            self._refused = None
        elif self._refused is None or not self._failures:
            self._refused = now
        self._failures += 1
        if self._version and self._failures == 1:
            log.info("the watch broke off", what=self.what, error=text)
        else:
            before, self._version = self.problem, ""
            since, was_denied = (before.since, before.denied) if before else (datetime.now(UTC), False)
            lasting = self._refused is not None and now - self._refused >= REFUSED_SECONDS
            self.problem = Problem(text, since, denied or was_denied, lasting)
            if self.problem != before:
                log.warning("not listed or watched", what=self.what, error=text)
                self._on_problem()
        return self._retry_delays[min(self._failures, len(self._retry_delays)) - 1]


def _key(body: Mapping[str, Any]) -> str:
    return f"{body['metadata'].get('namespace', '')}/{body['metadata']['name']}"
