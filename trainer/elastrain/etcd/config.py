"""The addresses and credentials of an etcd cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastrain.api import names
from elastrain.etcd import tls


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """The connection to one etcd cluster.

    Files are read on use: the password for every login, certificates again if they have changed and a connection has
    failed. So rotated files take effect, and a working connection stays untouched.
    """

    endpoints: tuple[str, ...]
    """``host:port`` of each etcd member; at least one."""
    username: str = ""
    """Empty: no authentication."""
    password_file: Path | None = None
    ca: Path | None = None
    """CA certificate (PEM). Set: the connection uses TLS."""
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ValueError("etcd endpoints: at least one host:port is needed")
        if bool(self.username) != (self.password_file is not None):
            raise ValueError("etcd user and password file must be given together")
        if (self.cert is None) != (self.key is None):
            raise ValueError("etcd client certificate and key must be given together")
        if self.cert is not None and self.ca is None:
            raise ValueError("etcd client certificate needs the CA too")

    @classmethod
    def of(
        cls,
        endpoints: str,
        *,
        username: str = "",
        password_file: str = "",
        ca: str = "",
        cert: str = "",
        key: str = "",
    ) -> EtcdConfig:
        """A configuration from strings: ``endpoints`` separated by ``,`` or ``;``, port optional, an empty string is
        absent.

        Raises ``ValueError`` with the invalid endpoint or file.
        """
        files = {"password file": password_file, "CA": ca, "certificate": cert, "key": key}
        for what, path in files.items():
            if path and not Path(path).is_file():
                raise ValueError(f"etcd {what}: {path!r} is not a file")
        config = cls(
            endpoints=endpoints_of(endpoints),
            username=username,
            password_file=Path(password_file) if password_file else None,
            ca=Path(ca) if ca else None,
            cert=Path(cert) if cert else None,
            key=Path(key) if key else None,
        )
        if config.ca:
            tls.read(config.ca, config.cert, config.key)
        return config

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> EtcdConfig:
        """A configuration from ``ELASTRAIN_ETCD_*`` (names in :mod:`elastrain.api.names`).

        Raises ``ValueError`` with the variable's name if endpoints are missing or a value is invalid.
        """
        endpoints = environ.get(names.ENV_ETCD_ENDPOINTS, "")
        if not endpoints.strip():
            raise ValueError(f"{names.ENV_ETCD_ENDPOINTS} is not set: must be host:port[,host:port]")
        return cls.of(
            endpoints,
            username=environ.get(names.ENV_ETCD_USERNAME, ""),
            password_file=environ.get(names.ENV_ETCD_PASSWORD_FILE, ""),
            ca=environ.get(names.ENV_ETCD_CA, ""),
            cert=environ.get(names.ENV_ETCD_CERT, ""),
            key=environ.get(names.ENV_ETCD_KEY, ""),
        )

    def to_environment(self) -> dict[str, str]:
        """The variables for :meth:`from_environment`, for a child process or a pod."""
        values = {
            names.ENV_ETCD_ENDPOINTS: ",".join(self.endpoints),
            names.ENV_ETCD_USERNAME: self.username,
            names.ENV_ETCD_PASSWORD_FILE: str(self.password_file or ""),
            names.ENV_ETCD_CA: str(self.ca or ""),
            names.ENV_ETCD_CERT: str(self.cert or ""),
            names.ENV_ETCD_KEY: str(self.key or ""),
        }
        return {name: value for name, value in values.items() if value}


def endpoints_of(text: str) -> tuple[str, ...]:
    """Those in ``text``, separated by ``,`` or ``;``, each with its port. Raises ``ValueError`` with an invalid one."""
    parts = [part.strip() for part in text.replace(";", ",").split(",")]
    return tuple(_endpoint(part) for part in parts if part)


def _endpoint(text: str) -> str:
    if "://" in text:
        raise ValueError(f"etcd endpoint {text!r}: write host:port without a scheme (TLS is on when a CA is given)")
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return f"{text}:{names.DEFAULT_ETCD_PORT}"
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"etcd endpoint {text!r}: must be host:port with a port from 1 to 65535")
    return text
