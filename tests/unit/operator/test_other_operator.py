"""Two operators over one namespace: the second leaves workers that heed another etcd alone."""

from __future__ import annotations

from datetime import timedelta

import pytest

import builders
from conditions import until
from elastrain.api.records import Member
from elastrain_operator.facts import Coordination, JobRef, Observed
from elastrain_operator.pod import manifest
from elastrain_operator.policy import elsewhere
from elastrain_operator.policy.losses import starting
from elastrain_operator.watch import parse
from loop_world import CONFIG, World, body, run
from operator_fixtures import NOW
from workers import workers_at

pod = workers_at(NOW)
OWN = CONFIG.worker_etcd.endpoints


def running(ordinal: int, endpoints: str, make_spec) -> dict:
    """A healthy worker, made by an operator with that etcd."""
    etcd = CONFIG.worker_etcd.model_copy(update={"endpoints": endpoints})
    config = CONFIG.model_copy(update={"worker_etcd": etcd})
    made = manifest.pod(JobRef("ns", "job", "uid", 1), make_spec(maxReplicas=2), ordinal, config)
    made["metadata"] |= {"uid": f"uid-{ordinal}", "creationTimestamp": NOW.isoformat()}
    state = {"running": {"startedAt": NOW.isoformat()}}
    ready = {"type": "Ready", "status": "True"}
    made["status"] = {
        "phase": "Running", "conditions": [ready], "containerStatuses": [{"name": "trainer", "state": state}]
    }  # fmt: skip
    return made


class Watched(World):
    """With the events, and workers that exist already. This operator's etcd has no record of them."""

    def __init__(self, *pods: dict) -> None:
        super().__init__()
        self.pods = {p["metadata"]["name"]: p for p in pods}
        self.watched = [parse.pod(p, NOW) for p in pods]
        self.events: list = []
        self.looks = 0

    def of(self, keys):
        self.looks += 1
        return super().of(keys)

    def record(self, job, event):
        self.events.append(event)


def seen_by_an_operator(make_spec, endpoints: str, done) -> Watched:
    """The world after the operator has looked at a job whose two workers heed ``endpoints``."""
    world = Watched(*(running(n, endpoints, make_spec) for n in (0, 1)))

    async def scenario(world, jobs):
        job = body()
        job["status"] = {"nextOrdinal": 2, "startTime": NOW.isoformat()}
        jobs.see(job, lambda _: world.watched)
        await until(lambda: done(world), "what the operator does")

    run(scenario, world)
    return world


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch, quick_loops) -> None:
    monkeypatch.setattr(starting, "ANSWER_SECONDS", 0.0)


def test_worker_without_a_record_is_deleted_if_it_heeds_this_etcd(make_spec):
    seen_by_an_operator(make_spec, OWN, lambda world: not {"job-0", "job-1"} & world.pods.keys())


def test_second_operator_says_so_and_changes_nothing_if_the_workers_heed_another_etcd(make_spec):
    world = seen_by_an_operator(make_spec, "theirs.other.svc:2379", lambda world: world.events)
    assert set(world.pods) == {"job-0", "job-1"}
    assert (world.statuses, world.target) == ([], None)
    assert [e.reason for e in world.events] == ["OtherOperator"]
    assert "worker job-0 and 1 more heeds the etcd at theirs.other.svc:2379, not etcd:2379" in world.events[0].message


@pytest.mark.parametrize(
    ("given", "heeds_another"),
    [
        (OWN, False),
        ("", False),
        ("etcd", False),
        ("new:2379,etcd:2379", False),
        ("etcd:2380", True),
        ("etcd.other.svc:2379", True),
        ("[fd00::1]:2379", True),
    ],
)
def test_etcd_is_another_only_if_no_endpoint_is_the_same(given, heeds_another):
    seen = Observed(JobRef("ns", "job", "uid", 1), (pod(0, etcd=given),), Coordination(), etcd=OWN)
    assert bool(elsewhere.foreign_workers(seen)) is heeds_another


def test_a_record_of_the_worker_proves_its_etcd_whatever_its_name():
    seen = Observed(JobRef("ns", "job", "uid", 1), (pod(0, etcd="alias:2379"), pod(1, etcd="alias:2379")))
    heard = Coordination(
        members=(Member(id="job-0", worker="job-0", address="a"),), generation=builders.generation(1, "job-1")
    )
    for records, expected in ((None, 2), (Coordination(), 2), (heard, 0)):
        assert len(elsewhere.foreign_workers(Observed(seen.job, seen.pods, records, etcd=OWN))) == expected


def test_worker_that_has_ended_keeps_no_operator_off():
    seen = Observed(JobRef("ns", "job", "uid", 1), (pod(0, etcd="theirs:1", over=True),), Coordination(), etcd=OWN)
    assert elsewhere.foreign_workers(seen) == ()


# ---- claims to jobs without workers ----------------------------------------------------------------------------------
THEIRS = "theirs.other.svc:2379"


def follow(before, seen, version="1", claimed=THEIRS, after=0.0):
    return elsewhere.followed(before, seen, claimed, version, NOW + timedelta(seconds=after))


EMPTY = Observed(JobRef("ns", "job", "uid", 1), (), Coordination(), etcd=OWN)


def test_a_claim_is_another_s_only_without_a_common_endpoint_and_without_an_own_worker():
    assert follow(None, EMPTY) is not None
    assert follow(None, EMPTY, claimed="") is None
    assert follow(None, EMPTY, claimed=f"new:2379,{OWN}") is None
    assert follow(None, Observed(EMPTY.job, (pod(0, etcd=OWN),), Coordination(), etcd=OWN)) is None
    assert follow(None, Observed(EMPTY.job, (pod(0, etcd=OWN, over=True),), Coordination(), etcd=OWN)) is not None


def test_a_claim_is_due_once_the_job_has_not_changed_for_its_patience():
    first = follow(None, EMPTY)
    assert follow(first, EMPTY, after=30) == first
    changed = follow(first, EMPTY, version="2", after=30)
    assert changed.due == NOW + timedelta(seconds=30) + elsewhere.PATIENCE


@pytest.mark.parametrize(("suspended", "expected"), [(True, ""), (False, OWN)])
def test_a_job_is_claimed_before_its_first_worker_and_unclaimed_while_suspended(suspended, expected):
    assert elsewhere.claim(suspended, Observed(EMPTY.job, (), Coordination(), etcd=OWN)) == expected
