from __future__ import annotations

import threading
import time

import pytest

from elastrain.etcd import EtcdClient, EtcdConfig, LeaseCallbacks
from elastrain.etcd import lease as lease_module


@pytest.fixture
def server(etcd_factory):
    return etcd_factory()


@pytest.fixture
def own_client(server):
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        yield client


def test_keys_vanish_at_once_if_the_lease_is_closed(client, job_keys):
    lease = client.lease(60)
    lease.set(job_keys.target, b"1")
    assert lease.flush(5.0)
    lease.close()
    assert client.get(job_keys.target) is None


def test_only_the_last_value_matters_if_a_key_is_set_often(client, job_keys):
    lease = client.lease(60)
    for i in range(100):
        lease.set(job_keys.target, str(i).encode())
    assert lease.flush(5.0)
    assert client.get(job_keys.target).value == b"99"
    lease.unset(job_keys.target)
    assert lease.flush(5.0)
    assert client.get(job_keys.target) is None
    lease.close()


def test_a_lease_is_kept_if_etcd_restarts(server, own_client, eventually):
    heard: list[str] = []
    callbacks = LeaseCallbacks(
        on_lost=lambda: heard.append("lost"),
        on_state=lambda error: heard.append("failing" if error else "fine"),
    )
    lease = own_client.lease(3, callbacks)
    lease.set("/x", b"1")
    assert lease.flush(5.0)
    created = own_client.get("/x").create_revision
    server.kill()
    eventually(lambda: heard == ["failing"], within=30.0, what="the outage to be reported")
    lease.set("/x", b"2")
    server.start()
    eventually(lambda: heard == ["failing", "fine"], within=30.0, what="the recovery to be reported")
    assert lease.flush(5.0)
    kv = own_client.get("/x")
    assert (kv.value, kv.create_revision) == (b"2", created), "the key must have lived through the restart"
    lease.close()


def test_a_new_lease_takes_the_keys_if_the_old_one_expired(server, own_client, eventually):
    heard: list[str] = []
    callbacks = LeaseCallbacks(on_lost=lambda: heard.append("lost"), on_regained=lambda: heard.append("regained"))
    lease = own_client.lease(2, callbacks)
    lease.set("/x", b"1")
    assert lease.flush(5.0)
    first = own_client.get("/x").create_revision
    server.pause()
    eventually(lambda: time.monotonic() - lease.confirmed > 3.0, within=30.0)
    server.resume()
    eventually(lambda: heard == ["lost", "regained"], within=30.0, what="the lease to be replaced")
    assert own_client.get("/x").create_revision > first
    lease.close()


def test_a_change_for_later_comes_with_the_next_one_or_with_a_new_lease(client, job_keys):
    lease = client.lease(60)
    lease.set(job_keys.target, b"1", later=True)
    assert lease.flush(5.0)
    written = client.get(job_keys.target)
    assert written.value == b"1", "it was not written before"
    lease.set(job_keys.target, b"2", later=True)
    assert lease.flush(5.0)
    assert client.get(job_keys.target) == written
    lease.set(job_keys.owner, b"another key")
    assert lease.flush(5.0)
    assert client.get(job_keys.target) == written
    lease.set(job_keys.target, b"3", later=True)
    client.lease_revoke(lease.id)
    lease.set(job_keys.owner, b"the lease is found to be lost")
    assert lease.flush(5.0)
    assert client.get(job_keys.target).value == b"3"
    lease.close()


def test_a_key_is_rewritten_if_it_was_deleted(client, job_keys):
    lease = client.lease(60)
    lease.set(job_keys.target, b"1")
    assert lease.flush(5.0)
    client.delete(job_keys.target)
    lease.rewrite(job_keys.target)
    assert lease.flush(5.0)
    assert client.get(job_keys.target).value == b"1"
    lease.close()


def test_a_key_is_rewritten_if_its_deletion_is_reported_before_the_answer_to_its_write(client, job_keys, monkeypatch):
    lease = client.lease(60)
    write, deletions = client.put, iter([job_keys.target])

    def put(key: str, *args, **options) -> None:
        write(key, *args, **options)
        if next(deletions, None) == key:
            client.delete(key)
            lease.rewrite(key)

    monkeypatch.setattr(client, "put", put)
    lease.set(job_keys.target, b"1")
    assert lease.flush(5.0)
    assert client.get(job_keys.target).value == b"1"
    lease.close()


def test_too_short_a_lease_is_refused(client):
    with pytest.raises(ValueError, match=r"lease TTL .1 s. must be at least 2 s"):
        client.lease(1)


def test_another_thread_continues_if_a_call_outlives_its_deadline(own_client, eventually, monkeypatch):
    monkeypatch.setattr(lease_module, "STUCK_SECONDS", 0.0)
    comes_back, renew, stuck = threading.Event(), own_client.lease_keepalive, []

    def renew_once_without_end(lease: int, *, timeout: float) -> int:
        if not stuck:
            stuck.append(threading.current_thread())
            comes_back.wait(30)
        return renew(lease, timeout=timeout)

    monkeypatch.setattr(own_client, "lease_keepalive", renew_once_without_end)
    lease = own_client.lease(2)
    lease.set("/x", b"1")
    assert not lease.mend(), "nothing is late yet"
    eventually(lease.mend, within=10.0, what="the thread to be found stuck")
    eventually(lambda: time.monotonic() - lease.confirmed < 1.0, within=10.0, what="the lease to be renewed again")
    eventually(lambda: own_client.get("/x") is not None, within=10.0, what="its key to be there again")
    comes_back.set()
    stuck[0].join(10)
    assert not stuck[0].is_alive(), "two threads keep one lease"
    lease.set("/x", b"2")
    assert lease.flush(5.0)
    assert own_client.get("/x").value == b"2"
    lease.close()
