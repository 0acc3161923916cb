"""When a job has succeeded."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import builders
from elastrain.api.records import Outcome, Progress, Termination
from elastrain_operator.facts import Coordination, Ending, Pod
from elastrain_operator.policy import ending
from elastrain_resource.job import SuccessPolicy

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FINISHED = Termination(outcome=Outcome.FINISHED, step=9)
FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="no space left")
KILLED = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled", message="killed")


def pod(ordinal: int, record: Termination | None = None) -> Pod:
    ending = Ending(NOW, record, record.exit_code) if record else None
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, NOW, started=True, ending=ending, over=ending is not None)


def records(*, finished: bool = True) -> Coordination:
    """Two workers trained together; rank 0's agent has reported the end."""
    report = Progress(generation=1, world_size=2, members=2, step=9, finished=finished)
    return Coordination(generation=builders.generation(1, "job-0", "job-1"), progress=report)


def judged(policy: SuccessPolicy, *pods: Pod, finished: bool = True) -> str | None:
    found = ending.success(policy, pods, records(finished=finished))
    return found and f"{found.condition}: {found.message}"


def test_rank_zero_decides_unless_the_policy_requires_all_workers():
    assert judged(SuccessPolicy.RANK_ZERO, pod(0, FINISHED), pod(1)) == "Succeeded: training finished at step 9"
    assert judged(SuccessPolicy.ALL_WORKERS, pod(0, FINISHED), pod(1)) is None
    assert judged(SuccessPolicy.ALL_WORKERS, pod(0, FINISHED), pod(1, FINISHED)).startswith("Succeeded")


def test_there_is_no_verdict_before_rank_zero_has_ended():
    for policy in SuccessPolicy:
        assert judged(policy, pod(0), pod(1, FINISHED), finished=False) is None


@pytest.mark.parametrize(
    ("pods", "words"),
    [((pod(0, FINISHED), pod(1, FAILED)), "ScriptFailed: worker job-1: no space left"),
     ((pod(0, FINISHED), pod(1, KILLED)), "RankKilled: worker job-1: killed"),
     ((pod(0, FINISHED),), "the pod of worker job-1 is gone")],
)  # fmt: skip
def test_job_fails_if_one_of_all_workers_fails_after_the_loop(pods, words):
    said = judged(SuccessPolicy.ALL_WORKERS, *pods)
    assert said == f"Failed: training finished, but successPolicy is AllWorkers and {words}"
    assert judged(SuccessPolicy.RANK_ZERO, *pods).startswith("Succeeded")


def test_worker_of_an_earlier_generation_does_not_count():
    earlier = pod(7, FAILED)
    assert judged(SuccessPolicy.ALL_WORKERS, earlier, pod(0, FINISHED), pod(1, FINISHED)).startswith("Succeeded")


def test_the_job_fails_if_ranks_have_diverged_whatever_its_limit_and_its_other_workers():
    diverged = Termination(outcome=Outcome.FAILED, exit_code=1, reason="RanksDiverged", message="rank 0 left its loop")
    found = ending.divergence([pod(0, FINISHED), pod(1), pod(2, diverged)])
    assert found is not None
    assert (found.condition, found.reason, found.message) == ("Failed", "RanksDiverged", "rank 0 left its loop")
    assert ending.divergence([pod(0, FINISHED), pod(1, FAILED), pod(2, KILLED)]) is None
