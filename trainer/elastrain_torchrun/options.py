"""The options of the torchrun handler: ``--rdzv-conf key=value,...``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from elastrain.api import names

BACKEND = "etcd-v3"
"""Name of the handler: ``--rdzv-backend``."""


@dataclass(frozen=True)
class Options:
    """The options of ``--rdzv-conf key=value,...``. Values arrive as strings."""

    namespace: str = "default"
    """First part of the job's prefix in etcd."""
    uid: str = "torchrun"
    """Last part of the job's prefix in etcd; the middle one is ``--rdzv-id``."""
    username: str = ""
    password_file: str = ""
    ca: str = ""
    """CA certificate file (PEM); enables TLS."""
    cert: str = ""
    key: str = ""
    lease_ttl: int = names.DEFAULT_LEASE_TTL
    """Seconds after which a silent agent counts as lost."""
    connect_timeout: float = 15.0
    """Seconds for which the start retries to reach etcd."""
    join_timeout: float = 600.0
    """Seconds to wait for a generation that includes this agent."""
    settle: float = 3.0
    """Seconds to wait at the start for more agents than the least number of ``--nnodes``."""

    @classmethod
    def of(cls, config: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """From torchrun's options; absent ones come from ``ELASTRAIN_*``.

        Raises ``ValueError`` naming an option that is unknown or has an invalid value.
        """
        values: dict[str, Any] = {
            "namespace": environ.get(names.ENV_NAMESPACE) or cls.namespace,
            "uid": environ.get(names.ENV_JOB_UID) or cls.uid,
            "username": environ.get(names.ENV_ETCD_USERNAME, ""),
            "password_file": environ.get(names.ENV_ETCD_PASSWORD_FILE, ""),
            "ca": environ.get(names.ENV_ETCD_CA, ""),
            "cert": environ.get(names.ENV_ETCD_CERT, ""),
            "key": environ.get(names.ENV_ETCD_KEY, ""),
        }
        kinds = {name: type(getattr(cls(), name)) for name in cls.__dataclass_fields__}
        for name, value in config.items():
            if name == "timeout":
                continue  # torchrun always sends it; it is not an option of this handler
            if name not in kinds:
                raise ValueError(f"--rdzv-conf: {name!r} is not an option of {BACKEND}; there are: {', '.join(kinds)}")
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"--rdzv-conf: {name}={value!r} must be a number ({kinds[name].__name__})") from None
        options = cls(**values)
        for name, least in (("lease_ttl", 2), ("connect_timeout", 0), ("join_timeout", 0), ("settle", 0)):
            if getattr(options, name) < least:
                raise ValueError(f"--rdzv-conf: {name}={getattr(options, name)} must be at least {least}")
        for name in ("namespace", "uid"):
            if "/" in getattr(options, name):
                raise ValueError(f"--rdzv-conf: {name}={getattr(options, name)!r} must not contain '/'")
        return options
