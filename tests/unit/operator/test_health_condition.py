"""Stragglers and hanging workers: named with rank, node and figures, with one event each."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest

import builders
from elastrain.api.records import Health, Member
from elastrain_operator.facts import Coordination, Severity
from elastrain_operator.policy.report import events, health
from elastrain_resource.job import ConditionType, GenerationStatus, JobStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
SLOW = "local rank 0 computes 10.2 times as long per step as the others do on average"
HANGS = "local rank 1 does not return from the script's code, others wait for it"
FORCE = GenerationStatus(number=1, size=3, reason="Start")


def seen(**said: tuple[str, str]) -> Coordination:
    """Workers a, b and c; b has four ranks. ``said``: health and message of some."""
    members = []
    for name in "abc":
        word, message = said.get(name, ("", ""))
        members.append(
            Member(id=name, worker=name, node=f"node-{name}", address="x", health=word, health_message=message)
        )
    return Coordination(members=tuple(members), generation=builders.generation(1, *"abc", slots=[1, 4, 1]))


def test_condition_names_rank_worker_node_figures_and_since_when():
    workers = health.unhealthy([], seen(c=(Health.SLOW, SLOW)), NOW)
    claim = health.claim(workers, FORCE)
    assert (claim.type, claim.status, claim.reason) == (ConditionType.WORKERS_HEALTHY, "False", "Straggler")
    assert claim.message == f"rank 5 (worker c on node node-c): {SLOW}; since 2030-01-01T00:00:00+00:00"


def test_hanging_workers_are_named_before_slow_ones():
    workers = health.unhealthy([], seen(a=(Health.SLOW, SLOW), b=(Health.STUCK, HANGS)), NOW)
    assert [(w.worker, w.health) for w in workers] == [("b", "stuck"), ("a", "slow")]
    claim = health.claim(workers, FORCE)
    assert claim.reason == "RankStuck"
    assert claim.message.startswith("ranks 1-4 (worker b on node node-b): local rank 1 does not return")
    assert claim.message.endswith("(and 1 more)")


def test_the_rank_itself_is_named_if_its_agent_says_which_one():
    known = seen(b=(Health.STUCK, HANGS))
    members = tuple(m.model_copy(update={"health_rank": 1}) if m.id == "b" else m for m in known.members)
    (worker,) = health.unhealthy([], dataclasses.replace(known, members=members), NOW)
    assert worker.message.startswith("rank 2 (worker b on node node-b): ")


def test_since_is_kept_while_the_verdict_holds():
    first = health.unhealthy([], seen(a=(Health.SLOW, SLOW)), NOW)
    assert health.unhealthy(first, seen(a=(Health.SLOW, SLOW)), LATER) == first
    assert health.unhealthy(first, seen(a=(Health.STUCK, HANGS)), LATER)[0].since == LATER.isoformat()


@pytest.mark.parametrize("word", [Health.OK, Health.WAITING, Health.BELOW_MIN, "a word of a newer agent"])
def test_waiting_workers_are_not_reported(word):
    assert health.unhealthy([], seen(a=(word, "words")), NOW) == []
    assert health.claim([], FORCE).status == "True"
    assert health.claim([], None).status == "Unknown"


def test_a_thousand_stragglers_do_not_fill_the_status():
    many = tuple(
        Member(id=str(n), worker=f"w-{n}", address="x", health=Health.SLOW, health_message="m" * 5000)
        for n in range(1000)
    )
    workers = health.unhealthy([], Coordination(members=many), NOW)
    assert len(workers) == health.KEPT
    assert max(len(w.message) for w in workers) <= health.MESSAGE_CHARS + len("worker w-999: ")


# ---- events ----------------------------------------------------------------------------------------------------------
def told(before, after, **fields) -> list[tuple[str, str]]:
    old, new = JobStatus(unhealthy_workers=before), JobStatus(unhealthy_workers=after, **fields)
    return [(n.reason, n.severity) for n in events.events_of(old, new, None, None, ())]


def test_each_verdict_and_its_end_cause_one_event():
    one = health.unhealthy([], seen(a=(Health.SLOW, SLOW)), NOW)
    two = health.unhealthy(one, seen(a=(Health.SLOW, SLOW), b=(Health.STUCK, HANGS)), LATER)
    assert told([], one) == [("Straggler", Severity.WARNING)]
    assert told(one, two) == [("RankStuck", Severity.WARNING)]
    assert told(two, two) == []
    assert told(two, one) == [("WorkerHealthy", Severity.NORMAL)]


def test_the_end_of_the_job_causes_no_recovery_event():
    one = health.unhealthy([], seen(a=(Health.SLOW, SLOW)), NOW)
    assert told(one, [], completion_time=NOW.isoformat()) == []
