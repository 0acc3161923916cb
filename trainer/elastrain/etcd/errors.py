"""What can go wrong with etcd, in words that a user can act on."""

from __future__ import annotations


class EtcdError(Exception):
    """etcd answered, and the answer is an error that neither a retry nor other credentials cure."""

    def __init__(self, what: str, detail: str) -> None:
        super().__init__(f"etcd refused to {what}: {detail}")
        self.what = what
        self.detail = detail


class EtcdUnavailable(EtcdError):
    """No endpoint answered in time. Worth a retry: the call may or may not have taken effect."""

    def __init__(self, endpoint: str, what: str, detail: str) -> None:
        Exception.__init__(self, f"etcd at {endpoint} is unavailable (tried to {what}): {detail}")
        self.endpoint = endpoint
        self.what = what
        self.detail = detail


class EtcdDenied(EtcdError):
    """Wrong user, password or permission. A retry does not help; somebody has to change the configuration."""

    def __init__(self, endpoint: str, user: str, what: str, detail: str) -> None:
        who = f"user {user!r}" if user else "a client without a user name (set ELASTRAIN_ETCD_USERNAME)"
        Exception.__init__(self, f"etcd at {endpoint} does not allow {who} to {what}: {detail}")
        self.endpoint = endpoint
        self.user = user
        self.what = what
        self.detail = detail


class LeaseLost(EtcdError):
    """The lease that a write named has expired or was revoked."""


class Compacted(EtcdError):
    """The history that a watch asked for is gone. Handled by :class:`elastrain.etcd.watch.Watch`."""
