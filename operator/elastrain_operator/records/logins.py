"""Each job's etcd user and Secret: when they are written, by which password, and who writes them.

Passwords are derived (HMAC-SHA256, RFC 2104) from a key that only the operator has. It can therefore derive the same
password after a crash or after etcd lost its users, without permission to read Secrets.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from elastrain.api.keys import JobKeys
from elastrain.api.records import Issued
from elastrain.etcd import EtcdError, tls
from elastrain_operator.config import OperatorConfig
from elastrain_operator.facts import JobRef, Pod
from elastrain_operator.kube.client import Kube
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.users import EtcdUsers
from elastrain_operator.waiting import until

INTERVAL = 60.0
"""Seconds between two checks that etcd authenticates users, and of the CA certificates."""
RETRY_SECONDS = 2.0
ECHO_SECONDS = 10.0
"""Seconds for which a written record counts although the mirror does not show it yet."""

log = structlog.get_logger(__name__)


class JobLogins:
    """The etcd users and Secrets of all jobs. Calls may raise ``ApiError`` and ``EtcdError``; each is bounded."""

    def __init__(
        self,
        users: EtcdUsers,
        secrets: Kube,
        records: Mirror,
        config: OperatorConfig,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_change`` is called when all jobs need a pass because the CA certificates were replaced.

        Raises ``ValueError`` if the CA file cannot be read.
        """
        etcd = config.etcd
        assert config.job_key is not None and etcd.password_file is not None and etcd.ca is not None, "config checks it"
        self._users, self._secrets, self._records = users, secrets, records
        self._password_file, self._ca_file = etcd.password_file, etcd.ca
        self._key = config.job_key.get_secret_value()
        self._on_change = on_change
        self._stamp = tls.stamp(self._ca_file)
        self._ca = tls.read(self._ca_file).ca
        self._wanted = fingerprint(self._ca, self._key)
        self._recent: dict[JobKeys, tuple[Issued, float, int]] = {}  # with the time, and etcd's losses of data by then
        self._written: dict[JobKeys, float] = {}  # when this process wrote the job's Secret
        self._suspended: dict[JobKeys, bool] = {}  # whether etcd knows
        self._nudged = asyncio.Event()

    # ---- one job ---------------------------------------------------------------------------------------------------
    async def keep(self, job: JobRef, *, creating: bool = False, live: bool = False, wait_long: bool = False) -> None:
        """Ensure that a job's workers can log in. Without a change it makes no call: the Secret is written once, and
        again while workers ``wait_long`` to start, since it may have been deleted."""
        keys = JobKeys(job.namespace, job.name, job.uid)
        if keys in self._suspended:
            return
        wanted, issued = self._wanted, self._issued(keys)
        if issued is None and (self._records.outage or self._records.is_unread(keys)):
            return  # unknown, which differs from absent
        wrote = self._written.get(keys)
        doubted = creating and wrote is None
        doubted = doubted or (wait_long and (wrote is None or time.monotonic() - wrote > INTERVAL))
        due = due_writes(issued, wanted, creating=creating, live=live, doubted=doubted)
        if not (due.user or due.secret):
            return
        name = user_of(keys)
        password = password_of(self._key, keys)
        if due.user:
            await self._records.claim(keys)
            await asyncio.to_thread(self._users.ensure, name, password, keys.prefix)
        if due.secret:
            manifest = manifests.secret(job, name, password, self._ca)
            await self._secrets.write_secret(job.namespace, manifest, expected=issued is not None)
            self._written[keys] = time.monotonic()
        if issued != wanted:
            await self._records.put_issued(keys, wanted)
            self._recent[keys] = wanted, time.monotonic(), self._records.losses
            log.info("issued credentials", prefix=keys.prefix, user=name)

    def has_issued(self, job: JobRef) -> bool:
        """Whether the job's user and Secret were written as they are wanted now."""
        return self._issued(JobKeys(job.namespace, job.name, job.uid)) == self._wanted

    def _issued(self, keys: JobKeys) -> Issued | None:
        """The record, or the last written one that the watch has not shown yet."""
        recent = self._recent.get(keys)
        if recent and time.monotonic() - recent[1] < ECHO_SECONDS and recent[2] == self._records.losses:
            return recent[0]
        self._recent.pop(keys, None)
        return self._records.issued(keys)

    # ---- jobs that write too much -----------------------------------------------------------------------------------
    def suspend(self, keys: JobKeys) -> None:
        """Take the job's rights in etcd, soon, and give them back to its user no more. It trains on, as in an outage of
        etcd. Another operator process gives them again: it refuses the job anew if need be."""
        self._suspended.setdefault(keys, False)
        self._nudged.set()

    async def _suspend_users(self) -> None:
        """Raises ``EtcdError``."""
        for keys in [keys for keys, done in self._suspended.items() if not done]:
            await asyncio.to_thread(self._users.suspend, user_of(keys), keys.prefix)
            await self._records.put_issued(keys, Issued(ca=self._wanted.ca, key=""))
            self._suspended[keys] = True
            log.warning("took a job's rights in etcd: it writes too much", prefix=keys.prefix)

    # ---- jobs that are gone ----------------------------------------------------------------------------------------
    async def remove(self, keys: JobKeys) -> None:
        """Remove the user of a job that is gone."""
        self._recent.pop(keys, None)
        self._written.pop(keys, None)
        self._suspended.pop(keys, None)
        await asyncio.to_thread(self._users.remove, user_of(keys))

    # ---- etcd itself -----------------------------------------------------------------------------------------------
    def nudge(self) -> None:
        """etcd was lost or has returned, perhaps without its data: check now."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled: keep etcd's authentication enabled, and detect replaced CA certificates."""
        while True:
            pause = INTERVAL
            try:
                await self._suspend_users()
                self._look_at_ca()
                await asyncio.to_thread(self._have_users_checked)
            except (EtcdError, OSError, ValueError) as error:
                log.warning("check of etcd's authentication or CA failed", error=str(error), retry_s=RETRY_SECONDS)
                pause = RETRY_SECONDS
            if not await until(self._nudged, pause):
                continue
            self._nudged.clear()
            await asyncio.sleep(RETRY_SECONDS / 10)  # an outage causes bursts of nudges

    def _have_users_checked(self) -> None:
        password = self._password_file.read_text().rstrip("\n")
        if not self._users.are_checked(password):
            self._users.check(password)
            log.info("authentication in etcd enabled")

    def _look_at_ca(self) -> None:
        stamp = tls.stamp(self._ca_file)
        if stamp == self._stamp:
            return
        ca = tls.read(self._ca_file).ca
        self._stamp = stamp
        if ca != self._ca:
            self._ca, self._wanted = ca, fingerprint(ca, self._key)
            log.info("CA certificates of etcd replaced: updating all jobs")
            self._on_change()


PATIENCE = timedelta(seconds=30)
"""Time on a node after which a worker that has not started may lack its Secret; images may take longer."""


@dataclass(frozen=True, slots=True)
class Due:
    """What must be written now."""

    user: bool = False
    """The etcd user and its permissions."""
    secret: bool = False
    """The Secret in the job's namespace."""


def due_writes(issued: Issued | None, wanted: Issued, *, creating: bool, live: bool, doubted: bool) -> Due:
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


def fingerprint(ca: bytes, key: bytes) -> Issued:
    """The record of the CA certificates that workers received, and of the key from which their password is derived."""
    return Issued(ca=hashlib.sha256(ca).hexdigest(), key=hmac.digest(key, b"name of this key", "sha256").hex()[:16])


def user_of(keys: JobKeys) -> str:
    """Name of a job's user. The UID distinguishes it from an earlier job of the same name, and from other clusters'."""
    return f"elastrain/{keys.namespace}/{keys.job}/{keys.uid}"


def password_of(key: bytes, keys: JobKeys) -> str:
    """Password of a job's user: 256 bits that cannot be computed without the key."""
    return base64.urlsafe_b64encode(hmac.digest(key, user_of(keys).encode(), "sha256")).decode().rstrip("=")
