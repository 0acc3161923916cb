"""Whether the API server refuses a list for good: its own reviews of the operator's rights, over a minute.

A single 401 or 403 proves nothing: tokens and role bindings are replaced, and an API server that starts knows no roles
yet. A SelfSubjectAccessReview, which each user may create, counts only if all answers within a minute agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from elastrain_operator.kube.client import ApiError

PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SECONDS = 10.0
"""Seconds for one review."""


class Right(NamedTuple):
    """A verb on a cluster-wide resource."""

    verb: str
    group: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f" of {self.group}" if self.group else "")


class Once(Protocol):
    """The part of :class:`elastrain_operator.kube.client.Kube` that is used."""

    async def once(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None, seconds: float
    ) -> dict[str, Any]: ...


async def is_allowed(kube: Once, right: Right) -> bool:
    """The API server's answer. Raises ``ApiError`` if there is none, or if an authorizer could not evaluate it."""
    what = f"review whether this operator may {right}"
    attributes = {"verb": right.verb, "group": right.group, "resource": right.resource}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    status = (await kube.once("POST", PATH, what, review, SECONDS)).get("status") or {}
    if status.get("allowed"):
        return True
    if error := status.get("evaluationError"):
        raise ApiError(what, 0, "EvaluationError", str(error))
    return False


CONFIRM_SECONDS = 60.0
"""Seconds over which reviews must agree that a right is missing."""
ASK_SECONDS = 10.0
"""Seconds between two reviews."""


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of one right so far."""

    since: float | None = None
    """When the first of consecutive reviews found the right missing (seconds of a monotonic clock); None: none did."""
    last: float = 0.0
    """When the newest one did."""

    def after(self, allowed: bool | None, now: float) -> Reviews:
        """After another review at ``now``; ``allowed`` None: it was not answered, which ends the agreement."""
        if allowed is not False:
            return Reviews()
        return Reviews(now if self.since is None else self.since, now)

    @property
    def confirmed(self) -> bool:
        """The right is missing."""
        return self.since is not None and self.last - self.since >= CONFIRM_SECONDS
