"""The annotations by which autoscalers spare the last copy of a state."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from elastrain_operator.facts import DisruptionBudget, Ending, JobRef, Mark
from elastrain_operator.job import objects
from elastrain_operator.job.state import LoopState
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.pod.defaults import evictable
from elastrain_operator.policy.size.protection import marks
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
JOB = JobRef("ns", "job", "uid", 1)
pod = workers_at(NOW, node="n{}", kept=False)
BOTH = DisruptionBudget((0, 1))


def test_one_worker_keeps_the_node_that_has_all_copies():
    pods = [pod(1, node="n"), pod(0, node="n"), pod(2, node="m")]
    assert marks({}, pods, BOTH) == (Mark("job-0", "uid-0", True),)


def test_no_worker_is_kept_if_another_node_has_a_copy():
    assert marks({}, [pod(0), pod(1)], BOTH) == ()
    assert marks({}, [pod(0, kept=True), pod(1)], BOTH) == (Mark("job-0", "uid-0", False),)


def test_no_worker_is_kept_if_a_checkpoint_has_the_state():
    assert marks({}, [pod(0, kept=True)], DisruptionBudget()) == (Mark("job-0", "uid-0", False),)


def test_nothing_changes_while_the_holders_are_unknown():
    assert marks({}, [pod(0, kept=True), pod(1, kept=None)], None) == ()


def test_ended_workers_keep_no_node():
    pods = [pod(0, node="n", ending=Ending(NOW)), pod(1, node="n")]
    assert marks({}, pods, BOTH) == (Mark("job-1", "uid-1", True),)


def test_workers_of_an_older_operator_get_their_annotation():
    assert marks({}, [pod(0, kept=None), pod(1)], BOTH) == (Mark("job-0", "uid-0", False),)


@pytest.mark.parametrize("key", list(evictable(keep=True)))
def test_a_template_with_such_an_annotation_decides_itself(key):
    template = {"metadata": {"annotations": {key: "true"}}}
    assert marks(template, [pod(0, node="n"), pod(1, node="n")], BOTH) == ()


def test_a_failed_annotation_is_retried_later_and_stops_nothing(monkeypatch):
    calls: list[dict] = []

    class Kube:
        async def annotate_pod(self, namespace, name, uid, values):
            calls.append(values)
            raise ApiError("annotate", 403, "Forbidden", "no")

    state = LoopState()
    for _ in range(2):
        asyncio.run(objects.write_marks(Kube(), JOB, (Mark("job-0", "uid-0", True),), state))
    assert calls == [evictable(keep=True)]
    assert state.retries, "it is repeated in a pass of its own"
