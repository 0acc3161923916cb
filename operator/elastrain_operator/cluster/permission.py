"""Asks the API server whether this operator may do something: a SelfSubjectAccessReview, which each user may create."""

from __future__ import annotations

from collections.abc import Mapping
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
