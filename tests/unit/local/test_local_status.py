"""Facts about a local job that decisions use."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import builders
from elastrain.api.records import Member, Progress
from elastrain_cli.local.status import LocalStatus, WorkerStatus, in_generation, resource
from local_jobs import JOB

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_worker_is_not_in_a_generation_if_its_ranks_have_restarted_since():
    generation = builders.generation(4, "w-0.a", "w-1.a", "w-2.a")
    present = [Member(id=id, worker=id.split(".")[0], address="127.0.0.1") for id in ("w-0.b", "w-1.a", "w-3.a")]
    assert in_generation(generation, present) == {"w-1"}
    assert in_generation(None, present) == set()


def stopped(*workers: WorkerStatus, step: int = 47) -> LocalStatus:
    progress = Progress(generation=4, world_size=2, members=2, step=step, total_steps=100)
    generation = builders.generation(4, "w-1.a", "w-2.a")
    return LocalStatus(
        job="w", phase="Stopped", min=1, max=4, desired=2, workers=workers, generation=generation, progress=progress
    )


def test_summary_and_resource_name_the_last_step_of_the_workers_that_have_ended():
    ended = [WorkerStatus(name=n, pid=1, phase="drained", ended=True, step=53) for n in ("w-1", "w-2")]
    status = stopped(*ended)
    shown = resource(JOB, status, NOW).status
    assert (status.step, shown.step) == (53, 53)


def test_the_step_of_a_worker_of_an_earlier_generation_is_not_that_of_a_job_that_went_back():
    lost = WorkerStatus(name="w-0", pid=1, phase="lost", ended=True, step=90)
    assert stopped(lost).step == 47
    assert LocalStatus(job="w", phase="Pending", min=1, max=4, desired=1).step is None


@pytest.mark.parametrize(("given", "shown"), [(2, 3), (None, None)])
def test_a_job_that_was_scaled_has_the_size_that_it_was_given_last(given, shown):
    job = JOB.model_copy(update={"spec": JOB.spec.model_copy(update={"replicas": given})})
    status = LocalStatus(job="w", phase="Running", min=1, max=4, desired=3)
    assert resource(job, status, NOW).spec.replicas == shown
