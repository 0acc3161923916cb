"""The allocator takes no worker of a job that holds the state, also when the job is below its minimum."""

from __future__ import annotations

from datetime import UTC, datetime

import builders
from elastrain.api.records import Member, Progress, Rescale
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, JobRef, Observed
from elastrain_operator.policy.size.claims import Creation, claims
from elastrain_resource.job import GenerationStatus, JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
pod = workers_at(NOW, node="n{}")


def test_the_last_holder_keeps_its_job_admitted_after_the_order_to_stop(make_spec):
    """Two of three workers were evicted. The third waits for others: its record has not said what it adopted, since
    only rank 0 says so at once, and the newest generation has no members."""
    first = builders.generation(1, "job-0", "job-1", "job-2", reason="Start")
    rescale = Rescale(generation=1, from_size=0, to_size=3, reason="Start", step=0, pause_seconds=1)
    etcd = Coordination(
        members=(Member(id="job-2", worker="job-2", address="a"),),
        generation=builders.generation(2, leader="job-0", reason="Stop"),
        progress=Progress(generation=1, world_size=3, members=3, step=22, rescales=(rescale,)),
        earlier=lambda number: first.members if number == 1 else (),
    )
    status = JobStatus(generation=GenerationStatus(number=2, size=0, reason="Stop"), desired_replicas=3)
    seen = Observed(
        JobRef("ns", "job", "uid", 1), pods=(pod(2),), coordination=etcd, share=Share(3, "", ""), created=NOW
    )
    claimed = claims(make_spec(minReplicas=3, maxReplicas=3), status, seen, [pod(2)], Creation())
    assert claimed.job is not None
    assert claimed.job.trains, "its memory holds the only copy of the model"
