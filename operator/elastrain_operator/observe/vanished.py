"""Finds jobs and worker pods that were deleted while their watch was interrupted.

kopf lists a resource anew when the API server's history does not reach back far enough (410 Gone). It reports each
object of the new list, and no deletion for an object that is missing from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from elastrain_operator.kube.client import ApiError
from elastrain_operator.waiting import until

SETTLE = 2.0
"""Seconds between the first object of a list and the search: the list is complete by then, or is searched again."""
REST = 10.0
"""Least seconds between two searches."""

log = structlog.get_logger(__name__)


class Source(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def uids(self, path: str, what: str, query: Mapping[str, str]) -> set[str]: ...


@dataclass(frozen=True)
class Kind:
    """One watched resource."""

    what: str
    """Its plural, for messages."""
    paths: tuple[str, ...]
    """API paths of its lists: one for each namespace, or one for all."""
    known: Callable[[], Iterable[str]]
    """UIDs that the operator believes to exist."""
    forget: Callable[[str], None]
    """Called with each UID that does not exist."""
    query: Mapping[str, str] = field(default_factory=dict)


class Search:
    """Compares the known objects with lists of the API server: after each list by kopf, and at intervals."""

    def __init__(self, source: Source, kinds: tuple[Kind, ...], interval: float) -> None:
        """``interval``: seconds between two searches without a list by kopf."""
        self._source = source
        self._kinds = kinds
        self._interval = interval
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """kopf has listed something."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await until(self._nudged, self._interval)
            await asyncio.sleep(SETTLE)
            self._nudged.clear()
            try:
                await self.search()
            except ApiError as error:
                log.warning("deleted objects not searched for", error=str(error))
                self._nudged.set()
            await asyncio.sleep(REST)

    async def search(self) -> None:
        """Forget all known objects that no longer exist in the API server. Raises ``ApiError``; then none is forgotten.

        A UID that is known before the list starts and missing from it is gone: UIDs are never reused.
        """
        for kind in self._kinds:
            known = frozenset(kind.known())
            for path in kind.paths:
                known -= await self._source.uids(path, f"list {kind.what}", kind.query)
            for uid in known:
                log.info("deleted while the watch was interrupted", of=kind.what, uid=uid)
                kind.forget(uid)
