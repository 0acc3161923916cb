"""What the answers of the API server mean: errors of calls, and why it refuses a pod. Pure.

Of a refused pod the fields of the Status decide: ``code``, ``reason``, ``details``. Admission plugins share one reason
(Forbidden) and differ only in the message. There the text counts that the plugin itself writes, at its fixed place
behind the prefix ``pods "NAME" is forbidden: ``, which ``details`` determine. So no name and no webhook's text is ever
searched.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from elastrain.api.printable import printable
from elastrain_operator.facts import JobRef, Refusal, RefusalKind
from elastrain_resource.reflector import GONE, CallError

_TRANSIENT = frozenset({429, 500, 502, 503, 504})
NO_ANSWER, CLOSED = "NoAnswer", "ConnectionClosed"
"""Reasons of an :class:`ApiError` with code 0: the call may have been executed."""


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
        return _seconds(self.details.get("retryAfterSeconds"))


class NotLeading(ApiError):
    """This process may not write, since another operator leads. A retry does not help."""

    def __init__(self, what: str) -> None:
        super().__init__(what, 0, "NotLeading", "this operator does not lead: its lease has ended")


def unreachable(what: str, error: Exception, seconds: float | None = None) -> ApiError:
    """The error of a call without an answer; ``seconds``: its time limit, if it had one."""
    if isinstance(error, TimeoutError) and seconds is not None:
        return ApiError(what, 0, NO_ANSWER, f"no answer from the API server within {seconds:.3g} s")
    if not isinstance(error, OSError) or error.errno in (errno.ECONNRESET, errno.EPIPE):
        return ApiError(what, 0, CLOSED, f"the API server, or a proxy, has closed the connection: {error}")
    return ApiError(what, 0, "Unreachable", str(error) or type(error).__name__)


def decoded(what: str, code: int, text: bytes) -> dict[str, Any]:
    """The JSON object of a successful answer. Raises :class:`ApiError` for anything else: a proxy's own page."""
    try:
        return dict(orjson.loads(text))
    except (ValueError, TypeError):
        quoted = text[:200].decode(errors="replace")
        raise ApiError(what, 0, "Unreadable", f"HTTP {code}, and no JSON object: {quoted}") from None


def error_of(what: str, code: int, text: bytes, retry_after: str = "") -> ApiError:
    """The error in an answer: a Status object; any other body (a proxy's page) is quoted. ``retry_after``: the header,
    in seconds, which counts if the object names none."""
    seconds = retry_after.isascii() and retry_after.isdigit() and retry_after[:9]
    details: dict[str, Any] = {"retryAfterSeconds": int(seconds)} if seconds else {}
    try:
        status = orjson.loads(text)
        details |= status.get("details") or {}
        reason, message = str(status.get("reason") or ""), str(status.get("message") or f"HTTP {code}")
    except (ValueError, AttributeError, TypeError):
        reason, message = "", f"HTTP {code}: {text[:200].decode(errors='replace')}"
    return ApiError(what, code, printable(reason), printable(message), details)


Status = Mapping[str, Any]
MOST_PATIENCE = 300.0
"""Most seconds that an answer (``retryAfterSeconds``, ``Retry-After``) makes its caller wait."""

_OF_A_QUOTA = re.compile(r"(exceeded|failed|status unknown for) quota: |insufficient quota ")
"""Beginning of the texts of the API server's own plugin."""
_DENIED = re.compile(r"""admission webhook "[^"]*" denied the request|policy '[^']*' with binding '[^']*' denied""")
_NO_DRY_RUN = re.compile(r'admission webhook "[^"]*" does not support dry run')
_FAILED = re.compile(r'failed calling webhook "[^"]*"')
_BUSY = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Refused:
    """The answer to one attempt to create a pod."""

    kind: RefusalKind
    message: str
    retry: float = 0.0
    """Seconds for which the API server asks for patience; 0: it names none."""

    def as_refusal(self, job: JobRef, attempts: int, now: datetime) -> Refusal:
        """The refusal of a job's pod, the ``attempts``-th in a row."""
        return Refusal(self.kind, self.message, now, attempts, job.generation, self.retry)


def refused(status: Status) -> Refused:
    """The refusal in ``status``, the API server's answer to the creation of a pod."""
    message, details = str(status.get("message") or f"HTTP {status.get('code')}"), _mapping(status.get("details"))
    kind = next(_kinds(status, message, details))
    text = message.removeprefix("Internal error occurred: ")
    if kind is RefusalKind.TEMPLATE_INVALID:
        text = f"spec.template: the API server refuses the pod: {text}"
    elif kind is RefusalKind.NAME_TAKEN:
        text = f"{text}, and belongs to another object: the next ordinal is tried"
    return Refused(kind, text, _seconds(details.get("retryAfterSeconds")))


def is_without_answer(status: Status) -> bool:
    """Whether ``status``, the answer to a dry run, leaves open if a pod is admitted: a webhook has no dry runs."""
    return status.get("reason") == "BadRequest" and bool(_NO_DRY_RUN.fullmatch(str(status.get("message"))))


def _kinds(status: Status, message: str, details: Status) -> Iterator[RefusalKind]:
    """The kinds that fit; the first one counts."""
    code, reason = status.get("code"), status.get("reason")
    causes = [_mapping(cause) for cause in details.get("causes") or ()]
    if _DENIED.match(message):  # first, since a webhook chooses code and reason of its denial
        yield RefusalKind.ADMISSION_DENIED
    if reason == "InternalError" and any(_FAILED.match(str(cause.get("message"))) for cause in causes):
        yield RefusalKind.WEBHOOK_FAILED
    if reason == "AlreadyExists" and details.get("kind", "pods") == "pods":
        yield RefusalKind.NAME_TAKEN
    if own := _text_of_a_plugin(message, details):
        yield RefusalKind.QUOTA_EXCEEDED if _OF_A_QUOTA.match(own) else RefusalKind.ADMISSION_DENIED
    if code == 403:  # without a pod's name: the authorizer, which runs before the pod is read
        yield RefusalKind.NOT_PERMITTED
    if code in {400, 422}:
        yield RefusalKind.TEMPLATE_INVALID
    if reason == "Conflict" or code in _BUSY:
        yield RefusalKind.BUSY
    yield RefusalKind.OTHER


def _text_of_a_plugin(message: str, details: Status) -> str:
    """The text of an admission plugin of the API server; empty if none wrote the message."""
    prefix = f'{details.get("kind")} "{details.get("name")}" is forbidden: '
    return message.removeprefix(prefix) if details.get("name") and message.startswith(prefix) else ""


def _mapping(value: Any) -> Status:
    return value if isinstance(value, Mapping) else {}


def _seconds(value: Any) -> float:
    """A wait that others ask for: webhooks and proxies do too, and may name any number."""
    return min(float(value), MOST_PATIENCE) if isinstance(value, (int, float)) and value > 0 else 0.0
