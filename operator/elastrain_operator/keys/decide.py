"""The next act for the keys of the chart's etcd. Pure: the time is an argument.

A new CA takes over in three steps, so that no client meets a certificate that it does not trust: clients and members
trust the new CA too (``BEGIN``); after a rest, it issues the certificate (``PROMOTE``); after another one, the former
CA is trusted no longer (``FORGET``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

DAY = 86400.0
CERTIFICATE_DAYS = 365
"""Days for which a certificate is valid."""
AUTHORITY_DAYS = 3650
"""Days for which a CA is valid."""
RENEWAL = 90 * DAY
"""Age in seconds at which a certificate is replaced."""
SUCCESSION = AUTHORITY_DAYS / 2 * DAY
"""Age in seconds at which a CA is replaced."""
SPREAD = 900.0
"""Seconds until all clients have read a changed file: the operator copies it to jobs' Secrets within 2 min, a kubelet
needs 2 min more."""
ROLLBACK = DAY
"""Seconds for which the CA of an older chart issues on: until then, `helm rollback` cuts no client off."""
LOOK = 60.0
"""The longest time between two looks, in seconds."""


class Act(StrEnum):
    """A single change. The caller executes it, reads the Secrets again, and asks for the next one."""

    ADOPT = "take over the CA of the older chart"
    CREATE = "create a CA"
    ISSUE = "issue a certificate"
    TRUST = "write the CAs that clients trust"
    BEGIN = "create the next CA"
    EVICT = "restart a member that does not trust the next CA"
    PROMOTE = "let the next CA issue the certificate"
    FORGET = "trust the former CA no longer"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA. Times are Unix times."""

    fingerprint: str
    begins: float
    of_release: bool = False
    """Helm has created it, and its key is in the records of releases."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of etcd."""

    issuer: str
    """Fingerprint of the CA."""
    hosts: frozenset[str]
    begins: float


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of etcd."""

    name: str
    uid: str
    is_ready: bool


@dataclass(frozen=True, slots=True)
class Keys:
    """Content of the Secrets."""

    authority: Authority | None = None
    successor: Authority | None = None
    former: frozenset[str] = frozenset()
    """Fingerprints of CAs that no longer issue, and are still trusted."""
    made_for: str = ""
    """The request (``etcd.tls.renew``) for which the newest CA was created."""
    older_chart: bool = False
    """An older chart's Secret has a CA with its key."""
    certificate: Certificate | None = None
    trusted: frozenset[str] = frozenset()
    """Fingerprints in the file of clients and members."""
    changed: float = 0.0
    """Unix time of the last change of certificate or trust."""
    unaware: frozenset[str] = frozenset()
    """UIDs of the pods of etcd that ran before the next CA was trusted. A member reads the CAs of its peers at its
    start."""

    @property
    def trustworthy(self) -> frozenset[str]:
        """Fingerprints that clients and members have to trust."""
        own = {a.fingerprint for a in (self.authority, self.successor) if a is not None}
        return frozenset(own) | self.former


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of the chart."""

    hosts: frozenset[str]
    request: str = ""
    members: int = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """The next act."""

    act: Act
    why: str
    seconds: float = 0.0
    """For ``WAIT``."""
    member: Member | None = None
    """For ``EVICT``."""


def decide(keys: Keys, members: tuple[Member, ...], wanted: Wanted, now: float) -> Decision:
    """The next act. ``members``: the pods of etcd."""
    if keys.authority is None:
        return Decision(Act.ADOPT if keys.older_chart else Act.CREATE, "there is no CA")
    if keys.successor is None and not keys.former and (why := _outdated(keys.authority, keys, wanted, now)):
        return Decision(Act.BEGIN, why)
    if keys.certificate is not None and keys.trusted != keys.trustworthy:
        return Decision(Act.TRUST, "clients trust other CAs")
    if why := _reissue(keys.certificate, keys.authority, wanted, now):
        return Decision(Act.ISSUE, why)
    if keys.successor is not None:
        return _succeed(keys, keys.authority, members, wanted, now)
    forget = Decision(Act.FORGET, "no server shows a certificate of the former CA")
    return _after(keys.changed + SPREAD, now, forget) if keys.former else Decision(Act.WAIT, "nothing is due", LOOK)


def _outdated(authority: Authority, keys: Keys, wanted: Wanted, now: float) -> str:
    if authority.of_release:
        return "the records of Helm's releases contain the key of the CA"
    if keys.made_for != wanted.request:
        return f"etcd.tls.renew is {wanted.request!r}"
    return "the CA has reached half of its life" if now - authority.begins >= SUCCESSION else ""


def _reissue(certificate: Certificate | None, authority: Authority, wanted: Wanted, now: float) -> str:
    if certificate is None:
        return "there is no certificate"
    if certificate.issuer != authority.fingerprint:
        return "another CA issues now"
    if certificate.hosts != wanted.hosts:
        return "etcd has other names"
    return f"it is {RENEWAL / DAY:.0f} days old" if now - certificate.begins >= RENEWAL else ""


def _succeed(keys: Keys, authority: Authority, members: tuple[Member, ...], wanted: Wanted, now: float) -> Decision:
    rest = ROLLBACK if authority.of_release else SPREAD
    due = Decision(Act.PROMOTE, "clients and members trust the next CA")
    if wanted.members == 1:
        return _after(keys.changed + rest, now, due)
    if left := [m for m in members if m.uid in keys.unaware]:
        due = replace(due, act=Act.EVICT, why=f"{left[0].name} started before", member=left[0])
    if len([m for m in members if m.is_ready]) < wanted.members:
        return Decision(Act.WAIT, "a member of etcd is not ready", LOOK)
    return _after(keys.changed + (SPREAD if left else rest), now, due)


def _after(time: float, now: float, due: Decision) -> Decision:
    """``due``, if ``time`` has come, else a wait."""
    return due if now >= time else Decision(Act.WAIT, f"{time - now:.0f} s are left", min(time - now, LOOK))
