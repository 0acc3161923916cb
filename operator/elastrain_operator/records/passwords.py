"""A job's etcd user and password, and when the user or the job's Secret must be written. Pure.

Passwords are derived (HMAC-SHA256, RFC 2104) from a key that only the operator has. It can therefore derive the same
password after a crash or after etcd lost its users, without permission to read Secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from elastrain.api.keys import JobKeys
from elastrain.api.records import Issued
from elastrain_operator.config import COMMON_NAME
from elastrain_operator.facts import Pod

PATIENCE = timedelta(seconds=30)
"""Time on a node after which a worker that has not started may lack its Secret; images may take longer."""
_PREFIX = "elastrain/"


@dataclass(frozen=True, slots=True)
class Due:
    """What must be written now."""

    user: bool = False
    """The etcd user and its permissions."""
    secret: bool = False
    """The Secret in the job's namespace."""


def due(issued: Issued | None, wanted: Issued, *, creating: bool, live: bool, doubted: bool) -> Due:
    """``issued``: the record in etcd (None: none). ``creating``: pods are about to be created. ``live``: pods exist.
    ``doubted``: this operator has not written the Secret, or workers have waited long since."""
    if not (creating or live):
        return Due()
    if issued is None or issued.key != wanted.key:
        return Due(user=True, secret=True)
    # If the Secret was deleted, pods would wait for it forever.
    return Due(secret=doubted or issued != wanted)


def wait_long(pods: Iterable[Pod], now: datetime) -> bool:
    """Whether a worker that has a node does not start, as if the Secret that it mounts were gone."""
    return any(p.bound and not p.started and not p.ending and now - p.bound >= PATIENCE for p in pods)


def fingerprint(ca: bytes, key: bytes, cluster: str = COMMON_NAME) -> Issued:
    """The record of the CA certificates that workers received, and of the key and the cluster's name from which their
    user and password are derived."""
    origin = b"name of this key" + (b"" if cluster == COMMON_NAME else b" " + cluster.encode())
    return Issued(ca=hashlib.sha256(ca).hexdigest(), key=hmac.digest(key, origin, "sha256").hex()[:16])


def user(cluster: str, keys: JobKeys) -> str:
    """Name of a job's user. The UID distinguishes it from an earlier job of the same name."""
    return f"{_PREFIX}{cluster}/{keys.namespace}/{keys.job}/{keys.uid}"


def owner(cluster: str, name: str) -> JobKeys | None:
    """The job of a user that this cluster's operator created; None: another user."""
    head, _, tail = name.partition(f"{_PREFIX}{cluster}/")
    parts = tail.split("/")
    return None if head or len(parts) != 3 or not all(parts) else JobKeys(*parts)


def password(key: bytes, keys: JobKeys) -> str:
    """Password of a job's user: 256 bits that cannot be computed without the key.

    It does not depend on the cluster's name: workers that run while that is changed log in as the former user with the
    password of the new one.
    """
    name = user(COMMON_NAME, keys)
    return base64.urlsafe_b64encode(hmac.digest(key, name.encode(), "sha256")).decode().rstrip("=")
