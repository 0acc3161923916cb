"""Keys of the chart's etcd on a real API server: Helm makes them once, and finds them again."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import yaml
from cryptography import x509

from charts import Run

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

PRESENT = "charts/elastrain"
APART = ("--set=crds.install=false", "--set=rbac.aggregateToDefaultRoles=false", "--set=etcd.replicas=1")


class Release:
    """A release, and the keys that it has left in the cluster."""

    def __init__(self, name: str, helm: Run, apiserver: ApiServer) -> None:
        self.name, self.etcd = name, f"{name}-elastrain-etcd"
        self._helm, self._apiserver = helm, apiserver

    def helm(self, *words: str) -> None:
        result = self._helm(*words, f"--namespace={self.name}", cluster=self._apiserver)
        assert result.returncode == 0, result.stderr

    def install(self) -> None:
        self.helm("install", self.name, PRESENT, "--create-namespace", *APART)

    def upgrade(self, *settings: str) -> None:
        self.helm("upgrade", self.name, PRESENT, *APART, *settings)

    def secret(self, kind: str) -> dict[str, bytes]:
        shown = self._apiserver.kubectl("-n", self.name, "get", "secret", f"{self.etcd}-{kind}", "-o=yaml")
        assert shown.returncode == 0, shown.stderr
        return {entry: base64.b64decode(value) for entry, value in yaml.safe_load(shown.stdout)["data"].items()}

    def secrets(self) -> dict[str, dict[str, bytes]]:
        return {kind: self.secret(kind) for kind in ("root", "server")}


@pytest.fixture
def release(helm: Run, apiserver: ApiServer) -> Iterator[Callable[[str], Release]]:
    made: list[Release] = []

    def make(name: str) -> Release:
        made.append(Release(name, helm, apiserver))
        return made[-1]

    yield make
    for found in made:
        helm("uninstall", found.name, f"--namespace={found.name}", cluster=apiserver)


def test_keys_are_made_once_and_stay_through_upgrade_rollback_and_a_new_installation(
    release: Callable[[str], Release],
) -> None:
    fresh = release("fresh")
    fresh.install()
    before = fresh.secrets()
    assert {len(value) for value in before["root"].values()} == {64}
    fresh.upgrade("--set=operator.leaseTTL=7")
    assert fresh.secrets() == before
    fresh.helm("rollback", "fresh", "1")
    assert fresh.secrets() == before

    fresh.helm("uninstall", "fresh")
    assert fresh.secret("root") == before["root"], "etcd's volume needs the same password"
    fresh.install()
    assert fresh.secret("root") == before["root"]


def test_the_certificate_is_for_etcds_names_as_server_and_as_client_of_its_peers(
    release: Callable[[str], Release],
) -> None:
    fresh = release("signed")
    fresh.install()
    files = fresh.secret("server")
    authority, made = (x509.load_pem_x509_certificate(files[name]) for name in ("ca.crt", "tls.crt"))
    made.verify_directly_issued_by(authority)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert f"{fresh.etcd}.signed.svc" in names.get_values_for_type(x509.DNSName)
    uses = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH} <= set(uses)


def test_a_deleted_certificate_is_made_anew_and_the_password_is_not(
    release: Callable[[str], Release], apiserver: ApiServer
) -> None:
    fresh = release("again")
    fresh.install()
    before = fresh.secrets()
    apiserver.kubectl("-n", "again", "delete", "secret", f"{fresh.etcd}-server")
    fresh.upgrade()
    after = fresh.secrets()
    assert (after["root"], after["server"] != before["server"]) == (before["root"], True)


def test_a_rendering_that_sees_no_cluster_is_refused_unless_the_mode_is_named(helm: Run) -> None:
    """Argo CD would replace password and CA at each of its renderings."""
    made = helm("template", "demo", PRESENT, "--kube-version=1.34.0", "--set=etcd.tls.mode=")
    assert made.returncode != 0
    assert "etcd.tls.mode: empty" in made.stderr and "cert-manager" in made.stderr
