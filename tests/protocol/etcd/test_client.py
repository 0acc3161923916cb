from __future__ import annotations

import socket
import time

import pytest

from elastrain.etcd import EtcdClient, EtcdConfig, EtcdDenied, EtcdUnavailable, LeaseLost


def test_a_key_is_read_as_written(client, job_keys):
    revision = client.put(job_keys.target, b"1")
    kv = client.get(job_keys.target)
    assert (kv.value, kv.mod_revision, kv.create_revision) == (b"1", revision, revision)
    assert client.delete(job_keys.target)
    assert client.get(job_keys.target) is None
    assert not client.delete(job_keys.target)


def test_a_prefix_is_read_at_one_revision(client, job_keys):
    client.put(job_keys.member("b"), b"2")
    revision = client.put(job_keys.member("a"), b"1")
    kvs, read_at = client.get_prefix(job_keys.members)
    assert [kv.value for kv in kvs] == [b"1", b"2"]
    assert read_at >= revision


def test_create_fails_if_the_key_exists(client, job_keys):
    assert client.create(job_keys.target, b"1")[0]
    won, held = client.create(job_keys.target, b"2")
    assert not won
    assert held.value == b"1"


def test_create_succeeds_if_the_key_already_has_the_value(client, job_keys):
    """A call that is retried after a lost answer must report its own success."""
    client.create(job_keys.target, b"1")
    assert client.create(job_keys.target, b"1")[0]


def test_swap_fails_if_the_revision_is_another(client, job_keys):
    first = client.put(job_keys.generation, b"1")
    assert client.compare_and_swap(job_keys.generation, b"2", expected_mod_revision=first)[0]
    won, held = client.compare_and_swap(job_keys.generation, b"3", expected_mod_revision=first)
    assert not won
    assert held.value == b"2"
    assert client.compare_and_swap(job_keys.target, b"x", expected_mod_revision=7) == (False, None)


def test_a_write_fails_if_its_lease_is_gone(client, job_keys):
    lease = client.lease_grant(60)
    client.lease_revoke(lease)
    with pytest.raises(LeaseLost):
        client.put(job_keys.target, b"1", lease=lease)
    with pytest.raises(LeaseLost):
        client.lease_keepalive(lease, timeout=5)


def test_unreachable_etcd_is_named_within_the_deadline():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{unused.getsockname()[1]}"
        with EtcdClient(EtcdConfig.of(endpoint), timeout=2.0) as client:
            began = time.monotonic()
            with pytest.raises(EtcdUnavailable, match=f"{endpoint} is unavailable .tried to read /x.: .*refused"):
                client.get("/x")
            assert time.monotonic() - began < 8.0, "the deadline is 2 s"


def test_silent_etcd_is_named_within_the_deadline(etcd_factory):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=2.0) as client:
        client.put("/x", b"1")
        server.pause()
        with pytest.raises(EtcdUnavailable, match="no answer in time"):
            client.get("/x")
        server.resume()
        assert client.get("/x").value == b"1"


def test_a_call_goes_to_another_endpoint_if_one_is_down(etcd):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        down = f"127.0.0.1:{unused.getsockname()[1]}"
        with EtcdClient(EtcdConfig.of(f"{down},{etcd.endpoint}")) as client:
            assert client.put("/x", b"1") > 0


def test_calls_work_again_soon_after_a_restart(etcd_factory, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        client.put("/x", b"1")
        server.kill()
        with pytest.raises(EtcdUnavailable):
            client.get("/x")
        server.start()

        def answers() -> bool:
            try:
                return client.get("/x").value == b"1"
            except EtcdUnavailable:
                return False

        eventually(answers, within=30.0, what="an answer after etcd's restart")


# ---- users and permissions -----------------------------------------------------------------------------------------
def test_a_user_may_do_what_it_is_permitted(guarded):
    _, config = guarded
    with EtcdClient(config("trainer")) as client:
        client.put("/elastrain/x", b"1")
        with pytest.raises(EtcdDenied, match=r"does not allow user 'trainer' to write /other: .*permission denied"):
            client.put("/other", b"1")


def test_wrong_credentials_are_named_at_once(guarded):
    server, config = guarded
    began = time.monotonic()
    with EtcdClient(config("stranger")) as client, pytest.raises(EtcdDenied, match="user 'stranger' to log in"):
        client.get("/elastrain/x")
    with EtcdClient(EtcdConfig.of(server.endpoint)) as client, pytest.raises(EtcdDenied, match="without a user name"):
        client.get("/elastrain/x")
    assert time.monotonic() - began < 8.0, "no time-out was waited for"


def test_a_token_is_renewed_if_etcd_forgot_it(guarded, eventually, job_keys):
    """Simple tokens are in etcd's memory: a restart invalidates them, as does their expiry."""
    server, config = guarded
    with EtcdClient(config("trainer")) as client:
        seen: list[bytes] = []
        client.put(job_keys.target, b"1")
        watch = client.watch_prefix(job_keys.prefix, lambda b: seen.extend(e.kv.value for e in b.events))
        lease = client.lease(2)
        server.kill()
        server.start()

        def written() -> bool:
            try:
                return client.put(job_keys.target, b"2") > 0
            except EtcdUnavailable:
                return False

        eventually(written, within=30.0, what="a write with a new token")
        eventually(lambda: b"2" in seen, within=30.0, what="the watch to go on with a new token")
        eventually(lambda: time.monotonic() - lease.confirmed < 1.0, within=30.0, what="the lease to go on")
        lease.close()
        watch.close()


def test_a_user_name_is_harmless_if_etcd_has_no_authentication(etcd, tmp_path):
    path = tmp_path / "password"
    path.write_text("any")
    with EtcdClient(EtcdConfig.of(etcd.endpoint, username="u", password_file=str(path))) as client:
        assert client.put("/x", b"1") > 0
