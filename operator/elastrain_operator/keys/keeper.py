"""Creates the keys of the chart's etcd in Secrets, and renews the certificates in time: the only writer of them.

The CA keeps its key. Its certificate is renewed for the same key and name, so clients and members with either of the
two certificates trust what both have signed: nothing restarts, and no order of steps matters.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog

from elastrain_operator import clock
from elastrain_operator.keys import certificates
from elastrain_operator.keys.certificates import AUTHORITY_DAYS, CertificateFacts, Pair
from elastrain_operator.kube.client import ApiError, Kube

DAY = 86400.0
RENEWAL = 90 * DAY
"""Age in seconds at which etcd's certificate is replaced."""
AUTHORITY_RENEWAL = AUTHORITY_DAYS / 2 * DAY
"""Age in seconds at which the certificate of the CA is renewed."""
LOOK = 60.0
"""Seconds between two looks if nothing is due."""
REQUEST_SECONDS = 10.0
"""For one request: a single attempt."""

# Entries of the Secret of the CA, which no pod mounts, and of the one that etcd and its clients mount.
CA, CA_KEY = "ca.crt", "ca.key"
TRUSTED, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
log = structlog.get_logger(__name__)


class MissingSecret(Exception):
    """The chart has not created a Secret that is to be filled."""


# ---- the decision, pure ----------------------------------------------------------------------------------------------
class KeyAct(StrEnum):
    """A single change. The keeper executes it, reads the Secrets again, and decides about the next one."""

    CREATE = "create a CA"
    RENEW = "renew the certificate of the CA, for the same key"
    ISSUE = "issue a certificate"
    TRUST = "write the CA that clients trust"


@dataclass(frozen=True, slots=True)
class Keys:
    """Content of the Secrets."""

    authority: CertificateFacts | None = None
    certificate: CertificateFacts | None = None
    is_issued: bool = False
    """The CA's key has signed the certificate."""
    trusted: frozenset[str] = frozenset()
    """Fingerprints in the file of clients and members."""


def next_act(keys: Keys, hosts: frozenset[str], now: float) -> tuple[KeyAct, str] | None:
    """The next act and its reason; None: nothing is due. ``now``: Unix time."""
    if keys.authority is None:
        return KeyAct.CREATE, "there is no CA"
    return next(_due(keys, keys.authority, keys.certificate, hosts, now), None)


def _due(
    keys: Keys, authority: CertificateFacts, certificate: CertificateFacts | None, hosts: frozenset[str], now: float
) -> Iterator[tuple[KeyAct, str]]:
    """All acts that are due, the first one first."""
    if now - authority.begins >= AUTHORITY_RENEWAL:
        yield KeyAct.RENEW, "it has reached half of its life"
    if certificate is None:
        yield KeyAct.ISSUE, "there is no certificate"
        return
    if keys.trusted != {authority.fingerprint}:
        yield KeyAct.TRUST, "clients trust another certificate"
    if not keys.is_issued:
        yield KeyAct.ISSUE, "another CA has signed it"
    if certificate.hosts != hosts:
        yield KeyAct.ISSUE, "etcd has other names"
    if now - certificate.begins >= RENEWAL:
        yield KeyAct.ISSUE, f"it is {RENEWAL / DAY:.0f} days old"


# ---- its execution ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret as it was read. ``body`` has its ``resourceVersion``, so that a write replaces this state only."""

    data: Mapping[str, bytes]
    body: Mapping[str, Any]


class KeySecrets:
    """Named Secrets of one namespace. Each call may raise ``ApiError``; the caller looks again a minute later."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self._kube = kube
        self._base = f"/api/v1/namespaces/{namespace}/secrets"

    async def secret(self, name: str) -> Secret | None:
        """None: the API server reports that it does not exist."""
        try:
            body = await self._kube.once("GET", f"{self._base}/{name}", f"read Secret {name}", None, REQUEST_SECONDS)
        except ApiError as error:
            if error.code == 404:
                return None
            raise
        data = {key: base64.b64decode(value) for key, value in (body.get("data") or {}).items()}
        return Secret(data, body)

    async def replace(self, former: Secret, data: Mapping[str, bytes]) -> None:
        """Code 409: the Secret has changed since it was read."""
        name = former.body["metadata"]["name"]
        body = {**former.body, "data": {key: base64.b64encode(value).decode() for key, value in data.items()}}
        path, what = f"{self._base}/{name}", f"write Secret {name}"
        await self._kube.once("PUT", path, what, body, REQUEST_SECONDS)


@dataclass(frozen=True, slots=True)
class Names:
    """Of the objects in the cluster. Empty: that part is not wanted."""

    etcd: str
    authority: str = ""
    server: str = ""
    root: str = ""


class Keeper:
    """Keeps the Secrets as they should be, by one act at a time."""

    def __init__(self, secrets: KeySecrets, names: Names, hosts: frozenset[str]) -> None:
        """``hosts``: names and addresses of etcd."""
        self._secrets, self._names, self._hosts = secrets, names, hosts

    async def step(self) -> float:
        """Execute one act. Returns the seconds until the next one.

        Raises ``ApiError``, ``MissingSecret`` if the chart's objects are not there, and ``ValueError`` if an entry of a
        Secret is no key or certificate. Then nothing has changed.
        """
        if self._names.root:
            await self._fill_root(await self._of(self._names.root))
        if not self._names.authority:
            return 3600.0
        authority, server = await self._of(self._names.authority), await self._of(self._names.server)
        now = clock.now()
        due = next_act(read(authority, server), self._hosts, now.timestamp())
        if due is None:
            return LOOK
        act, why = due
        log.info("keys of etcd: " + act, reason=why)
        if act in (KeyAct.ISSUE, KeyAct.TRUST):
            await self._write_server(act, authority, server, now)
        else:
            await self._write_authority(act, authority, now)
        return 0.0

    async def _of(self, name: str) -> Secret:
        found = await self._secrets.secret(name)
        if found is None:
            raise MissingSecret(f"Secret {name} does not exist: `helm upgrade` creates it")
        return found

    async def _fill_root(self, root: Secret) -> None:
        """The password of etcd's user root and the key of jobs' passwords, once: they are never replaced."""
        if missing := {"password", "job-key"} - root.data.keys():
            made = {entry: secrets.token_hex(32).encode() for entry in missing}
            await self._secrets.replace(root, {**root.data, **made})
            log.info("keys of etcd: passwords created")

    async def _write_authority(self, act: KeyAct, authority: Secret, now: datetime) -> None:
        if act is KeyAct.RENEW:
            made = certificates.renewed(Pair(authority.data[CA], authority.data[CA_KEY]), now)
        else:
            made = certificates.new_authority(f"{self._names.etcd}-ca", now)
        await self._secrets.replace(authority, {**authority.data, CA: made.certificate, CA_KEY: made.key})

    async def _write_server(self, act: KeyAct, authority: Secret, server: Secret, now: datetime) -> None:
        data = {**server.data, TRUSTED: authority.data[CA]}
        if act is KeyAct.ISSUE:
            signer = Pair(authority.data[CA], authority.data[CA_KEY])
            made = certificates.issue(self._names.etcd, self._hosts, signer, now)
            data |= {CERTIFICATE: made.certificate, KEY: made.key}
        await self._secrets.replace(server, data)


def read(authority: Secret, server: Secret) -> Keys:
    """What the Secrets hold. Raises ``ValueError`` if an entry is not what its name says."""
    ca, certificate = authority.data.get(CA), server.data.get(CERTIFICATE)
    return Keys(
        authority=None if ca is None else certificates.facts(ca),
        certificate=None if certificate is None else certificates.facts(certificate),
        is_issued=ca is not None and certificate is not None and certificates.has_issued(ca, certificate),
        trusted=frozenset(certificates.fingerprints(server.data.get(TRUSTED, b""))),
    )
