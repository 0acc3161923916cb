"""A job that is being deleted and still exists, since a foreign finalizer holds it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from conditions import until
from elastrain_operator import clock
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import JobRef, Observed
from elastrain_operator.job import plan
from elastrain_operator.job.meter import JobSeries
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus
from loop_world import body, run
from operator_fixtures import NOW
from workers import workers_at

pytestmark = pytest.mark.usefixtures("quick_loops")
pod = workers_at(NOW, node="n{}", demand=(("gpu", 1),))


def deleted(*finalizers: str) -> dict:
    job = body()
    job["metadata"] |= {"deletionTimestamp": "2030-01-01T00:00:00Z", "finalizers": list(finalizers)}
    return job


def test_its_workers_leave_and_none_is_created():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        world.watched = [parse.pod(p, clock.now()) for p in world.pods.values()]
        jobs.see(deleted("example.com/billing"), lambda _: world.watched)
        await until(lambda: not world.pods, "no pod")
        [told] = [c for c in world.statuses[-1]["conditions"] if c["type"] == "PodsReady"]
        assert told["reason"] == "JobDeleted"
        assert (
            "2 workers leaving; its object remains until these finalizers are removed: example.com/billing"
            in (told["message"])
        )
        world.watched = []
        jobs.wake("uid")
        await until(lambda: world.statuses[-1]["replicas"] == 0, "a status without workers")
        assert not world.pods

    run(scenario)


def seen(*pods) -> Observed:
    return Observed(JobRef("ns", "job", "uid", 1), pods, share=Share(4, "", ""))


def test_it_claims_nothing_and_its_pods_hold_their_nodes_until_they_are_gone():
    pods = (pod(0), pod(1, terminating=True, deleted=NOW - timedelta(seconds=60)), pod(2, over=True))
    made = plan.deleted(JobStatus(desired_replicas=4), seen(*pods), ["example.com/hold"], NOW)
    assert made.claims.job is None
    assert {h.node for h in made.claims.leaving} == {"n0", "n1"}
    assert [d.pod for d in made.delete] == ["job-0"], "ended pods stay for their logs"
    assert "2 workers leaving; overdue: pod job-1 on node n1, deleted at" in made.status.conditions[0].message
    assert plan.deleted(JobStatus(), seen(), ["example.com/hold"], NOW).claims.leaving == ()


def test_its_pods_are_kept_if_its_user_orphans_them():
    made = plan.deleted(JobStatus(), seen(pod(0)), ["orphan"], NOW)
    assert not made.delete
    assert made.claims.job is None
    assert "1 worker kept, by --cascade=orphan" in made.status.conditions[0].message


def held_by_a_finalizer() -> dict:
    return deleted("example.com/billing")


@pytest.mark.parametrize("changed", [held_by_a_finalizer, lambda: body(minReplicas=-1), lambda: body(suspend=True)])
def test_metrics_show_what_the_status_says_whatever_a_pass_has_decided(changed):
    async def scenario(world, jobs):
        def shown(metric: str) -> float:
            lines = JobSeries(jobs.meters).text().splitlines()
            return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric}{{")), -1.0)

        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        bodies = [{**p, "spec": {**p["spec"], "nodeName": "n"}} for p in world.pods.values()]
        world.watched = [parse.pod(p, clock.now()) for p in bodies]
        jobs.wake("uid")
        await until(lambda: shown("elastrain_job_accelerators") == 2, "metrics of two bound workers")
        jobs.see(changed(), lambda _: world.watched)
        world.watched = []  # they are gone, whoever has deleted them
        jobs.wake("uid")
        await until(lambda: shown("elastrain_job_accelerators") == 0, "metrics without workers")
        await until(lambda: world.statuses[-1]["replicas"] == 0, "a status without workers")
        assert shown("elastrain_job_replicas") == 0

    run(scenario)
