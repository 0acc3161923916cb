"""``etcd.tls.mode=cert-manager``, with cert-manager's own controllers: etcd serves the certificates that they issue."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509

from charts import Run
from control_plane import CACHE, program, running
from elastrain.etcd import EtcdClient, LeaseCallbacks

if TYPE_CHECKING:
    from bench_harness.secure_etcd import SecureEtcd
    from control_plane import ApiServer

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly]

NAMESPACE = "issued"
ETCD = "issued-elastrain-etcd"
PATIENCE = 60.0


class Issued:
    """The chart's Certificates, and the Secrets that cert-manager keeps for them."""

    def __init__(self, apiserver: ApiServer) -> None:
        self._apiserver = apiserver

    def _kubectl(self, *args: str) -> str:
        result = self._apiserver.kubectl("--namespace", NAMESPACE, *args)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def is_ready(self, certificate: str) -> bool:
        """Whether it is issued and no renewal is in progress."""
        status = json.loads(self._kubectl("get", "certificate", certificate, "-o", "json")).get("status", {})
        conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
        return conditions.get("Ready") == "True" and conditions.get("Issuing") != "True"

    def secret(self, certificate: str) -> dict[str, bytes]:
        spec = json.loads(self._kubectl("get", "certificate", certificate, "-o", "json"))["spec"]
        data = json.loads(self._kubectl("get", "secret", spec["secretName"], "-o", "json"))["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    def renew(self, certificate: str) -> None:
        """Request a renewal now, as `cmctl renew` does."""
        condition = {"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test"}
        patch = [{"op": "add", "path": "/status/conditions/-", "value": condition}]
        self._kubectl(
            "patch", "certificate", certificate, "--subresource=status", "--type=json", "-p", json.dumps(patch)
        )


@pytest.fixture(scope="module")
def issued(helm: Run, apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issued]:
    """A running cert-manager, and the chart installed with ``etcd.tls.mode=cert-manager``."""
    controllers = program(
        *("cert-manager", "ELASTRAIN_CERT_MANAGER", "ELASTRAIN_REQUIRE_CERT_MANAGER"),
        built_by="e2e/cluster/build.sh cert-manager",
    )
    crds = apiserver.kubectl("apply", "--server-side", "-f", str(CACHE / "cert-manager-crds"))
    assert crds.returncode == 0, crds.stderr
    established = apiserver.kubectl(
        *("wait", "--for=condition=Established", "--timeout=20s"),
        *("crd/certificates.cert-manager.io", "crd/issuers.cert-manager.io", "crd/certificaterequests.cert-manager.io"),
    )
    assert established.returncode == 0, established.stderr
    home = tmp_path_factory.mktemp("cert-manager")
    release = ("issued", f"--namespace={NAMESPACE}")
    settings = ("--set=etcd.tls.mode=cert-manager", "--set=crds.install=false")
    with running([controllers, str(apiserver.kubeconfig)], home / "cert-manager.log", home):
        result = helm("install", *release, "charts/elastrain", "--create-namespace", *settings, cluster=apiserver)
        assert result.returncode == 0, result.stderr
        yield Issued(apiserver)
        helm("uninstall", *release, cluster=apiserver)


@pytest.fixture
def served(issued: Issued, secure_etcd: SecureEtcd, eventually: Callable[..., None]) -> SecureEtcd:
    """An etcd with the certificate that cert-manager has issued for the chart."""
    eventually(lambda: issued.is_ready(ETCD), PATIENCE, f"the Certificate {ETCD} to be issued")
    secure_etcd.take(issued.secret(ETCD))
    return secure_etcd


def shown_by(server: SecureEtcd) -> str:
    """The certificate that a new connection receives."""
    host, _, port = server.endpoint.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=5)


def names_of(certificate: bytes) -> set[str]:
    """DNS names and addresses in a certificate."""
    found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return {str(name.value) for name in found.value}


def renewed(issued: Issued, certificate: str, eventually: Callable[..., None]) -> dict[str, bytes]:
    """The Secret of ``certificate``, after it has been issued once more."""
    former = issued.secret(certificate)
    issued.renew(certificate)
    changed: Callable[[], Any] = lambda: issued.secret(certificate)["tls.crt"] != former["tls.crt"]  # noqa: E731
    eventually(changed, PATIENCE, f"the Certificate {certificate} to be renewed")
    eventually(lambda: issued.is_ready(certificate), PATIENCE, "the renewal to be over")
    return issued.secret(certificate)


def test_the_issued_certificate_has_the_names_of_etcd_and_clients_trust_it(issued: Issued, served: SecureEtcd) -> None:
    with EtcdClient(served.root, timeout=5.0) as client:
        client.put("/x", b"1")
        assert client.get("/x").value == b"1"
    assert {f"{ETCD}.{NAMESPACE}.svc", "localhost", "127.0.0.1"} <= names_of(issued.secret(ETCD)["tls.crt"])


def test_lease_and_watch_survive_a_renewal_of_the_certificate(
    issued: Issued, served: SecureEtcd, eventually: Callable[..., None]
) -> None:
    """Training depends on these two connections: neither restarts."""
    heard: list[str] = []
    seen: list[object] = []
    with EtcdClient(served.root, timeout=2.0) as client:
        lease = client.lease(5, LeaseCallbacks(on_lost=lambda: heard.append("lost")))
        watch = client.watch_prefix("/x/", seen.append)
        before = shown_by(served)
        served.take(renewed(issued, ETCD, eventually))
        assert shown_by(served) != before, "etcd reads its certificate for every connection"
        with EtcdClient(served.root) as fresh:
            fresh.put("/x/written", b"2")
        eventually(lambda: seen, what="the watch to go on")
        eventually(lambda: time.monotonic() - lease.confirmed < 1.0, within=10.0, what="the lease to be kept")
        assert heard == []
        lease.close()
        watch.close()


def test_old_and_new_certificates_are_trusted_if_the_authority_is_renewed(
    issued: Issued, served: SecureEtcd, eventually: Callable[..., None]
) -> None:
    """The order of updates is irrelevant, since the authority's key stays (``rotationPolicy: Never``)."""
    former = issued.secret(ETCD)
    authority = renewed(issued, f"{ETCD}-ca", eventually)
    assert authority["tls.crt"] != former["ca.crt"]
    latter = renewed(issued, ETCD, eventually)
    assert latter["ca.crt"] == authority["tls.crt"]
    for shown, trusted in ((former, latter), (latter, former)):
        served.take({**shown, "ca.crt": trusted["ca.crt"]})
        with EtcdClient(served.root, timeout=5.0) as client:
            client.put("/x", b"1")
