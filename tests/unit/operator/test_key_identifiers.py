"""Certificates that a CA of another program's making issues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from elastrain_operator.keys.certificates import Pair, issue

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def test_a_certificate_names_the_key_of_its_ca_as_the_ca_does() -> None:
    """Helm's CAs (Go) do not derive the identifier by SHA-1, and clients refuse a certificate with another one."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    identifier = x509.SubjectKeyIdentifier(b"not derived by SHA-1")
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    issued = issue("etcd", ["etcd"], Pair(made.public_bytes(pem), private), NOW)
    found = x509.load_pem_x509_certificate(issued.certificate).extensions
    assert found.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier == identifier.digest
