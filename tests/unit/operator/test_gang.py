"""A minimum that is bound in part, where the operator does not share the cluster out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.api.job import JobStatus
from elastrain.api.records import Member
from elastrain_operator.facts import Coordination, JobRef, Observed, Refusal, RefusalKind, StartAttempts, Trouble
from elastrain_operator.job.plan import Plan, plan
from elastrain_operator.job.state import LoopState
from elastrain_operator.policy.size import minimum as gangs
from elastrain_operator.policy.size.minimum import Holding
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "uid", 1)
pod = workers_at(NOW, age=0.0, node="n{}", started=False)
NO_NODE = Trouble("Unschedulable", "0/2 nodes are available")


@examples(60)
@given(
    st.integers(2, 5).flatmap(
        lambda jobs: st.tuples(
            st.integers(4, 9), st.lists(st.tuples(st.integers(2, 4), st.uuids()), min_size=jobs, max_size=jobs)
        )
    )
)
def test_jobs_that_hold_parts_of_their_minima_do_not_wait_for_each_other_for_ever(case):
    """The scheduler gives free room to jobs in turn, one worker at a time; a job that starts ends after ten minutes."""
    room, jobs = case
    bound, state = [0] * len(jobs), [StartAttempts() for _ in jobs]
    ends: dict[int, datetime] = {}
    now, done = NOW, set()
    for step in range(3 * 3600 // 10):
        now += timedelta(seconds=10)
        for n in [n for n, end in ends.items() if end <= now]:
            done.add(n)
            bound[n] = 0
            del ends[n]
        wants = [n for n, (least, _) in enumerate(jobs) if n not in done and bound[n] < least and not state[n].until]
        for n in sorted(wants, key=lambda n: (n + step) % len(jobs)):
            if sum(bound) < room:
                bound[n] += 1
        for n, (least, uid) in enumerate(jobs):
            if n in done or n in ends:
                continue
            if bound[n] >= least:
                ends[n] = now + timedelta(seconds=600)
                continue
            state[n] = gangs.update(state[n], Holding(str(uid), least, bound[n], bound[n] > 0), now)
            if state[n].until:
                bound[n] = 0
    assert len(done) == len(jobs), "each job has started and ended"


def planned(spec, pods, state: LoopState, now: datetime, etcd: Coordination | None = None, **seen) -> Plan:
    made = plan(spec, JobStatus(next_ordinal=2), Observed(JOB, tuple(pods), etcd or Coordination(), **seen), now, state)
    state.attempts = made.attempts
    return made


def waited(spec, pods, state: LoopState, seconds: float = 2 * gangs.PATIENCE, **more) -> Plan:
    planned(spec, pods, state, NOW, **more)
    return planned(spec, pods, state, NOW + timedelta(seconds=seconds), **more)


def half() -> list:
    return [pod(0), pod(1, node="", trouble=NO_NODE)]


def test_a_job_releases_its_pods_and_says_so(make_spec):
    spec, state = make_spec(minReplicas=2, maxReplicas=2), LoopState()
    made = waited(spec, half(), state)
    assert {d.pod for d in made.delete} == {"job-0", "job-1"}
    (ready,) = [c for c in made.status.conditions if c.type == "PodsReady"]
    assert (ready.status, ready.reason) == ("False", "MinimumNotBound")
    assert state.attempts.until.isoformat(timespec="seconds") in ready.message
    assert [e.reason for e in made.events].count("MinimumNotBound") == 1
    paused = planned(spec, [], state, NOW + timedelta(seconds=2 * gangs.PATIENCE + 5))
    assert (paused.create, paused.requeue_after is not None) == ((), True)
    again = planned(spec, [], state, state.attempts.until + timedelta(seconds=1))
    assert again.create == (2, 3)


def test_a_part_of_a_quota_is_released_too(make_spec):
    spec = make_spec(minReplicas=3, maxReplicas=3)
    refusal = Refusal(RefusalKind.QUOTA_EXCEEDED, "exceeded quota", NOW, 9, 1)
    unbound = [pod(0, node="", trouble=NO_NODE), pod(1, node="", trouble=NO_NODE)]
    assert not waited(spec, unbound, LoopState()).delete, "Pending pods hold no node"
    assert len(waited(spec, unbound, LoopState(refusal=refusal)).delete) == 2


def test_progress_renews_the_patience(make_spec):
    spec, state = make_spec(minReplicas=3, maxReplicas=3), LoopState()
    planned(spec, [pod(0), pod(1, node=""), pod(2, node="")], state, NOW)
    later = NOW + timedelta(seconds=gangs.PATIENCE - 1)
    planned(spec, [pod(0), pod(1), pod(2, node="")], state, later)
    assert state.attempts.since == later


def test_a_job_that_has_trained_keeps_its_survivors(make_spec):
    etcd = Coordination(
        members=(Member(id="job-0", worker="job-0", address="a", generation=1),),
        generation=builders.generation(1, "job-0", "job-1"),
    )
    spec = make_spec(minReplicas=2, maxReplicas=2)
    made = waited(spec, [pod(0, started=True), pod(1, node="", trouble=NO_NODE)], LoopState(), etcd=etcd)
    assert made.delete == ()


def test_nothing_is_released_while_etcd_is_unknown_or_the_allocator_decides(make_spec):
    spec, state = make_spec(minReplicas=2, maxReplicas=2), LoopState()
    planned(spec, half(), state, NOW)
    unknown = plan(spec, JobStatus(next_ordinal=2), Observed(JOB, tuple(half())), NOW + timedelta(hours=1), state)
    assert (unknown.delete, unknown.target) == ((), None)
