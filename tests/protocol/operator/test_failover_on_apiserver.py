"""Operators that share a Lease, as processes against a real API server and a real etcd."""

from __future__ import annotations

import contextlib
import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from elastrain.api.names import EXIT_INFRASTRUCTURE

pytestmark = pytest.mark.apiserver


@pytest.fixture
def replica(cluster, etcd, operator_factory):
    """``replica(seconds)``: another operator of the test's namespace; all share one Lease."""
    lease = f"--lease={cluster.namespace}/operator"
    return lambda seconds: operator_factory(etcd, cluster.namespace, lease, f"--lease-seconds={seconds}")


@pytest.fixture
def lease_path(cluster):
    return f"/apis/coordination.k8s.io/v1/namespaces/{cluster.namespace}/leases/operator"


def state(operator) -> dict:
    """The state that it reports; empty while it starts."""
    with contextlib.suppress(OSError):
        return operator.health()["state"]
    return {}


def is_role(operator, role: str) -> bool:
    assert operator.is_running, operator.log.read_text()[-3000:]
    return state(operator).get("role") == role


def test_second_operator_stands_by_and_takes_over_at_once_if_the_first_is_stopped(
    cluster, play, replica, lease_path, eventually
):
    # The test does not wait for the expiry of a one-minute lease: the first operator releases it.
    first = replica(60)
    eventually(lambda: is_role(first, "leader"), 60, "the first leads")
    second = replica(60)
    eventually(lambda: is_role(second, "standby"), 60, "the second stands by")
    play(cluster.create_job("handed", maxReplicas=3, replicas=2))
    eventually(lambda: cluster.status("handed").get("readyReplicas") == 2, 60, "two workers train")
    eventually(lambda: state(second)["leader"] == state(first)["identity"], 10, "the second knows who leads")
    assert "jobs" not in state(second), "it has not read them"
    before = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}

    first.stop()
    eventually(lambda: is_role(second, "leader"), 30, "the second leads")

    cluster.patch_job("handed", replicas=3)
    eventually(lambda: cluster.status("handed").get("readyReplicas") == 3, 30, "three workers train")
    after = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}
    assert before.items() <= after.items()
    assert cluster.status("handed")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}
    assert cluster.call("GET", lease_path)["spec"]["leaseTransitions"] == 1


def test_second_operator_takes_over_within_fifteen_seconds_if_the_first_is_killed(
    cluster, play, replica, lease_path, eventually
):
    first, second = replica(10), replica(10)
    eventually(lambda: "leader" in (state(first).get("role"), state(second).get("role")), 60, "one of them leads")
    leader, other = (first, second) if is_role(first, "leader") else (second, first)
    eventually(lambda: is_role(other, "standby"), 60, "the other stands by")
    player = play(cluster.create_job("killed", maxReplicas=3, replicas=3))
    eventually(lambda: cluster.status("killed").get("readyReplicas") == 3, 60, "three workers train")
    survivors = {n: cluster.pods()[n]["metadata"]["uid"] for n in ("killed-0", "killed-1")}
    with player.paused():
        cluster.patch_job("killed", replicas=2)
        eventually(lambda: player.target().desired == 2, 30, "the third is asked to leave")
        leader.kill()

    eventually(lambda: is_role(other, "leader"), 15, "the other leads")

    eventually(lambda: set(cluster.pods()) == set(survivors), 30, "the drained pod is deleted")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()} == survivors
    assert cluster.status("killed")["restarts"] == {"user": 0, "infrastructure": 0, "preemption": 0}


def test_a_leader_frozen_beyond_its_lease_writes_nothing_and_ends(cluster, client, replica, lease_path, eventually):
    """The test itself takes over the Lease and no other operator runs: any write is the frozen one's."""
    leader = replica(3)
    eventually(lambda: is_role(leader, "leader"), 60, "it leads")
    keys = cluster.create_job("frozen", maxReplicas=4, replicas=2)
    eventually(lambda: len(cluster.pods()) == 2 and client.get(keys.target), 60, "it works")

    os.kill(leader.process.pid, signal.SIGSTOP)
    eventually(lambda: age(cluster.call("GET", lease_path)) > timedelta(seconds=4), 30, "its lease has run out")
    taken = cluster.merge(lease_path, {"spec": {"holderIdentity": "another"}})
    cluster.patch_job("frozen", replicas=4)  # it would create two pods, and write a status, a target and an event
    before = written(cluster, client, keys)

    os.kill(leader.process.pid, signal.SIGCONT)
    assert leader.process.wait(30) == EXIT_INFRASTRUCTURE, leader.log.read_text()[-3000:]

    assert written(cluster, client, keys) == before
    assert cluster.call("GET", lease_path)["metadata"]["resourceVersion"] == taken["metadata"]["resourceVersion"]
    assert "no longer leading" in leader.log.read_text()


def age(lease: dict) -> timedelta:
    """Time since the last renewal by its holder, on this machine's clock."""
    return datetime.now(UTC) - datetime.fromisoformat(lease["spec"]["renewTime"])


def written(cluster, client, keys) -> dict[str, object]:
    """The current versions of everything that an operator can write about a job."""
    pods = {name: pod["metadata"]["resourceVersion"] for name, pod in cluster.pods().items()}
    return {
        "job": cluster.job(keys.job)["metadata"]["resourceVersion"],
        "pods": pods,
        "events": cluster.events(keys.job),
        "etcd": [(kv.key, kv.mod_revision) for kv in client.get_prefix(keys.prefix)[0]],
    }
