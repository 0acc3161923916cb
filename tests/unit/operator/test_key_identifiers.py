"""Certificates that a CA of another program's making issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from elastrain_operator.keys.certificates import Pair, issue

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def authority(*, identifier: x509.SubjectKeyIdentifier | None) -> Pair:
    """A CA that says ``identifier`` of its key, or nothing."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    if identifier is not None:
        builder = builder.add_extension(identifier, critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(builder.sign(key, hashes.SHA256()).public_bytes(pem), private)


def named_by(issuer: Pair) -> bytes | None:
    """What a certificate of ``issuer`` says of the key of its CA."""
    issued = x509.load_pem_x509_certificate(issue("etcd", ["etcd"], issuer, NOW).certificate)
    return issued.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier


def test_a_certificate_names_the_key_of_its_ca_as_the_ca_does() -> None:
    """Helm's CAs (Go) do not derive the identifier by SHA-1, and clients refuse a certificate with another one."""
    identifier = x509.SubjectKeyIdentifier(b"not derived by SHA-1")
    assert named_by(authority(identifier=identifier)) == identifier.digest


def test_a_ca_without_an_identifier_of_its_key_issues_too() -> None:
    silent = authority(identifier=None)
    key = x509.load_pem_x509_certificate(silent.certificate).public_key()
    assert named_by(silent) == x509.SubjectKeyIdentifier.from_public_key(key).digest
