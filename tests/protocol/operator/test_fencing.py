"""The fence in a real etcd: etcd refuses the writes of an operator that no longer leads."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from elastrain.api.keys import JobKeys
from elastrain.etcd import Batch, EtcdClient
from elastrain_operator.config import LeaseName
from elastrain_operator.kube.client import ApiError, NotLeading
from elastrain_operator.leader.fencing import FencedEtcd, fence_key

LEASE = LeaseName(namespace="here", name="operator")


class Replica:
    """An operator: ``leads`` is the API server's answer, ``late`` that of its own clock."""

    def __init__(self, client: EtcdClient, key: str, name: str) -> None:
        self.leads, self.late = True, False
        self.before_proof: Callable[[], object] = lambda: None
        self.etcd = FencedEtcd(client, key, name, self, self.prove)

    def prove(self) -> None:
        self.before_proof()
        if not self.leads:
            raise NotLeading("prove")

    def seconds_left(self, what: str) -> float:
        if self.late:
            raise NotLeading(what)
        return 5.0


@pytest.fixture
def fence() -> str:
    return fence_key(uuid.uuid4().hex, LEASE)


@pytest.fixture
def replica(client: EtcdClient, fence: str) -> Callable[[str], Replica]:
    return lambda name: Replica(client, fence, name)


def value(client: EtcdClient, key: str) -> bytes | None:
    held = client.get(key)
    return held.value if held else None


def test_leader_writes_and_claims_once(client, replica, fence, job_keys):
    leader = replica("a")
    leader.etcd.put_all({job_keys.target: b"one"})
    claimed = client.get(fence)
    leader.etcd.put_all({job_keys.target: b"two"})
    assert value(client, job_keys.target) == b"two"
    assert client.get(fence) == claimed
    assert b'"holder": "a"' in claimed.value


def test_a_write_of_an_older_leader_is_refused_before_its_clock_expires(client, replica, job_keys):
    older, newer = replica("a"), replica("b")
    older.etcd.put_all({job_keys.target: b"old"})
    older.leads = False
    newer.etcd.claim()
    with pytest.raises(NotLeading):
        older.etcd.put_all({job_keys.target: b"stale"})
    assert value(client, job_keys.target) == b"old"
    newer.etcd.put_all({job_keys.target: b"new"})
    with pytest.raises(NotLeading):
        older.etcd.put_all({job_keys.target: b"stale"})
    assert value(client, job_keys.target) == b"new"


@pytest.mark.parametrize("asked_in_time", [True, False])
def test_older_leader_cannot_claim_after_the_newer_one(replica, job_keys, asked_in_time):
    older, newer = replica("a"), replica("b")
    # It has read the fence; the proof succeeds if it was requested just before another took over.
    older.before_proof = newer.etcd.claim
    older.leads = asked_in_time
    with pytest.raises(NotLeading):
        older.etcd.claim()
    newer.etcd.put_all({job_keys.target: b"new"})  # its claim is in force


def test_nothing_is_sent_if_the_lease_has_ended_by_the_local_clock(client, replica, job_keys):
    leader = replica("a")
    leader.etcd.put_all({job_keys.target: b"one"})
    leader.late = True
    with pytest.raises(NotLeading):
        leader.etcd.put_all({job_keys.target: b"two"})
    with pytest.raises(NotLeading):
        leader.etcd.delete_prefix_if(job_keys.prefix, job_keys.target, b"one")
    assert value(client, job_keys.target) == b"one"


def test_records_are_deleted_only_if_they_name_the_cluster(client, replica, job_keys):
    leader = replica("a")
    leader.etcd.put_all({job_keys.owner: b"another cluster", job_keys.target: b"one"})
    assert not leader.etcd.delete_prefix_if(job_keys.prefix, job_keys.owner, b"this cluster")
    assert value(client, job_keys.target) == b"one"
    assert leader.etcd.delete_prefix_if(job_keys.prefix, job_keys.owner, b"another cluster")
    assert client.get_prefix(job_keys.prefix)[0] == []


def test_an_older_leader_deletes_nothing(client, replica, job_keys):
    older, newer = replica("a"), replica("b")
    older.etcd.put_all({job_keys.owner: b"here"})
    older.leads = False
    newer.etcd.claim()
    with pytest.raises(NotLeading):
        older.etcd.delete_prefix_if(job_keys.prefix, job_keys.owner, b"here")
    assert value(client, job_keys.owner) == b"here"


def test_leader_continues_if_etcd_has_lost_its_data(client, replica, fence, job_keys):
    leader = replica("a")
    leader.etcd.put_all({job_keys.target: b"one"})
    client.delete(fence)
    leader.etcd.put_all({job_keys.target: b"two"})
    assert value(client, job_keys.target) == b"two"
    assert value(client, fence)


class Restored:
    """A client whose watch says that etcd came back with a snapshot, the older leader's claim in it."""

    def __init__(self, client: EtcdClient, fence: str) -> None:
        self._client, self._fence = client, fence
        self.reported: list[Batch] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def watch_prefix(self, prefix: str, on_events: Callable[[Batch], None], *_: object) -> None:
        self._on_events = on_events
        self._on_events(Batch((), 100, snapshot=True))

    def restore(self, claim: bytes) -> None:
        self._client.put_all({self._fence: claim})
        self._on_events(Batch((), 50, snapshot=True))


def test_leader_claims_the_fence_anew_if_a_snapshot_brings_an_older_claim_back(client, fence, job_keys):
    etcd = Restored(client, fence)
    older, newer = Replica(client, fence, "a"), Replica(etcd, fence, "b")
    older.etcd.put_all({job_keys.target: b"old"})
    olders = value(client, fence)
    older.leads = False
    newer.etcd.watch_prefix("/", etcd.reported.append)
    assert b'"holder": "b"' in value(client, fence)  # with its first list, before any write
    etcd.restore(olders)
    assert len(etcd.reported) == 2
    with pytest.raises(NotLeading):
        older.etcd.put_all({job_keys.target: b"stale"})
    newer.etcd.put_all({job_keys.target: b"new"})


def test_the_fence_is_claimed_with_the_next_list_if_a_claim_after_a_restore_fails(client, fence, job_keys):
    etcd = Restored(client, fence)
    older, newer = Replica(client, fence, "a"), Replica(etcd, fence, "b")
    older.etcd.claim()
    olders = value(client, fence)
    newer.etcd.watch_prefix("/", etcd.reported.append)

    def unreachable() -> None:
        raise ApiError("prove", 0, "Unreachable", "connection refused")

    newer.before_proof = unreachable
    etcd.restore(olders)
    assert value(client, fence) == olders
    newer.before_proof = lambda: None
    etcd.restore(olders)  # with the same revision as the list before
    assert b'"holder": "b"' in value(client, fence)


def test_a_write_fails_and_is_retried_later_if_leadership_cannot_be_proved(client, replica, fence, job_keys):
    leader = replica("a")

    def unreachable() -> None:
        raise ApiError("prove", 0, "Unreachable", "connection refused")

    leader.before_proof = unreachable
    with pytest.raises(ApiError, match="connection refused"):
        leader.etcd.put_all({job_keys.target: b"one"})
    assert value(client, job_keys.target) is None
    assert value(client, fence) is None
    leader.before_proof = lambda: None
    leader.etcd.put_all({job_keys.target: b"one"})


def test_the_fences_key_belongs_to_no_job_and_differs_by_lease_and_cluster():
    keys = {
        fence_key(cluster, LeaseName(namespace=namespace, name="operator"))
        for cluster in ("default", "a/b/c/d")
        for namespace in ("here", "there")
    }
    assert len(keys) == 4
    assert all(JobKeys.of(key) is None and key.startswith("/elastrain/") for key in keys)
