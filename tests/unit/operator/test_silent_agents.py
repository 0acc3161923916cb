"""Workers that have started, and then neither train nor answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.records import Member
from elastrain_operator.facts import Coordination, JobRef, Observed
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.policy.losses.starting import ANSWER_SECONDS
from elastrain_resource.job import JobStatus, LossStreak
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "uid", 1)
LATER = NOW + timedelta(seconds=ANSWER_SECONDS)
pod = workers_at(NOW, age=0.0, node="n{}")


def etcd(*heard: str) -> Coordination:
    members = tuple(Member(id=n, worker=n, address="a", generation=1) for n in heard)
    return Coordination(members=members, generation=builders.generation(1, *heard))


def look(spec, state: LoopState, now: datetime, seen: Coordination | None, status: JobStatus | None = None):
    made = plan(spec, status or JobStatus(next_ordinal=2), Observed(JOB, (pod(0), pod(1)), seen), now, state)
    state.silent_agents = made.silent_agents
    return made


def test_a_silent_worker_is_lost_after_its_time_and_replaced(make_spec):
    spec, state = make_spec(replicas=2), LoopState()
    first = look(spec, state, NOW, etcd("job-0"))
    assert first.requeue_after <= ANSWER_SECONDS
    assert not look(spec, state, LATER - timedelta(seconds=1), etcd("job-0")).delete
    made = look(spec, state, LATER, etcd("job-0"), first.status)
    assert [(d.pod, d.why) for d in made.delete] == [("job-1", "its agent does not answer")]
    assert made.status.restarts.infrastructure == 1
    assert made.create == (2,)
    assert (made.status.last_failure.worker, made.status.last_failure.reason) == ("job-1", "AgentSilent")
    assert [e.reason for e in made.events].count("WorkerLost") == 1


def test_it_is_counted_once(make_spec):
    spec, state = make_spec(replicas=2), LoopState()
    look(spec, state, NOW, etcd("job-0"))
    made = look(spec, state, LATER, etcd("job-0"))
    again = look(spec, state, LATER + timedelta(seconds=5), etcd("job-0"), made.status)
    assert (again.status or made.status).restarts.infrastructure == 1


@pytest.mark.parametrize("between", [None, etcd("job-0", "job-1")])
def test_the_time_starts_anew_after_an_answer_or_an_outage_of_etcd(between, make_spec):
    spec, state = make_spec(replicas=2), LoopState()
    look(spec, state, NOW, etcd("job-0"))
    look(spec, state, LATER - timedelta(seconds=2), between)
    assert not look(spec, state, LATER, etcd("job-0")).delete
    assert not look(spec, state, LATER + timedelta(seconds=ANSWER_SECONDS - 1), etcd("job-0")).delete
    assert look(spec, state, LATER + timedelta(seconds=ANSWER_SECONDS), etcd("job-0")).delete


def test_a_loss_of_etcds_data_proves_nothing(make_spec):
    spec, state = make_spec(replicas=2), LoopState()
    trained = look(spec, state, NOW, etcd("job-0", "job-1")).status
    look(spec, state, NOW, Coordination(), trained)
    assert not look(spec, state, LATER, Coordination(), trained).delete


def test_budget_of_infrastructure_ends_a_job_whose_workers_never_answer(make_spec):
    spec, state = make_spec(replicas=2, maxReplicas=2, lossLimit=1), LoopState()
    earlier = JobStatus(next_ordinal=2, loss_streak=LossStreak(count=2, time=NOW.isoformat()))
    look(spec, state, NOW, Coordination(), earlier)
    made = look(spec, state, LATER, Coordination(), earlier)
    assert [c.reason for c in made.status.conditions if c.type == "Failed"] == ["LossLimitExceeded"]
