"""The errors of etcd, with messages that a user can act on."""

from __future__ import annotations


class EtcdError(Exception):
    """etcd refused the request; neither a retry nor other credentials help."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"etcd refused to {what}: {detail}")
        self.what = what
        self.detail = detail


class EtcdUnavailable(EtcdError):
    """No endpoint answered in time. Retry; the call may or may not have taken effect."""

    def __init__(self, endpoint: str, what: str, detail: str) -> None:
        Exception.__init__(self, f"etcd at {endpoint} is unavailable (tried to {what}): {detail}")
        self.endpoint = endpoint
        self.what = what
        self.detail = detail


class EtcdDenied(EtcdError):
    """Wrong user, password or permission. A retry does not help; the configuration must change."""

    def __init__(self, endpoint: str, user: str, what: str, detail: str) -> None:
        who = f"user {user!r}" if user else "a client without a user name (set ELASTRAIN_ETCD_USERNAME)"
        Exception.__init__(self, f"etcd at {endpoint} does not allow {who} to {what}: {detail}")
        self.endpoint = endpoint
        self.user = user
        self.what = what
        self.detail = detail


class LeaseLost(EtcdError):
    """The lease of a write has expired or was revoked."""


class WritesRefused(EtcdError):
    """etcd has an alarm, and so refuses the writes of all clients until it is disarmed."""

    @property
    def alarm(self) -> str:
        """Its name: NOSPACE or CORRUPT."""
        return "NOSPACE" if "space" in self.detail else "CORRUPT"


class TooLarge(EtcdError):
    """The answer has more bytes than this client accepts; ask for less."""


class Compacted(EtcdError):
    """The requested history of a watch is gone. :class:`elastrain.etcd.watch.Watch` handles it."""
