"""TLS files of a connection, reread after changes, and explanations of TLS failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastrain.api import names

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contents of the files (PEM)."""

    ca: bytes
    """One or more CA certificates; one of them must have signed etcd's certificate."""
    cert: bytes | None = None
    key: bytes | None = None


def stamp(*files: Path | None) -> Stamp:
    """Changes whenever a file is replaced, also by a rename or by a symbolic link of the kubelet."""
    return tuple(_stamp(file) for file in files)


def read(ca: Path, cert: Path | None = None, key: Path | None = None) -> Certificates:
    """Read and check the files. Raises ``ValueError`` with the file, its variable and the fault."""
    authorities = _bytes(ca, f"CA ({names.ENV_ETCD_CA})")
    _check_authorities(ca, authorities)
    if cert is None or key is None:
        return Certificates(authorities)
    pair = Certificates(
        authorities,
        _bytes(cert, f"client certificate ({names.ENV_ETCD_CERT})"),
        _bytes(key, f"key of the client certificate ({names.ENV_ETCD_KEY})"),
    )
    _check_pair(cert, key)
    return pair


def hint(detail: str, ca: Path | None) -> str:
    """The meaning of gRPC's message about a failed connection, for the user; empty if unknown."""
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return f"etcd's certificate is not signed by a CA in {ca}, or it is out of date"
    if "Hostname Verification" in detail or "is not in peer certificate" in detail:
        return "etcd's certificate does not name this host: add the host to its alternative names"
    if "WRONG_VERSION_NUMBER" in detail or "Handshake read failed" in detail:
        return (
            f"etcd does not use TLS, but a CA is set ({names.ENV_ETCD_CA}={ca}): unset it, or give etcd a certificate"
        )
    if ca is None and "failed to connect" in detail and "Socket closed" in detail:
        return f"etcd closes the connection at once: if it uses TLS, set its CA in {names.ENV_ETCD_CA}"
    return ""


# `ssl` is imported on use only: an agent without TLS starts without it.
def _check_authorities(path: Path, pem: bytes) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        what = f"etcd CA ({names.ENV_ETCD_CA}): {str(path)!r} holds no certificate in PEM form"
        raise ValueError(f"{what}: {_reason(error)}") from None


def _check_pair(cert: Path, key: Path) -> None:
    import ssl

    def encrypted() -> str:
        raise ValueError("the key is encrypted, which is not supported")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(cert, key, password=encrypted)
    except (ssl.SSLError, ValueError) as error:
        what = f"etcd client certificate and key: {str(cert)!r} and {str(key)!r} do not belong together"
        raise ValueError(f"{what}, or are not in PEM form: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


def _bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"etcd {what}: {str(path)!r} cannot be read: {error.strerror}") from None


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        seen = path.stat() if path else None
    except OSError:
        return None  # the file is being replaced or is gone: a change, too
    return (seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen else None
