"""Which calls to the API server are repeated at once, how often and after which wait."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from elastrain_operator.facts import RefusalKind
from elastrain_operator.kube.answers import NO_ANSWER, ApiError, NotLeading, refused

CALL_SECONDS = 25.0
"""Seconds for all attempts of a request."""
_ATTEMPTS = 4
FIRST_WAIT = 0.2
"""Seconds, at most; doubled with each attempt."""
_LONGEST_WAIT = 5.0
"""Seconds: if the API server asks for more patience than this, the caller decides when to repeat the call."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def answered(call: Callable[[], Awaitable[T]], seconds: float, trouble: str) -> T:
    """The result of ``call``, which a start needs: repeated each second for ``seconds``. Every failure is logged as
    ``trouble``. Raises the last :class:`ApiError`."""
    began = time.monotonic()
    while True:
        try:
            return await call()
        except ApiError as error:
            if time.monotonic() - began >= seconds:
                raise
            log.warning(trouble, error=str(error))
        await asyncio.sleep(1.0)


async def repeated(attempt: Callable[[], Awaitable[T]], is_worth: Callable[[ApiError], bool]) -> T:
    """The result of the first attempt that succeeds. Raises the last :class:`ApiError`."""
    began = time.monotonic()
    for number in range(1, _ATTEMPTS):
        try:
            return await attempt()
        except ApiError as error:
            if not is_worth(error) or time.monotonic() - began >= CALL_SECONDS:
                raise
            wait = max(random.uniform(0.0, FIRST_WAIT * 2 ** (number - 1)), error.retry_after)  # noqa: S311 - spreads calls in time
        await asyncio.sleep(wait)
    return await attempt()


def is_worth_repeating(error: ApiError) -> bool:
    """Whether any call that failed so is repeated at once."""
    return not isinstance(error, NotLeading) and error.is_transient and error.retry_after <= _LONGEST_WAIT


def is_creation_worth_repeating(error: ApiError) -> bool:
    """Whether the creation of a pod that failed so is repeated at once: races of quotas too, failing webhooks not."""
    if error.reason == NO_ANSWER:
        return False
    if error.code == 0:
        return is_worth_repeating(error)
    return refused(error.status).kind is RefusalKind.BUSY and error.retry_after <= _LONGEST_WAIT
