"""Which calls to the API server are repeated at once, how often and after which wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
    wait_random_exponential,
)

from elastrain_operator.facts import RefusalKind
from elastrain_operator.kube.answers import NO_ANSWER, ApiError, NotLeading, refused

CALL_SECONDS = 25.0
"""Seconds for all attempts of a request."""
_ATTEMPTS = 4
_LONGEST_WAIT = 5.0
"""Seconds: if the API server asks for more patience than this, the caller decides when to repeat the call."""

T = TypeVar("T")

log = structlog.get_logger(__name__)


async def answered(call: Callable[[], Awaitable[T]], seconds: float, trouble: str) -> T:
    """The result of ``call``, which a start needs: repeated each second for ``seconds``. Every failure is logged as
    ``trouble``. Raises the last :class:`ApiError`."""

    def log_failure(state: RetryCallState) -> None:
        log.warning(trouble, error=str(state.outcome and state.outcome.exception()))

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(ApiError),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(1.0),
        before_sleep=log_failure,
        reraise=True,
    )
    return await retrying(call)


async def repeated(attempt: Callable[[], Awaitable[T]], is_worth: Callable[[BaseException], bool]) -> T:
    """The result of the first attempt that succeeds. Raises the last :class:`ApiError`."""
    try:
        return await attempt()
    except ApiError as error:
        if not is_worth(error):
            raise
        failed = error
    return await _again(attempt, failed, is_worth)


async def _again(attempt: Callable[[], Awaitable[T]], failed: ApiError, is_worth: Callable[[BaseException], bool]) -> T:
    """The attempts after the first one, which has ``failed``. (Separate, since tenacity's bookkeeping takes as long as
    a request.)"""
    pending: list[ApiError] = [failed]

    async def next_one() -> T:
        if pending:
            raise pending.pop()
        return await attempt()

    retrying = AsyncRetrying(
        retry=retry_if_exception(is_worth),
        stop=stop_after_attempt(_ATTEMPTS) | stop_after_delay(CALL_SECONDS),
        wait=_patience(wait_random_exponential(multiplier=0.2, max=5)),
        reraise=True,
    )
    return await retrying(next_one)


def is_worth_repeating(error: BaseException) -> bool:
    """Whether any call that failed so is repeated at once."""
    if not isinstance(error, ApiError) or isinstance(error, NotLeading):
        return False
    return error.is_transient and error.retry_after <= _LONGEST_WAIT


def is_creation_worth_repeating(error: BaseException) -> bool:
    """Whether the creation of a pod that failed so is repeated at once: races of quotas too, failing webhooks not."""
    if not isinstance(error, ApiError) or error.reason == NO_ANSWER:
        return False
    if error.code == 0:
        return is_worth_repeating(error)
    return refused(error.status).kind is RefusalKind.BUSY and error.retry_after <= _LONGEST_WAIT


def _patience(base: Callable[[RetryCallState], float]) -> Callable[[RetryCallState], float]:
    """A wait of at least the time that the API server has asked for."""

    def wait(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return max(base(state), error.retry_after if isinstance(error, ApiError) else 0.0)

    return wait
