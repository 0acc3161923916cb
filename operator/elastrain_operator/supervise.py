"""Tasks that live as long as the operator: one that raises, or ends, is logged, counted, shown and begun again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from elastrain_operator.metrics import process as metrics

AGAIN = 5.0
"""Seconds between the failure of a task and its next beginning."""
SHOWN = 60.0
"""Seconds for which the health endpoint shows a failure."""

log = structlog.get_logger(__name__)


class Tasks:
    """Supervised tasks of one event loop. No failure of one of them ends another one, or the operator."""

    def __init__(self, again: float = AGAIN) -> None:
        self._again = again
        self._failures: dict[str, tuple[float, str]] = {}

    def start(self, name: str, run: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Call ``run`` and await it, again and again until the task is cancelled. It must bear a new beginning."""
        return asyncio.create_task(self._supervised(name, run), name=name)

    def failures(self) -> dict[str, str]:
        """Tasks that have failed within the last minute, and how; for the health endpoint."""
        now = asyncio.get_running_loop().time()
        return {name: text for name, (at, text) in self._failures.items() if now - at < SHOWN}

    async def _supervised(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
                error: Exception = RuntimeError("it has ended")
            except Exception as raised:  # a bug, or an answer that nothing expects
                error = raised
            log.error("a task of the operator failed", task=name, retry_s=self._again, exc_info=error)
            metrics.ERRORS.labels("operator").inc()
            self._failures[name] = (asyncio.get_running_loop().time(), f"{type(error).__name__}: {error}")
            await asyncio.sleep(self._again)
