"""X.509 for the chart's etcd: CAs, certificates and what they say, as PEM."""

from __future__ import annotations

import ipaddress
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes, CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CERTIFICATE_DAYS = 365
"""Days for which a certificate is valid."""
AUTHORITY_DAYS = 3650
"""Days for which a certificate of a CA is valid."""
_BACKDATED = timedelta(minutes=5)
"""For nodes whose clock is late."""
_ONE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.S)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key (PEM)."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says. Times are Unix times."""

    fingerprint: str
    begins: float
    ends: float
    hosts: frozenset[str]


def facts(pem: bytes) -> CertificateFacts:
    """Raises ``ValueError`` if ``pem`` does not begin with a certificate."""
    found = x509.load_pem_x509_certificate(pem)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return CertificateFacts(
        found.fingerprint(hashes.SHA256()).hex(),
        found.not_valid_before_utc.timestamp(),
        found.not_valid_after_utc.timestamp(),
        frozenset(str(name.value) for name in names),
    )


def fingerprints(bundle: bytes) -> list[str]:
    """Of the certificates of a file. Raises ``ValueError`` if one of them cannot be read."""
    return [facts(pem).fingerprint for pem in _ONE.findall(bundle)]


def has_issued(authority: bytes, certificate: bytes) -> bool:
    """Whether the CA's key has signed ``certificate``, under the CA's name. Raises ``ValueError`` if ``certificate``
    cannot be read."""
    found = x509.load_pem_x509_certificate(certificate)
    try:
        found.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def new_authority(name: str, now: datetime) -> Pair:
    """A CA with a key of its own. ``name`` gets a random suffix, so that no two CAs have the same name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name}-{secrets.token_hex(4)}")
    made = _authority(subject, key, x509.SubjectKeyIdentifier.from_public_key(key.public_key()), now)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    return Pair(made, private)


def renewed(authority: Pair, now: datetime) -> Pair:
    """The CA with a new certificate for its key, under its name and with its identifier of the key: who has either of
    the two certificates trusts what both have signed. Raises ``ValueError`` if the pair cannot be read."""
    former = x509.load_pem_x509_certificate(authority.certificate)
    key = _signing(serialization.load_pem_private_key(authority.key, None))
    return Pair(_authority(former.subject, key, _key_identifier(former), now), authority.key)


def _authority(
    subject: x509.Name, key: CertificateIssuerPrivateKeyTypes, identifier: x509.SubjectKeyIdentifier, now: datetime
) -> bytes:
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        _builder(subject, subject, key.public_key(), now, AUTHORITY_DAYS)
        .add_extension(identifier, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def issue(name: str, hosts: Iterable[str], authority: Pair, now: datetime) -> Pair:
    """A certificate for a server, which is a client of its peers too, for DNS names and addresses.

    Raises ``ValueError`` if the pair of the CA cannot be read.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    signing = serialization.load_pem_private_key(authority.key, None)
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([_general(host) for host in sorted(hosts)])
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    made = (
        _builder(_name(name), signer.subject, key.public_key(), now, CERTIFICATE_DAYS)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(names, critical=False)
        .add_extension(uses, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_key_identifier(signer)), critical=False
        )
        .sign(_signing(signing), hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )  # fmt: skip
    return Pair(made.public_bytes(serialization.Encoding.PEM), private)


def _key_identifier(authority: x509.Certificate) -> x509.SubjectKeyIdentifier:
    """As the CA's certificate has it: Go (Helm) derives it from the key in another way than this library, and clients
    refuse a mismatch. Of a CA that has none, clients take any (RFC 5280, 4.2.1.1)."""
    try:
        return authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return x509.SubjectKeyIdentifier.from_public_key(authority.public_key())


def _signing(key: object) -> CertificateIssuerPrivateKeyTypes:
    if not hasattr(key, "sign"):
        raise ValueError("the key of the CA cannot sign")
    return key  # type: ignore[return-value]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: datetime, days: int
) -> x509.CertificateBuilder:
    begins = now.astimezone(UTC) - _BACKDATED
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
