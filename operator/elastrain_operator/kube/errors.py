"""Errors of calls to the API server, made from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from elastrain.api.printable import printable
from elastrain.reflector import GONE, CallError

_TRANSIENT = frozenset({429, 500, 502, 503, 504})
NO_ANSWER = "NoAnswer"
"""Reason of an :class:`ApiError` with code 0: the call may have been executed."""


class ApiError(CallError):
    """The API server refused a call, or could not be reached (``code`` 0). ``message`` quotes it."""

    def __init__(
        self, what: str, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """``details``: those of the API server's Status object."""
        super().__init__(f"the API server refused to {what}: {message}" if code else f"cannot {what}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details: Mapping[str, Any] = details or {}
        self.denied = code in {401, 403}
        self.expired = code == GONE

    @property
    def is_transient(self) -> bool:
        return self.code == 0 or self.code in _TRANSIENT

    @property
    def status(self) -> dict[str, Any]:
        """The answer as a Status object."""
        return {"code": self.code, "reason": self.reason, "message": self.message, "details": self.details}

    @property
    def retry_after(self) -> float:
        """Seconds for which the API server asks for patience; 0: it names none."""
        seconds = self.details.get("retryAfterSeconds")
        return float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else 0.0


class NotLeading(ApiError):
    """This process may not write, since another operator leads. A retry does not help."""

    def __init__(self, what: str) -> None:
        super().__init__(what, 0, "NotLeading", "this operator does not lead: its lease has ended")


def unreachable(what: str, error: Exception, seconds: float | None = None) -> ApiError:
    """The error of a call without an answer; ``seconds``: its time limit, if it had one."""
    if isinstance(error, TimeoutError) and seconds is not None:
        return ApiError(what, 0, NO_ANSWER, f"no answer from the API server within {seconds:.3g} s")
    return ApiError(what, 0, "Unreachable", str(error) or type(error).__name__)


def decoded(what: str, code: int, text: bytes) -> dict[str, Any]:
    """The JSON object of a successful answer. Raises :class:`ApiError` for anything else: a proxy's own page."""
    try:
        return dict(orjson.loads(text))
    except (ValueError, TypeError):
        quoted = text[:200].decode(errors="replace")
        raise ApiError(what, 0, "Unreadable", f"HTTP {code}, and no JSON object: {quoted}") from None


def refusal(what: str, code: int, text: bytes, retry_after: str = "") -> ApiError:
    """The error in an answer: a Status object; any other body (a proxy's page) is quoted. ``retry_after``: the header,
    in seconds, which counts if the object names none."""
    details: dict[str, Any] = {"retryAfterSeconds": int(retry_after)} if retry_after.isdigit() else {}
    try:
        status = orjson.loads(text)
        details |= status.get("details") or {}
        reason, message = str(status.get("reason") or ""), str(status.get("message") or f"HTTP {code}")
    except (ValueError, AttributeError, TypeError):
        reason, message = "", f"HTTP {code}: {text[:200].decode(errors='replace')}"
    return ApiError(what, code, printable(reason), printable(message), details)
