"""Executes the decisions about the keys of etcd: the only writer of the Secrets with them."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

import structlog

from elastrain_operator import clock
from elastrain_operator.keys import certificates
from elastrain_operator.keys.certificates import Pair
from elastrain_operator.keys.decide import Act, Authority, Certificate, Decision, Keys, Member, Wanted, decide
from elastrain_operator.keys.secrets import KeySecrets, Secret

# Entries of the Secret of the CA, which no pod mounts, and of the one that etcd and its clients mount.
CA, CA_KEY, NEXT, NEXT_KEY, FORMER = "ca.crt", "ca.key", "next.crt", "next.key", "former.crt"
TRUSTED, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
# Annotations of them.
MADE_FOR, OF_RELEASE = "elastrain.dev/renew", "elastrain.dev/of-release"
CHANGED, UNAWARE = "elastrain.dev/changed", "elastrain.dev/unaware"

log = structlog.get_logger(__name__)


class MissingSecret(Exception):
    """The chart has not created a Secret that is to be filled."""


@dataclass(frozen=True, slots=True)
class Names:
    """Of the objects in the cluster. Empty: that part is not wanted."""

    etcd: str
    authority: str = ""
    server: str = ""
    root: str = ""
    older: str = ""
    """The Secret in which older charts have left the CA."""


class Keeper:
    """Keeps the Secrets as they should be, by one act at a time."""

    def __init__(self, cluster: KeySecrets, names: Names, wanted: Wanted) -> None:
        self._cluster, self._names, self._wanted = cluster, names, wanted
        self._waits_for = ""

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
        older = await self._older() if CA not in authority.data else None
        members = await self._members()
        found = read(authority, server, older)
        now = clock.now()
        decision = decide(found, members, self._wanted, now.timestamp())
        if decision.act is Act.WAIT:
            self._log_wait(decision)
            return decision.seconds
        self._waits_for = ""
        log.info("keys of etcd: " + decision.act, reason=decision.why)
        if decision.act is Act.EVICT:
            assert decision.member is not None, "a decision to restart names the pod"
            await self._cluster.evict(decision.member)
            return 5.0
        if decision.act in (Act.ISSUE, Act.TRUST):
            notes = {CHANGED: f"{now.timestamp():.0f}"}
            if found.successor is not None and found.successor.fingerprint not in found.trusted:
                notes[UNAWARE] = ",".join(m.uid for m in members)
            await self._write_server(decision, authority, server, notes)
        else:
            await self._write_authority(decision, authority, older, now)
        return 0.0

    async def _of(self, name: str) -> Secret:
        found = await self._cluster.secret(name)
        if found is None:
            raise MissingSecret(f"Secret {name} does not exist: `helm upgrade` creates it")
        return found

    async def _older(self) -> Pair | None:
        found = await self._cluster.secret(self._names.older)
        if found is None or not {"tls.crt", "tls.key"} <= found.data.keys():
            return None
        return Pair(found.data["tls.crt"], found.data["tls.key"])

    async def _members(self) -> tuple[Member, ...]:
        """A single member has no peers that would have to trust it."""
        count = self._wanted.members
        return await self._cluster.members(f"{self._names.etcd}-{n}" for n in range(count)) if count > 1 else ()

    async def _fill_root(self, root: Secret) -> None:
        """The password of etcd's user root and the key of jobs' passwords, once: they are never replaced."""
        if missing := {"password", "job-key"} - root.data.keys():
            made = {entry: secrets.token_hex(32).encode() for entry in missing}
            await self._cluster.replace(root, {**root.data, **made}, {})
            log.info("keys of etcd: passwords created")

    async def _write_authority(self, decision: Decision, authority: Secret, older: Pair | None, now: datetime) -> None:
        data = dict(authority.data)
        notes = {MADE_FOR: self._wanted.request}
        if decision.act is Act.ADOPT:
            assert older is not None, "an adopted CA has been read"
            data |= {CA: older.certificate, CA_KEY: older.key}
            notes[OF_RELEASE] = "true"
        elif decision.act is Act.FORGET:
            del data[FORMER]
            notes = {}
        elif decision.act is Act.PROMOTE:
            data |= {FORMER: data[CA], CA: data.pop(NEXT), CA_KEY: data.pop(NEXT_KEY)}
            notes = {OF_RELEASE: ""}
        else:
            made = certificates.new_authority(f"{self._names.etcd}-ca", now)
            entries = (CA, CA_KEY) if decision.act is Act.CREATE else (NEXT, NEXT_KEY)
            data |= dict(zip(entries, (made.certificate, made.key), strict=True))
        await self._cluster.replace(authority, data, notes)

    async def _write_server(self, decision: Decision, authority: Secret, server: Secret, notes: dict[str, str]) -> None:
        data = dict(server.data)
        data[TRUSTED] = b"".join(authority.data[entry] for entry in (CA, NEXT, FORMER) if entry in authority.data)
        if decision.act is Act.ISSUE:
            signer = Pair(authority.data[CA], authority.data[CA_KEY])
            made = certificates.issue(self._names.etcd, self._wanted.hosts, signer, clock.now())
            data |= {CERTIFICATE: made.certificate, KEY: made.key}
        await self._cluster.replace(server, data, notes)

    def _log_wait(self, decision: Decision) -> None:
        waits_for = "" if decision.seconds and decision.why.endswith("s are left") else decision.why
        if waits_for != self._waits_for:
            log.info("keys of etcd: wait", reason=decision.why)
        self._waits_for = waits_for


def read(authority: Secret, server: Secret, older: Pair | None = None) -> Keys:
    """What the Secrets hold. Raises ``ValueError`` if an entry is not what its name says."""
    notes = authority.annotations
    certificate = server.data.get(CERTIFICATE)
    return Keys(
        _authority(authority.data.get(CA), notes.get(OF_RELEASE) == "true"),
        _authority(authority.data.get(NEXT)),
        frozenset(certificates.split(authority.data.get(FORMER, b""))),
        notes.get(MADE_FOR, ""),
        older is not None,
        None if certificate is None else _certificate(certificate, authority),
        frozenset(certificates.split(server.data.get(TRUSTED, b""))),
        float(server.annotations.get(CHANGED) or 0),
        frozenset(filter(None, server.annotations.get(UNAWARE, "").split(","))),
    )


def _authority(pem: bytes | None, of_release: bool = False) -> Authority | None:
    if pem is None:
        return None
    found = certificates.facts(pem)
    return Authority(found.fingerprint, found.begins, of_release)


def _certificate(pem: bytes, authority: Secret) -> Certificate:
    found = certificates.facts(pem)
    known = [authority.data[entry] for entry in (CA, FORMER) if entry in authority.data]
    return Certificate(certificates.issuer_of(pem, known), found.hosts, found.begins)
