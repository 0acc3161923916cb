"""A status or a termination record of a newer version: nothing is decided from what cannot be read."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from conditions import until
from elastrain.api.records import Member, Termination
from elastrain_operator.facts import Cause, Coordination, Ending, Observed, Pod
from elastrain_operator.job import plan
from elastrain_operator.policy.losses.causes import judge
from elastrain_operator.policy.report import conditions
from elastrain_operator.watch import parse
from elastrain_resource.job import JobStatus
from loop_world import World, body, run
from operator_fixtures import NOW

SUCCEEDED = {
    "phase": "Succeeded",
    "completionTime": NOW.isoformat(),
    "nextOrdinal": 2,
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "Finished",
            "message": "",
            "lastTransitionTime": NOW.isoformat(),
        }
    ],
}
JOB = parse.job_ref(body())


def newer(status: dict) -> dict:
    """The same status, of a newer operator: a field in each part, a condition, and words."""
    conditions = [{**c, "severity": "Info"} for c in status["conditions"]]
    return {
        **status,
        "phase": "Archived",
        "conditions": [*conditions, {**conditions[0], "type": "Archived", "status": "Pending"}],
        "restarts": {"user": 0, "thermal": 3},
        "acceleratorSeconds": {"training": 5.0, "hibernating": 1.0},
        "archive": {"at": "s3://runs/7"},
    }


def test_a_finished_job_does_not_run_again_after_a_rollback(make_spec):
    status = parse.job_status({"status": newer(SUCCEEDED)})
    made = plan.plan(make_spec(), status, Observed(JOB, coordination=Coordination()), NOW + timedelta(seconds=1))
    assert (made.create, made.delete) == ((), ())
    assert made.status is None or made.status.completion_time == SUCCEEDED["completionTime"]


@pytest.mark.parametrize("conditions", [[], [{**SUCCEEDED["conditions"][0], "type": "Archived"}]])
def test_a_job_that_ended_in_an_unknown_way_has_an_unreadable_status(conditions):
    with pytest.raises(parse.StatusUnreadable, match="completionTime"):
        parse.job_status({"status": {**SUCCEEDED, "conditions": conditions}})


def test_conditions_of_a_newer_operator_stay_when_others_are_written(make_spec):
    running = {**SUCCEEDED["conditions"][0], "type": "Running", "status": "False", "severity": "Info"}
    foreign = {**running, "type": "Archived", "status": "Pending"}
    status = parse.job_status({"status": {"conditions": [running, foreign], "nextOrdinal": 0}})
    written = plan.plan(make_spec(), status, Observed(JOB, coordination=Coordination()), NOW).status
    kept = written.model_dump(mode="json", by_alias=True)["conditions"]
    assert next(c for c in kept if c["type"] == "Archived").items() >= foreign.items()


# ---- the report ------------------------------------------------------------------------------------------------------
def test_the_report_is_one_condition_and_the_rest_of_the_status_stays():
    status = newer(SUCCEEDED)
    patch = conditions.unreadable_patch(status, "text", NOW)
    report, *others = patch["conditions"]
    assert list(patch) == ["conditions"]
    assert (report["type"], report["status"], report["reason"], report["message"]) == (
        "PodsReady", "Unknown", "StatusUnreadable", "text",
    )  # fmt: skip
    assert others == status["conditions"]
    assert conditions.unreadable_patch({**status, **patch}, "text", NOW + timedelta(hours=1)) is None, (
        "it is written once"
    )
    again = conditions.unreadable_patch({**status, **patch}, "another text", NOW + timedelta(hours=1))
    assert again["conditions"][0]["lastTransitionTime"] == NOW.isoformat()


@pytest.mark.parametrize("status", [[], "x", 3, {"conditions": "x"}, {"conditions": {"a": 1}}, {"conditions": ["x"]}])
def test_conditions_that_cannot_be_extended_without_loss_are_left_alone(status):
    assert conditions.unreadable_patch(status, "text", NOW) is None


@pytest.mark.usefixtures("quick_loops")
def test_a_job_is_left_alone_until_its_status_can_be_read():
    class Recording(World):
        def __init__(self):
            super().__init__()
            self.told: list[str] = []

        def record(self, job, event):
            self.told.append(event.reason)

    world = Recording()

    async def scenario(_, jobs):
        job = body()
        job["status"] = {"restarts": "three", "nextOrdinal": 2}
        jobs.see(job, lambda _: world.watched)
        await until(lambda: world.statuses, "the report")
        jobs.wake_all()
        await asyncio.sleep(0.1)
        assert (world.pods, world.target) == ({}, None)
        assert {tuple(patch) for patch in world.statuses} == {("conditions",)}
        assert world.told == ["StatusUnreadable"]
        assert "status.restarts" in world.statuses[0]["conditions"][0]["message"]

        fixed = body()
        fixed["status"] = {"restarts": {"user": 3}, "nextOrdinal": 2}
        fixed["metadata"] = {**fixed["metadata"], "annotations": {"mended": "by hand"}}
        jobs.see(fixed, lambda _: world.watched)
        await until(lambda: set(world.pods) == {"job-2", "job-3"}, "the job goes on")

    run(scenario, world)


# ---- workers ---------------------------------------------------------------------------------------------------------
def test_a_silent_pod_is_not_replaced_while_its_member_exists_with_an_unknown_phase(make_spec):
    pod = Pod("job-0", "uid-0", 0, NOW, started=True, went_unready=True)
    seen = Coordination(members=(Member.unknown("job-0.abc"),))
    status = JobStatus(next_ordinal=1)
    made = plan.plan(make_spec(maxReplicas=1), status, Observed(JOB, (pod,), seen), NOW)
    assert (made.create, made.delete) == ((), ())


@pytest.mark.parametrize(
    ("exit_code", "signal", "cause"), [(0, 0, None), (1, 0, Cause.USER), (1, 9, Cause.INFRASTRUCTURE)]
)
def test_the_exit_code_decides_if_the_outcome_is_a_newer_agent_s_word(exit_code, signal, cause):
    record = Termination(outcome="hibernated", exit_code=exit_code, signal=signal)
    pod = Pod("job-0", "uid-0", 0, NOW, started=True, ending=Ending(NOW, record, exit_code))
    loss = judge(pod)
    assert (loss and loss.cause) == cause
