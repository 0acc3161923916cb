"""TLS of a connection: its files, read again when they have changed, and what its failures mean."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elastrain.api import names

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contents of the files (PEM)."""

    ca: bytes
    """One or more CA certificates; etcd's own must be signed by one of them."""
    cert: bytes | None = None
    key: bytes | None = None


def stamp(*files: Path | None) -> Stamp:
    """Differs whenever one of the files was replaced, by a rename or a symbolic link as the kubelet does it, too."""
    return tuple(_stamp(file) for file in files)


def read(ca: Path, cert: Path | None = None, key: Path | None = None) -> Certificates:
    """Read and check the files. Raises ``ValueError`` that names the file, its variable and what is wrong with it."""
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
    """What gRPC's words about a failed connection mean for who configured it; empty: nothing that we know of."""
    if "CERTIFICATE_VERIFY_FAILED" in detail:
        return f"the certificate that etcd shows is not signed by a CA in {ca}, or it is out of date"
    if "Hostname Verification" in detail or "is not in peer certificate" in detail:
        return "the certificate that etcd shows is not for this host: add it to the certificate's alternative names"
    if "WRONG_VERSION_NUMBER" in detail or "Handshake read failed" in detail:
        return (
            f"etcd does not answer in TLS there, but a CA is given ({names.ENV_ETCD_CA}={ca}): leave it out, or give "
            "etcd a certificate"
        )
    if ca is None and "failed to connect" in detail and "Socket closed" in detail:
        return f"it closes the connection at once: if it speaks TLS, name its CA by {names.ENV_ETCD_CA}"
    return ""


# `ssl` is imported where it is needed only: an agent without TLS starts without it.
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
        return None  # being replaced, or gone: that is a change, too
    return (seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen else None
