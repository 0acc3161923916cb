"""Why a worker whose container runs does not train yet."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.records import Member, Phase
from elastrain_operator.facts import Coordination, JobRef, Observed, Trouble
from elastrain_operator.job.plan import Plan, plan
from elastrain_operator.policy.losses.starting import ARRIVAL_PATIENCE
from elastrain_resource.job import ExcludedNode, JobStatus
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PLACE = {"address": "127.0.0.1", "store_port": 1}


pod = workers_at(NOW)


def member(ordinal: int, phase: Phase, generation: int = 0) -> Member:
    return Member(id=f"job-{ordinal}.x", worker=f"job-{ordinal}", phase=phase, generation=generation, **PLACE)


FIRST = member(0, Phase.READY, 1)
ALONE = builders.generation(1, "job-0.x")


def decide(make_spec, pods, *members, status=None, known=True, **spec) -> Plan:
    records = Coordination(members=(FIRST, *members), generation=ALONE) if known else None
    seen = Observed(JobRef("default", "job", "uid", 1), tuple(pods), records)
    return plan(make_spec(**{"replicas": 2} | spec), status or JobStatus(), seen, NOW)


def told(made: Plan) -> tuple[str, str]:
    found = next(c for c in made.status.conditions if c.type == "PodsReady")
    return found.reason, found.message


@pytest.mark.parametrize(
    ("members", "reason", "words"),
    [
        ((), "AgentNotHeard", "its container runs, but etcd has no record of its agent; `kubectl logs job-1` shows"),
        ((member(1, Phase.WARMING),), "Starting", "its ranks are starting; the script has not reached its first step"),
        ((member(1, Phase.READY),), "Starting", "its ranks are ready for the next generation"),
    ],
)
def test_status_shows_a_workers_progress_if_it_runs_and_does_not_train(make_spec, members, reason, words):
    assert told(decide(make_spec, [pod(0), pod(1)], *members)) == (
        reason,
        f"1 of 2 workers train; pod job-1: {words}" + (" its output" if not members else ""),
    )


def test_a_normal_start_is_not_explained_until_it_takes_too_long(make_spec):
    made = decide(make_spec, [pod(0), pod(1, age=ARRIVAL_PATIENCE - 10)])
    assert told(made) == ("Starting", "1 of 2 workers train")
    assert made.requeue_after == 10


def test_no_worker_has_trouble_if_etcd_is_unknown(make_spec):
    assert told(decide(make_spec, [pod(0), pod(1)], known=False))[0] == "EtcdUnavailable"


def test_conditions_older_than_an_outage_of_etcd_say_so_and_are_written_once(make_spec):
    pods, before = [pod(0)], "when the records were last read: "

    def messages(made: Plan) -> dict[str, str]:
        return {c.type: c.message for c in made.status.conditions}

    first = decide(make_spec, pods, replicas=1)
    away = decide(make_spec, pods, status=first.status, known=False, replicas=1)
    for kind in ("Running", "Rescaling"):
        assert messages(away)[kind] == before + messages(first)[kind]
    assert away.status.phase == first.status.phase == "Running", "nothing says that it has stopped"
    assert decide(make_spec, pods, status=away.status, known=False, replicas=1).status is None
    assert messages(decide(make_spec, pods, status=away.status, replicas=1)) == messages(first)


def test_only_a_silent_agent_causes_an_event(make_spec):
    silent = decide(make_spec, [pod(0), pod(1)])
    slow = decide(make_spec, [pod(0), pod(1)], member(1, Phase.WARMING))
    assert "AgentNotHeard" in [n.reason for n in silent.events]
    assert "Starting" not in [n.reason for n in slow.events]


def test_a_permanent_obstacle_is_reported_before_a_slow_start(make_spec):
    pull = Trouble("ImagePullFailed", "pod job-2: ErrImagePull")
    pods = [pod(0), pod(1), pod(2, started=False, trouble=pull)]
    made = decide(make_spec, pods, member(1, Phase.WARMING), replicas=3)
    assert told(made) == ("ImagePullFailed", "1 of 3 workers train; pod job-2: ErrImagePull (and 1 more)")


def test_a_node_that_the_job_excludes_is_named_if_there_is_no_room(make_spec):
    no_room = Trouble("Unschedulable", "pod job-1: 0/3 nodes are available: 3 node(s) didn't match affinity")
    until = (NOW + timedelta(hours=1)).isoformat()
    excluded = ExcludedNode(node="gpu-7", until=until, message="bandwidth")
    made = decide(
        make_spec, [pod(0), pod(1, started=False, trouble=no_room)], status=JobStatus(excluded_nodes=[excluded])
    )
    assert told(made)[1].endswith("didn't match affinity; the job itself avoids gpu-7 (condition NodesExcluded)")
