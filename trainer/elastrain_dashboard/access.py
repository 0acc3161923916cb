"""Who sees what on a dashboard in the cluster: users log in with a token of the API server, and see the namespaces in
which they may list jobs, pods and events themselves.

The API server decides, by TokenReview and SubjectAccessReview. Its answers are kept for a short time.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastrain.api import names

REVIEW_SECONDS = 60.0
"""Seconds for which an answer of the API server counts: a revoked right or token ends within this time."""
MOST_SESSIONS = 1000
"""Logged-in browsers; the oldest one is logged out by the next."""
AT_ONCE = 16
"""Concurrent reviews."""
REVIEW_PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("authentication.k8s.io", "tokenreviews"): ("create",),
    ("authorization.k8s.io", "subjectaccessreviews"): ("create",),
}
"""(API group, resource) -> verbs for this, in the whole cluster. A test compares the chart's ClusterRole with it."""
NEEDED = ((names.GROUP, names.PLURAL), ("", "pods"), ("", "events"))
"""What a user must be able to list in a namespace to see it: its page shows all three."""


@dataclass(frozen=True, slots=True)
class View:
    """What one user sees. Equal views share their messages."""

    namespaces: frozenset[str] | None = None
    """None: all namespaces."""
    nodes: bool = True
    """Whether nodes are shown."""

    def sees(self, key: str) -> bool:
        """Whether a job (``namespace/name``) is shown."""
        return self.namespaces is None or key.partition("/")[0] in self.namespaces


EVERYTHING = View()


@dataclass(frozen=True, slots=True)
class User:
    """A user, as the API server knows it."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Api(Protocol):
    """The part of :class:`elastrain_cli.client.connection.Connection` that is used."""

    async def call(self, method: str, path: str, what: str, *, body: Any = None) -> dict[str, Any]: ...


class Guard:
    """Logs users in and answers what they see. Use from one event loop. Calls may raise ``ClusterError``."""

    def __init__(self, api: Api, namespaces: Callable[[], Iterable[str]], clock: Callable[[], float]) -> None:
        """``namespaces``: those with jobs now; ``clock``: monotonic seconds."""
        self._api, self._namespaces, self._clock = api, namespaces, clock
        self._sessions: dict[str, str] = {}  # session -> token, oldest first
        self._users: dict[bytes, tuple[User | None, float]] = {}
        self._answers: dict[tuple[User, str, str, str], tuple[bool, float]] = {}
        self._limit = asyncio.Semaphore(AT_ONCE)

    # ---- users -------------------------------------------------------------------------------------------------------
    async def log_in(self, token: str) -> str | None:
        """A new session; None: the API server does not know the token."""
        if await self.user(token) is None:
            return None
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        session = secrets.token_urlsafe(32)
        self._sessions[session] = token
        return session

    def log_out(self, session: str) -> None:
        self._sessions.pop(session, None)

    def token_of(self, session: str) -> str:
        """The token of a session; empty: there is no such session."""
        return self._sessions.get(session, "")

    async def user(self, token: str) -> User | None:
        """The user of a token; None: it is not valid (any more)."""
        key = hashlib.sha256(token.encode()).digest()
        known = self._users.get(key)
        if known is None or self._is_old(known[1]):
            self._forget()
            known = self._users[key] = (await self._review(token), self._clock())
        return known[0]

    async def _review(self, token: str) -> User | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        async with self._limit:
            answer = await self._api.call(
                "POST", "/apis/authentication.k8s.io/v1/tokenreviews", "review a token", body=body
            )
        status = answer.get("status") or {}
        found = status.get("user") or {}
        if not status.get("authenticated") or not found.get("username"):
            return None
        extra = tuple(sorted((k, tuple(v)) for k, v in (found.get("extra") or {}).items()))
        return User(found["username"], found.get("uid", ""), tuple(found.get("groups") or ()), extra)

    # ---- rights ------------------------------------------------------------------------------------------------------
    async def view(self, user: User) -> View:
        """What a user sees now."""
        everywhere, nodes = await asyncio.gather(self._sees(user, ""), self._may(user, "", "nodes", ""))
        if everywhere:
            return View(None, nodes)
        asked = sorted(set(self._namespaces()))
        seen = await asyncio.gather(*(self._sees(user, namespace) for namespace in asked))
        return View(frozenset(n for n, allowed in zip(asked, seen, strict=True) if allowed), nodes)

    async def _sees(self, user: User, namespace: str) -> bool:
        for group, resource in NEEDED:
            if not await self._may(user, group, resource, namespace):
                return False
        return True

    async def _may(self, user: User, group: str, resource: str, namespace: str) -> bool:
        """Whether a user may list a resource in a namespace; empty: in all of them."""
        key = (user, group, resource, namespace)
        known = self._answers.get(key)
        if known is None or self._is_old(known[1]):
            known = self._answers[key] = (await self._ask(*key), self._clock())
        return known[0]

    async def _ask(self, user: User, group: str, resource: str, namespace: str) -> bool:
        wanted = {"verb": "list", "group": group, "resource": resource, "namespace": namespace}
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes": wanted,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        async with self._limit:
            answer = await self._api.call(
                "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "review a user's rights", body=body
            )
        return bool((answer.get("status") or {}).get("allowed"))

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _is_old(self, since: float) -> bool:
        return self._clock() - since > REVIEW_SECONDS

    def _forget(self) -> None:
        """Drop old answers, so that memory follows the present users."""
        self._users = {key: known for key, known in self._users.items() if not self._is_old(known[1])}
        self._answers = {key: known for key, known in self._answers.items() if not self._is_old(known[1])}
