"""Keeps one resource of the API server in memory by a list and a watch. One feed serves all browsers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import structlog

from elastrain.client import ClusterError, NotAllowed
from elastrain.dashboard.reading import Reader

RETRY_DELAYS = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until the next attempt, by number of failures in a row."""
WATCH_SECONDS = 60
"""Seconds after which the API server ends a watch and the feed resumes it: this detects a silently dead watch."""
SILENT_SECONDS = WATCH_SECONDS + 15
RESUME_SECONDS = 0.2

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of a feed."""

    path: str
    what: str
    """The plural for messages: ``jobs``, ``pods of namespace research``."""
    query: Mapping[str, str] = field(default_factory=dict)
    """Selectors."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the feed's data may be stale."""

    what: str
    text: str
    since: datetime
    denied: bool
    """A permission is missing: waiting does not help."""


class Feed(Generic[T]):
    """The API server's objects of one resource. The last known state remains during an outage."""

    def __init__(
        self,
        reader: Reader,
        resource: Resource,
        *,
        parse: Callable[[Mapping[str, Any]], tuple[str, T] | None],
        on_change: Callable[[str, T | None, T | None], None],
        retry_delays: tuple[float, ...] = RETRY_DELAYS,
    ) -> None:
        """``parse``: key and value of an object; None: ignore it. ``on_change(key, before, after)``."""
        self.values: dict[str, T] = {}
        self.resource = resource
        self.problem: Problem | None = None
        self.listed = False
        """Whether a list was ever complete."""
        self._reader = reader
        self._parse = parse
        self._on_change = on_change
        self._retry_delays = retry_delays
        self._version = ""  # the version to resume from; empty: list first
        self._failures = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                delay = RESUME_SECONDS
            except ClusterError as error:
                delay = self._failed(str(error), denied=isinstance(error, NotAllowed))
            except Exception as error:
                # A malformed answer, or an object too large for a line of a watch: a list can still read it. A bug here
                # must neither end the watch for good nor go unnoticed.
                log.exception("the watch failed", what=self.resource.what)
                delay = self._failed(f"cannot read {self.resource.what}: {error!r}", denied=False)
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        found: dict[str, T] = {}
        version, what = "", f"list {self.resource.what}"
        pages = self._reader.pages(self.resource.path, what, self.resource.query)
        async for items, at in pages:
            version = at
            found.update(parsed for body in items if (parsed := self._parse(body)))
            await asyncio.sleep(0)  # a large cluster's list must not block the page
        for key in self.values.keys() - found.keys():
            self._put(key, None)
        for key, value in found.items():
            self._put(key, value)
        if self.problem:
            log.info("known again", what=self.resource.what)
        self.listed, self.problem, self._failures, self._version = True, None, 0, version

    async def _follow(self) -> None:
        query = {
            **self.resource.query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }  # fmt: skip
        what = f"watch {self.resource.what}"
        try:
            async with asyncio.timeout(SILENT_SECONDS):
                async with contextlib.aclosing(self._reader.changes(self.resource.path, what, query)) as changes:  # type: ignore[type-var]
                    async for change in changes:
                        if change["type"] == "ERROR":  # the server's history starts after the version
                            self._version = ""
                            return
                        self._take(change)
        except TimeoutError:
            raise ClusterError(f"cannot {what}: no answer for {SILENT_SECONDS} s") from None

    def _take(self, change: Mapping[str, Any]) -> None:
        body = change["object"]
        self._version = str(body["metadata"]["resourceVersion"])
        if change["type"] == "BOOKMARK":
            return
        if parsed := self._parse(body):
            key, value = parsed
            self._put(key, None if change["type"] == "DELETED" else value)

    def _put(self, key: str, value: T | None) -> None:
        before = self.values.get(key)
        if before == value:
            return
        if value is None:
            del self.values[key]
        else:
            self.values[key] = value
        self._on_change(key, before, value)

    def _failed(self, text: str, *, denied: bool) -> float:
        """Seconds until the next attempt, which begins with a list and so includes the missed changes."""
        if self.problem is None:
            log.warning("not known", what=self.resource.what, error=text)
        since = self.problem.since if self.problem else datetime.now(UTC)
        self.problem = Problem(self.resource.what, text, since, denied)
        self._version = ""
        self._failures += 1
        return self._retry_delays[min(self._failures, len(self._retry_delays)) - 1]
