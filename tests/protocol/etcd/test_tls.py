"""TLS: messages about invalid files and certificates, and certificates replaced under a running client."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from elastrain.etcd import EtcdClient, EtcdConfig, EtcdUnavailable, LeaseCallbacks, Put
from elastrain_operator.metrics import certificate


@pytest.fixture
def other():
    """Another authority."""
    return trustme.CA()


# ---- what is wrong is named ------------------------------------------------------------------------------------------
def test_a_file_that_is_no_certificate_is_named(tmp_path):
    path = tmp_path / "ca.crt"
    path.write_text("secret")
    with pytest.raises(ValueError, match=r"CA .ELASTRAIN_ETCD_CA.: '.*ca\.crt' holds no certificate in PEM form"):
        EtcdConfig.of("etcd", ca=str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="holds no certificate in PEM form"):
        EtcdConfig.of("etcd", ca=str(path))


def test_a_key_of_another_certificate_is_named(tmp_path, other):
    paths = {name: str(tmp_path / name) for name in ("ca.crt", "tls.crt", "tls.key")}
    other.cert_pem.write_to_path(paths["ca.crt"])
    other.issue_cert("a").cert_chain_pems[0].write_to_path(paths["tls.crt"])
    other.issue_cert("b").private_key_pem.write_to_path(paths["tls.key"])
    with pytest.raises(ValueError, match=r"'.*tls\.crt' and '.*tls\.key' do not belong together.*MISMATCH"):
        EtcdConfig.of("etcd", ca=paths["ca.crt"], cert=paths["tls.crt"], key=paths["tls.key"])


def test_a_certificate_of_another_authority_is_named(secure_etcd, other):
    secure_etcd.trust(other)
    with (
        EtcdClient(secure_etcd.root, timeout=5.0) as client,
        pytest.raises(EtcdUnavailable, match=r"is not signed by a CA in .*ca\.crt, or it is out of date"),
    ):
        client.get("/x")


def test_a_certificate_of_another_host_is_named(secure_etcd):
    secure_etcd.show(secure_etcd.authority, "elsewhere.example")
    with (
        EtcdClient(secure_etcd.root, timeout=5.0) as client,
        pytest.raises(EtcdUnavailable, match="does not name this host"),
    ):
        client.get("/x")


def test_a_ca_for_an_etcd_without_tls_is_named(etcd, secure_etcd):
    config = EtcdConfig.of(etcd.endpoint, ca=str(secure_etcd.ca_file))
    with (
        EtcdClient(config, timeout=5.0) as client,
        pytest.raises(EtcdUnavailable, match="etcd does not use TLS, but a CA is set"),
    ):
        client.get("/x")


def test_a_missing_ca_for_an_etcd_with_tls_is_named(secure_etcd):
    with (
        EtcdClient(EtcdConfig.of(secure_etcd.endpoint), timeout=5.0) as client,
        pytest.raises(EtcdUnavailable, match="if it uses TLS, set its CA in ELASTRAIN_ETCD_CA"),
    ):
        client.get("/x")


# ---- rotation --------------------------------------------------------------------------------------------------------
def test_lease_and_watch_survive_a_replacement_of_ca_and_certificate(secure_etcd, other, eventually):
    """In the order of docs/operations.md: first both authorities are trusted; the former one goes last."""
    heard: list[str] = []
    seen: list[bytes] = []

    def on_events(batch):
        seen.extend(e.kv.value for e in batch.events if isinstance(e, Put))

    with EtcdClient(secure_etcd.root, timeout=2.0) as client:
        lease = client.lease(5, LeaseCallbacks(on_lost=lambda: heard.append("lost")))
        lease.set("/x/leased", b"1")
        assert lease.flush(5.0)
        created = client.get("/x/leased").create_revision
        watch = client.watch_prefix("/x/", on_events)
        eventually(lambda: seen == [b"1"], what="the watch to begin")

        secure_etcd.trust(secure_etcd.authority, other)
        secure_etcd.show(other)
        secure_etcd.kill()  # ends all connections; the next ones see the new certificate
        secure_etcd.start()
        secure_etcd.trust(other)

        with EtcdClient(secure_etcd.root) as fresh:
            fresh.put("/x/written", b"2")
        eventually(lambda: seen == [b"1", b"2"], within=10.0, what="the watch to go on")
        eventually(lambda: time.monotonic() - lease.confirmed < 1.0, within=10.0, what="the lease to be kept")
        assert (heard, client.get("/x/leased").create_revision) == ([], created)
        lease.close()
        watch.close()


def test_calls_work_again_if_the_ca_is_replaced_after_the_certificate(secure_etcd, other, eventually):
    """The wrong order causes an outage that ends as soon as the file is right, without a restart of any process."""
    with EtcdClient(secure_etcd.root, timeout=2.0) as client:
        client.put("/x", b"1")
        secure_etcd.show(other)
        secure_etcd.kill()
        secure_etcd.start()

        def answers() -> bool:
            try:
                return client.get("/x").value == b"1"
            except EtcdUnavailable:
                return False

        assert not answers()
        secure_etcd.ca_file.write_text("half of a ro")
        assert not answers(), "an unreadable file is not used"
        secure_etcd.trust(other)
        eventually(answers, within=30.0, what="an answer with the new CA")


def test_certificate_is_renewed_before_it_expires_without_an_interruption(secure_etcd, eventually):
    """A short life: the first certificate expires while lease and watch go on, and new clients see the next one."""
    lost: list[str] = []
    seen: list[bytes] = []
    end = datetime.now(UTC) + timedelta(seconds=4)
    secure_etcd.show(secure_etcd.authority, until=end)
    with EtcdClient(secure_etcd.root, timeout=2.0) as client:
        lease = client.lease(5, LeaseCallbacks(on_lost=lambda: lost.append("lost")))
        lease.set("/x/leased", b"1")
        assert lease.flush(5.0)
        watch = client.watch_prefix("/x/", lambda b: seen.extend(e.kv.value for e in b.events if isinstance(e, Put)))
        first = expires(secure_etcd)
        assert abs(first - end.timestamp()) < 2
        secure_etcd.show(secure_etcd.authority)
        eventually(lambda: datetime.now(UTC) > end + timedelta(seconds=1), 10, "the first certificate to expire")
        assert expires(secure_etcd) > first, "etcd shows the new one without a restart"
        with EtcdClient(secure_etcd.root) as fresh:
            fresh.put("/x/written", b"2")
        eventually(lambda: seen == [b"1", b"2"], what="the watch to go on")
        assert (lost, time.monotonic() - lease.confirmed < 4) == ([], True)
        lease.close()
        watch.close()


def test_an_expired_certificate_is_named(secure_etcd):
    secure_etcd.show(secure_etcd.authority, until=datetime.now(UTC) - timedelta(seconds=5))
    with (
        EtcdClient(secure_etcd.root, timeout=5.0) as client,
        pytest.raises(EtcdUnavailable, match="it is out of date"),
    ):
        client.get("/x")
    with pytest.raises(OSError, match="expired"):
        expires(secure_etcd)


def expires(server) -> float:
    """As the operator's metric has it."""
    return asyncio.run(certificate.expiry((server.endpoint,), server.ca_file))


@pytest.mark.parametrize(("version", "accepted"), [("TLSv1_1", False), ("TLSv1_2", True)])
def test_clients_refuse_versions_of_tls_before_1_2(secure_etcd, version, accepted):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion[version]
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(secure_etcd.files / "tls.crt", secure_etcd.files / "tls.key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        config = EtcdConfig.of(f"127.0.0.1:{server.getsockname()[1]}", ca=str(secure_etcd.ca_file))
        with EtcdClient(config, timeout=3.0) as client, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.get, "/x")
            connection, _ = server.accept()
            connection.settimeout(10)
            if accepted:
                with context.wrap_socket(connection, server_side=True) as spoken:
                    assert spoken.version() == "TLSv1.2"
            else:
                with pytest.raises(OSError):
                    context.wrap_socket(connection, server_side=True)
            with pytest.raises(EtcdUnavailable):
                asked.result(20)


def test_etcd_of_the_chart_speaks_tls_1_3_only(secure_etcd_factory):
    server = secure_etcd_factory("--tls-min-version", "TLS1.3")
    with EtcdClient(server.root, timeout=5.0) as client:
        client.put("/x", b"1")
    host, _, port = server.endpoint.rpartition(":")
    older = ssl.create_default_context(cafile=str(server.ca_file))
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port)), 5) as plain, pytest.raises(ssl.SSLError):
        older.wrap_socket(plain, server_hostname=host)


def test_working_connections_are_kept_if_files_change(secure_etcd, other):
    with EtcdClient(secure_etcd.root, timeout=2.0) as client:
        client.put("/x", b"1")
        secure_etcd.trust(other)
        assert client.get("/x").value == b"1"
