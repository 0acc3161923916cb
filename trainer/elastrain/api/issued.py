"""What the operator gave a job's workers to log in to etcd with."""

from __future__ import annotations

from elastrain.api.records import Record


class Issued(Record):
    """Written by the operator, after the job's user of etcd and the Secret exist; read by the operator only.

    It lives in the same etcd as the user: where etcd lost its data, it is gone with the user, and both are made again.
    """

    ca: str
    """SHA-256 (hex) of the CA certificates in the Secret."""
    key: str
    """Names the key that the password was derived from, and does not tell it."""
