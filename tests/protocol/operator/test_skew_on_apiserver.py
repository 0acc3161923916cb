"""An upgrade and a rollback of operator and agents under training, on a real API server and a real etcd.

``next_version.py`` plays the next version's operator: it writes fields, words and conditions unknown to this one.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import next_version
from elastrain.api.records import Member, Target
from next_version import MARK
from operator_process import OperatorProcess
from played import Played

pytestmark = pytest.mark.apiserver

NONE_LOST = {"user": 0, "infrastructure": 0, "preemption": 0}


def newer_member(member: Member) -> bytes:
    """The record of a newer agent: a phase and a field that this version does not know."""
    return json.dumps({**json.loads(member.encode()), "phase": "tuning", MARK: 1}).encode()


class Versions:
    """One operator at a time."""

    def __init__(self, start: Callable[..., OperatorProcess]) -> None:
        self._start = start
        self._running: OperatorProcess | None = None

    def next(self) -> None:
        """Replace the operator by one of the next version."""
        self.stop()
        self._running = self._start(program="next_version.py")

    def present(self) -> None:
        """Replace it by one of this version."""
        self.stop()
        self._running = self._start()

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()
            self._running = None

    def kill(self) -> None:
        assert self._running is not None
        self._running.kill()
        self._running = None


@pytest.fixture
def versions(cluster, etcd, operator_factory) -> Versions:
    return Versions(lambda **how: operator_factory(etcd, cluster.namespace, **how))


def uids(cluster) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}


def trains(cluster, job: str, size: int) -> bool:
    return cluster.status(job).get("readyReplicas") == size


def test_no_worker_is_replaced_by_an_upgrade_and_a_rollback_under_training(cluster, client, versions, play, eventually):
    versions.present()
    keys = cluster.create_job("skewed", maxReplicas=4, replicas=2)
    player = play(keys)
    eventually(lambda: trains(cluster, "skewed", 2), 60, "two workers train")
    workers = uids(cluster)

    versions.next()
    cluster.patch_job("skewed", replicas=3)
    eventually(lambda: trains(cluster, "skewed", 3), 60, "three workers train under the next version")
    eventually(lambda: MARK in cluster.status("skewed"), 30, "its status")
    assert MARK in json.loads(client.get(keys.target).value)
    assert workers.items() <= uids(cluster).items()
    workers = uids(cluster)
    with player.paused():  # one agent is of the next version, and one of a later one
        record = Member.decode(client.get(keys.member("skewed-0")).value)
        client.put(keys.member("skewed-0"), newer_member(record))
        client.put(keys.member("skewed-1"), b'{"schema": 2}')

        versions.kill()
        versions.present()
        cluster.patch_job("skewed", replicas=4)
        eventually(lambda: "skewed-3" in cluster.pods(), 60, "the operator of this version scales")
    eventually(lambda: trains(cluster, "skewed", 4), 60, "four workers train after the rollback")
    assert workers.items() <= uids(cluster).items()
    status = cluster.status("skewed")
    assert status["restarts"] == {**NONE_LOST, MARK: 1}
    assert status[MARK] == {"deep": [1]}
    assert next_version.ARCHIVED in status["conditions"]
    assert cluster.condition("skewed", "CoordinationAvailable")["status"] == "True"

    cluster.patch_job("skewed", replicas=3)
    eventually(lambda: set(uids(cluster)) == set(workers), 30, "the newest worker is drained")
    versions.next()
    eventually(lambda: Target.decode(client.get(keys.target).value).leaving == (), 30, "the upgrade goes on")
    eventually(lambda: trains(cluster, "skewed", 3), 60, "three workers train")
    assert uids(cluster) == workers


def test_a_job_that_ended_under_the_next_version_does_not_run_again_after_a_rollback(
    cluster, versions, play, eventually
):
    versions.next()
    player: Played = play(cluster.create_job("over", maxReplicas=2))
    eventually(lambda: trains(cluster, "over", 2), 60, "two workers train")
    player.finish(step=100)
    eventually(lambda: cluster.status("over").get("phase") == "Succeeded", 30, "the job has succeeded")

    versions.present()
    play(cluster.create_job("later", maxReplicas=1))
    eventually(lambda: trains(cluster, "later", 1), 60, "the operator of this version works")
    assert {name for name in cluster.pods() if name.startswith("over-")} <= {"over-0", "over-1"}
    assert cluster.status("over")["phase"] == "Succeeded"


def test_a_status_that_cannot_be_read_leaves_the_job_alone_and_says_so(cluster, versions, play, eventually):
    versions.present()
    play(cluster.create_job("strange", maxReplicas=3, replicas=2))
    eventually(lambda: trains(cluster, "strange", 2), 60, "two workers train")
    workers = uids(cluster)

    versions.stop()
    path = f"{cluster.job_path('strange')}/status"
    cluster.merge(path, {"status": {"completionTime": "2030-01-01T00:00:00Z"}})
    versions.present()
    cluster.patch_job("strange", replicas=3)
    found = lambda: cluster.condition("strange", "PodsReady")  # noqa: E731
    eventually(lambda: found().get("reason") == "StatusUnreadable", 60, "it is reported")
    assert "completionTime" in found()["message"]
    eventually(lambda: "StatusUnreadable" in dict(cluster.events("strange")), 30, "an event tells, too")
    assert uids(cluster) == workers

    cluster.merge(path, {"status": {"completionTime": None}})
    cluster.merge(cluster.job_path("strange"), {"metadata": {"annotations": {"mended": "by hand"}}})
    eventually(lambda: trains(cluster, "strange", 3), 60, "three workers train")
    assert workers.items() <= uids(cluster).items()
