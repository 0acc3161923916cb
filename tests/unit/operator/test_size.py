"""How a job's plan and conditions follow its share of the cluster."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.batch import BatchFigures
from elastrain.api.records import Generation, Member, Progress, Target
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Held, Job, Node, Policy, Share, Snapshot, Worker, WorkerShape
from elastrain_operator.facts import Coordination, Ending, JobRef, Observed, Trouble
from elastrain_operator.job.plan import plan
from elastrain_operator.pod.leaving import held
from elastrain_operator.pod.template import version
from elastrain_operator.policy.size import sizes as size
from elastrain_operator.policy.size.claims import Creation, claims
from elastrain_resource.job import GenerationStatus, JobStatus, Leaving, MeasuredSize
from elastrain_resource.job.batches import BatchStatus
from elastrain_resource.sizing.speedup import Batches, Measured
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "uid", 1)
ONE = (("nvidia.com/gpu", 1), ("pods", 1))


def share(workers: int | None, reason: str = "NoRoom", message: str = "not grown: no room", **fields) -> Share:
    return Share(workers, reason, message, **fields)


pod = workers_at(NOW, age=0.0, node="n{}", demand=ONE)


def trained(*workers: str, desired: int, **fields) -> Coordination:
    return Coordination(
        target=Target(min=1, max=4, desired=desired, reason="Start"),
        members=tuple(Member(id=n, worker=n, address="a", generation=1) for n in workers),
        generation=builders.generation(1, *workers),
        **fields,
    )


def condition(status: JobStatus, kind: str) -> tuple[str, str, str] | None:
    return next(((c.status, c.reason, c.message) for c in status.conditions if c.type == kind), None)


@pytest.mark.parametrize(
    ("fields", "before", "given", "wanted"),
    [
        ({}, None, None, 4),
        ({"replicas": 2}, None, None, 2),
        ({}, None, share(3), 3),
        ({"replicas": 2}, 3, share(3), 2),
        ({"suspend": True}, 3, share(3), 0),
        ({}, 3, share(None), 3),
        ({"maxReplicas": 2}, 3, share(None), 2),
        ({}, None, share(None), 0),
        ({"minReplicas": 2}, None, share(None, blind=True), 2),
        ({"minReplicas": 2}, 3, share(None, blind=True), 3),
        ({"minReplicas": 2, "suspend": True}, 3, share(None, blind=True), 0),
    ],
)
def test_desired_size_is_the_share_within_the_spec(make_spec, fields, before, given, wanted):
    assert size.desired_replicas(make_spec(**fields), JobStatus(desired_replicas=before), given) == wanted


def test_a_new_job_has_no_status_and_no_action_before_the_allocator_answers(make_spec):
    made = plan(
        make_spec(),
        JobStatus(),
        Observed(JOB, coordination=Coordination(), share=replace(share(None), is_answer=False)),
        NOW,
    )
    assert (made.status, made.target, made.create, made.events) == (None, None, (), ())
    assert made.claims.job.cap == 4
    blind = plan(
        make_spec(), JobStatus(), Observed(JOB, coordination=Coordination(), share=share(None, blind=True)), NOW
    )
    assert blind.create == (0,)


def test_a_job_that_waits_for_its_minimum_creates_nothing_and_reports_the_reason_once(make_spec):
    waits = share(0, "WaitingForCapacity", "waits: 2 workers must start together")
    made = plan(make_spec(minReplicas=2), JobStatus(), Observed(JOB, coordination=Coordination(), share=waits), NOW)
    assert made.create == ()
    assert condition(made.status, "PodsReady") == ("False", "WaitingForCapacity", waits.message)
    assert condition(made.status, "Grown") == ("False", "WaitingForCapacity", waits.message)
    assert [n.reason for n in made.events].count("WaitingForCapacity") == 1
    other = share(0, "WaitingForCapacity", "waits: 2 workers must start together; 1 idle")
    again = plan(
        make_spec(minReplicas=2), made.status, Observed(JOB, coordination=Coordination(made.target), share=other), NOW
    )
    assert again.events == (), "changed figures cause no event"


def test_the_workers_that_the_allocator_selected_leave_at_a_shrink(make_spec):
    given = share(1, release=frozenset({"job-0"}))
    status = JobStatus(desired_replicas=2, next_ordinal=2)
    made = plan(
        make_spec(), status, Observed(JOB, (pod(0), pod(1)), trained("job-0", "job-1", desired=2), share=given), NOW
    )
    assert made.target == Target(min=1, max=4, desired=1, leaving=("job-0",), reason="Drain")
    assert made.delete == ()


def test_a_worker_is_not_deleted_before_it_was_asked_to_leave(make_spec):
    starting = pod(1, ready=False)  # its agent has not registered yet, so it seems to have left
    etcd, status = trained("job-0", desired=2), JobStatus(desired_replicas=2, next_ordinal=2)
    first = plan(make_spec(replicas=1), status, Observed(JOB, (pod(0), starting), etcd), NOW)
    assert (first.target.leaving, first.delete) == (("job-1",), ())
    told = Coordination(first.target, etcd.members, etcd.generation)
    second = plan(make_spec(replicas=1), first.status, Observed(JOB, (pod(0), starting), told), NOW)
    assert [deletion.pod for deletion in second.delete] == ["job-1"]


def test_the_next_ordinal_stays_if_the_pods_that_had_the_last_ones_are_gone(make_spec):
    status = JobStatus(desired_replicas=2, next_ordinal=5)
    pods = (pod(0), pod(1))
    made = plan(make_spec(replicas=2), status, Observed(JOB, pods, trained("job-0", "job-1", desired=2)), NOW)
    assert made.status.next_ordinal == 5


def test_a_worker_on_a_departing_node_leaves_and_another_is_created(make_spec):
    given = share(2, replace=frozenset({"job-0"}), shaky=frozenset({"job-0"}))
    etcd = trained("job-0", "job-1", desired=2)
    status = JobStatus(desired_replicas=2, next_ordinal=2)
    first = plan(make_spec(), status, Observed(JOB, (pod(0), pod(1)), etcd, share=given), NOW)
    assert (first.target.leaving, first.target.desired) == (("job-0",), 2)
    etcd = trained("job-0", "job-1", desired=2)
    etcd = Coordination(first.target, etcd.members, etcd.generation)
    second = plan(make_spec(), first.status, Observed(JOB, (pod(0), pod(1)), etcd, share=given), NOW)
    assert second.create == (2,)
    assert second.claims.job.workers == (Worker("job-1", "n1", ONE, trains=True, uid="uid-1"),)
    assert second.claims.leaving == (Held("n0", ONE),)


def test_claims_have_pause_speed_and_remaining_time(make_spec):
    report = Progress(generation=1, world_size=2, members=2, step=40, total_steps=100, step_seconds=0.5)
    etcd = trained("job-0", "job-1", desired=2, progress=report)
    pods = (pod(0), pod(1), pod(2, ending=Ending(NOW), node="n9"))
    made = plan(make_spec(nprocPerNode=2), JobStatus(), Observed(JOB, pods, etcd, share=share(2), created=NOW), NOW)
    job = made.claims.job
    assert (job.remaining, job.nproc, job.elastic, job.trains) == (30.0, 2, True, True)
    assert job.measured == (Measured(2, 2, 0.5),)
    assert job.created == NOW.timestamp()
    assert [w.name for w in job.workers] == ["job-0", "job-1"], "the worker that stays longest comes first"
    assert made.claims.leaving == (Held("n9", ONE),)


SIZES = [
    MeasuredSize(workers=2, nodes=1, step_seconds=0.5, batch=64),
    MeasuredSize(workers=2, nodes=1, step_seconds=0.3),
    MeasuredSize(workers=1, nodes=1, step_seconds=0.9, batch=0),
]
BATCH = {"min": 32, "max": 4096, "learningRate": "Linear"}


@pytest.mark.parametrize(
    ("status", "micro", "batches"),
    [
        (None, None, Batches(32, 4096, None, each=2, micro=16)),
        (BatchStatus(samples=128), None, Batches(32, 4096, None, each=2, micro=16)),
        (BatchStatus(samples=128, base=64, noise_scale=900.0), None, Batches(64, 4096, 900.0, each=2, micro=32)),
        (BatchStatus(samples=128, base=64), 4, Batches(64, 4096, None, each=2, micro=8)),
        (BatchStatus(samples=128, base=50), None, Batches(50, 4096, None, each=2, micro=26)),
        (BatchStatus(samples=128, base=64), 0, Batches(64, 4096, None, each=2, micro=32)),
        (BatchStatus(samples=128, base=64, noise_scale=math.nan), None, Batches(64, 4096, None, each=2, micro=32)),
    ],
)
def test_claims_have_the_batches_within_the_bounds_and_only_times_of_known_batches(make_spec, status, micro, batches):
    spec = make_spec(nprocPerNode=2, minReplicas=2, maxReplicas=8, batch=BATCH)
    figures = BatchFigures(samples=128, micro_batch=micro)
    report = Progress(generation=1, world_size=4, members=2, step=9, batch=figures)
    etcd = trained("job-0", "job-1", desired=2, progress=report)
    seen = Observed(JOB, (pod(0), pod(1)), etcd, share=share(2), created=NOW)
    job = claims(spec, JobStatus(measured_sizes=SIZES, batch=status), seen, seen.pods, Creation()).job
    assert job.batches == batches
    assert job.measured == (Measured(2, 1, 0.5, 64),)


def test_claims_of_a_job_with_a_fixed_batch_have_no_times_of_chosen_ones(make_spec):
    seen = Observed(JOB, (pod(0), pod(1)), trained("job-0", "job-1", desired=2), share=share(2), created=NOW)
    job = claims(make_spec(), JobStatus(measured_sizes=SIZES), seen, seen.pods, Creation()).job
    assert (job.batches, job.measured) == (None, (Measured(2, 1, 0.3),))


def test_a_job_without_members_that_trained_does_not_claim_to_train(make_spec):
    old = trained("job-8", desired=2)  # none of its workers is left
    etcd = Coordination(old.target, (), old.generation)
    status = JobStatus(desired_replicas=2, generation=GenerationStatus(number=1, size=1, reason="Start"))
    seen = Observed(JOB, (pod(9, started=False, ready=False),), etcd, share=share(2))
    assert not plan(make_spec(), status, seen, NOW).claims.job.trains


def test_stopped_members_with_state_claim_to_train(make_spec):
    etcd = trained("job-0", desired=2)
    stopped = Coordination(etcd.target, etcd.members, Generation(number=2, reason="Drain", leader="l"))
    status = JobStatus(desired_replicas=2, generation=GenerationStatus(number=2, size=0, reason="Drain"))
    assert plan(make_spec(), status, Observed(JOB, (pod(0),), stopped, share=share(2)), NOW).claims.job.trains


def test_ended_and_suspended_jobs_claim_nothing_and_have_no_condition_grown(make_spec):
    done = trained("job-0", desired=1, progress=Progress(generation=1, world_size=1, members=1, step=9, finished=True))
    first = plan(make_spec(), JobStatus(), Observed(JOB, (pod(0),), trained("job-0", desired=1), share=share(1)), NOW)
    assert condition(first.status, "Grown")
    ended = plan(make_spec(), first.status, Observed(JOB, (pod(0),), done, share=share(1)), NOW)
    assert condition(ended.status, "Grown") is None
    assert (ended.claims.job, ended.claims.leaving) == (None, (Held("n0", ONE),))
    suspended = plan(make_spec(suspend=True), first.status, Observed(JOB, (pod(0),), done, share=share(1)), NOW)
    assert suspended.claims.job is None


def test_condition_becomes_unknown_if_the_cluster_is_no_longer_shared_out(make_spec):
    first = plan(make_spec(), JobStatus(), Observed(JOB, (pod(0),), trained("job-0", desired=1), share=share(1)), NOW)
    later = plan(make_spec(), first.status, Observed(JOB, (pod(0),), trained("job-0", desired=1)), NOW)
    assert condition(later.status, "Grown")[:2] == ("Unknown", "NotShared")
    assert later.claims is None
    never = plan(make_spec(), JobStatus(), Observed(JOB, (pod(0),), trained("job-0", desired=1)), NOW)
    assert condition(never.status, "Grown") is None


@pytest.mark.parametrize(("places", "created", "deleted"), [(None, 1, 0), (2, 1, 0), (1, 0, 0), (0, 0, 1)])
def test_no_pod_exists_without_a_place_if_the_scheduler_would_evict_another_job_s_for_it(
    make_spec, places, created, deleted
):
    """One worker trains, one is Pending, a third is missing."""
    given = share(3, kept=frozenset({"job-0"}), places=places)
    pods = (pod(0), pod(1, started=False, node=""))
    made = plan(
        make_spec(minReplicas=3, maxReplicas=4), JobStatus(desired_replicas=3, next_ordinal=2),
        Observed(JOB, pods, trained("job-0", desired=3), share=given), NOW,
    )  # fmt: skip
    assert (len(made.create), len(made.delete)) == (created, deleted)
    assert (condition(made.status, "PodsReady")[1] == "WaitingForCapacity") == (places is not None)


@pytest.mark.parametrize(("silent", "condition_status"), [(True, "True"), (False, "False")])
def test_a_suspension_ends_or_names_the_pod_that_does_not(make_spec, silent, condition_status):
    hung = pod(0, terminating=True, deleted=NOW - timedelta(seconds=60), node_silent=silent)
    before = JobStatus(desired_replicas=1, next_ordinal=1, leaving=[Leaving(since=NOW.isoformat(), workers=["job-0"])])
    made = plan(make_spec(suspend=True), before, Observed(JOB, (hung,), Coordination(), share=share(0)), NOW)
    status, _, message = condition(made.status, "Suspended")
    assert status == condition_status
    assert "overdue: pod job-0 on node n0, deleted at 2029-12-31T23:59:00+00:00" in message


@pytest.mark.parametrize("late", [False, True])
def test_the_room_of_an_overdue_pod_is_promised_to_no_job_and_the_pod_is_named(make_spec, late):
    """A new minimum takes the place of a worker of another job instead."""
    hung = pod(9, terminating=True, deleted=NOW - timedelta(seconds=60 if late else 59), node="a")
    workers = tuple(Worker(f"w-{n}", "b", ONE, trains=True) for n in range(2))
    kind = WorkerShape(ONE)
    seen = Snapshot(
        (Node("a", dict(ONE)), Node("b", {"nvidia.com/gpu": 2, "pods": 9})),
        (
            Job("old", "ns", "old", 1, 2, kind, workers=workers, size=2, trains=True),
            Job("new", "ns", "new", 1, 1, kind),
        ),
        (held(hung),),
    )
    made = allocate(seen, Policy(), NOW)
    assert made.shares["old"].size == (1 if late else 2)
    assert ("overdue: pod job-9 on node a" in made.shares["new"].message) is late
    assert made.again == (None if late else 1.0)


def test_workers_that_do_not_train_leave_for_another_job_before_those_that_do():
    """On any node: the training one is on the node that the allocator fills first."""
    kind = WorkerShape(ONE)
    workers = (Worker("w-0", "a", ONE, trains=True), Worker("w-1", "a", ONE, trains=True), Worker("w-2", "b", ONE))
    nodes = (Node("a", {"nvidia.com/gpu": 2, "pods": 9}), Node("b", {"nvidia.com/gpu": 1, "pods": 9}))
    held = Job("old", "ns", "old", 1, 3, kind, workers=workers, size=3, trains=True)
    other = replace(held, uid="other", workers=(Worker("o-0", "c", ONE, trains=True),), size=1)
    seen = Snapshot((*nodes, Node("c", dict(ONE))), (held, other, Job("new", "n", "new", 1, 1, kind)))
    assert allocate(seen, Policy(), NOW).shares["old"].release == {"w-2"}


@pytest.mark.parametrize(
    ("reason", "minutes", "avoided"),
    [("ContainerNotCreated", 5, ["n1"]), ("ContainerNotCreated", 1, []), ("ContainerConfigFailed", 5, [])],
)
def test_the_node_on_which_a_withdrawn_worker_could_not_start_is_avoided(make_spec, reason, minutes, avoided):
    bound = NOW - timedelta(minutes=minutes)
    pods = (pod(0), pod(1, started=False, bound=bound, trouble=Trouble(reason, "pod job-1: not created")))
    seen = Observed(JOB, pods, trained("job-0", desired=2), share=share(1, "GrantUnused", "not grown"))
    made = plan(make_spec(minReplicas=1, maxReplicas=4), JobStatus(desired_replicas=2, next_ordinal=2), seen, NOW)
    assert [d.pod for d in made.delete] == ["job-1"]
    assert [e.node for e in made.status.excluded_nodes] == avoided


def test_a_worker_that_was_resized_in_place_says_nothing_of_the_next_one(make_spec):
    spec = make_spec()
    large, at = (("cpu", 8000), *ONE), version(spec.template)
    bare = claims(spec, JobStatus(), Observed(JOB), (), Creation()).job
    for resized in (True, False):
        newest = pod(1, demand=large, resized=resized, template=at)
        found = claims(spec, JobStatus(), Observed(JOB, (newest,)), (newest,), Creation(version=at)).job
        assert found.kind.demand == (bare.kind.demand if resized else large)
