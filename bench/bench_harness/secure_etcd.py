"""An etcd as the chart starts it, with TLS and users, for tests and benchmarks."""

from __future__ import annotations

import socket
from datetime import datetime
from pathlib import Path

import trustme

from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli.etcd_server import EtcdServer
from elastrain_operator.users import EtcdUsers


class SecureEtcd(EtcdServer):
    """An etcd with TLS and optional authentication. ``files`` has the clients' files."""

    def __init__(self, files: Path, *flags: str, data_dir: Path | None = None) -> None:
        super().__init__(data_dir=data_dir)
        self.files = files
        self._flags = flags
        self.ca_file, self.password_file = files / "ca.crt", files / "root-password"
        self.password_file.write_text("root-secret\n")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._metrics_port = free.getsockname()[1]
        self.authority = trustme.CA()
        self.trust(self.authority)
        self.show(self.authority)

    def trust(self, *authorities: trustme.CA) -> None:
        """Replace the clients' CA file atomically, as a kubelet does."""
        replace(self.ca_file, b"".join(a.cert_pem.bytes() for a in authorities))

    def show(self, authority: trustme.CA, *hosts: str, until: datetime | None = None) -> None:
        """Replace etcd's own certificate; new connections see it. ``until``: when it expires; None: in many years."""
        issued = authority.issue_cert(*(hosts or ("localhost", "127.0.0.1")), not_after=until)
        replace(self.files / "tls.key", issued.private_key_pem.bytes())
        replace(self.files / "tls.crt", b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def take(self, secret: dict[str, bytes]) -> None:
        """Replace etcd's certificate, its key and clients' CA file by those of a Secret of type kubernetes.io/tls."""
        for name in ("tls.key", "tls.crt", "ca.crt"):
            replace(self.files / name, secret[name])

    def command(self) -> list[str]:
        plain = [
            f"https://{self.endpoint}" if part == f"http://{self.endpoint}" else part for part in super().command()
        ]
        certificates = ("--cert-file", str(self.files / "tls.crt"), "--key-file", str(self.files / "tls.key"))
        metrics = ("--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}")
        return [*plain, *certificates, *metrics, "--bcrypt-cost", "4", *self._flags]

    @property
    def health_url(self) -> str:
        return f"http://127.0.0.1:{self._metrics_port}/health"

    def config(self, user: str = "", password: str = "") -> EtcdConfig:
        """A client's configuration; the password is in a file of the user's name."""
        path = self.files / f"password-{user.replace('/', '-')}"
        if user:
            replace(path, password.encode())
        return EtcdConfig.of(
            self.endpoint, ca=str(self.ca_file), username=user, password_file=str(path) if user else ""
        )

    @property
    def root(self) -> EtcdConfig:
        """The user that may do everything."""
        return EtcdConfig.of(
            self.endpoint, ca=str(self.ca_file), username="root", password_file=str(self.password_file)
        )

    def check_users(self) -> None:
        with EtcdClient(self.root) as client:
            EtcdUsers(client).check("root-secret")


def replace(path: Path, content: bytes) -> None:
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)
