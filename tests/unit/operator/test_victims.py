"""Which workers are asked to leave."""

from __future__ import annotations

from datetime import UTC, datetime

import builders
from elastrain.api.records import Health, Member
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination
from elastrain_operator.policy.size import leavers
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)


pod = workers_at(NOW, age=3600, node="n{}")


def records(*workers: str, **health: str) -> Coordination:
    """A generation of these workers, and the health in their records (``job_3="slow"``)."""
    ill = {name.replace("_", "-"): word for name, word in health.items()}
    members = tuple(Member(id=n, worker=n, address="a", generation=1, health=ill.get(n, "")) for n in workers)
    return Coordination(generation=builders.generation(1, *workers), members=members)


def share(**fields) -> Share:
    return Share(**{"size": 1, "reason": "", "message": "", **fields})


def names(pods) -> list[str]:
    return [p.name for p in pods]


def test_victims_are_the_cheapest_workers():
    pods = {
        "named by the allocator": pod(0),
        "on a node that goes": pod(1),
        "about to be evicted": pod(2, disruption="EvictionByEvictionAPI"),
        "stuck": pod(3),
        "slow": pod(4),
        "never started": pod(5, started=False, ready=False, node=""),
        "not ready": pod(6, ready=False),
        "outside the generation": pod(7),
        "alone on its node": pod(8),
        "newest": pod(11, node="shared"),
        "newer": pod(10, node="shared"),
        "oldest": pod(9, node="shared"),
    }
    known = records(*(f"job-{n}" for n in (0, 1, 2, 3, 4, 8, 9, 10, 11)), job_3=Health.STUCK, job_4=Health.SLOW)
    given = share(release=frozenset({"job-0"}), shaky=frozenset({"job-1"}))
    found = leavers.ranked([*reversed(pods.values())], known, given)
    expected = names(pods.values())
    expected[1:3] = ["job-2", "job-1"]  # equals: the newest first
    assert names(found) == expected


def test_members_that_wait_for_others_are_not_sick():
    waiting = records("job-0", "job-1", job_0=Health.WAITING)
    assert names(leavers.ranked([pod(0), pod(1)], waiting, None)) == ["job-1", "job-0"]


def test_an_unknown_health_is_no_reason_to_leave():
    assert names(leavers.ranked([pod(0), pod(1)], records("job-0", "job-1", job_0="feverish"), None))[0] == "job-1"


def test_a_worker_on_a_departing_node_leaves_if_there_is_room_for_another():
    moved = share(size=2, replace=frozenset({"job-0"}), shaky=frozenset({"job-0"}))
    workers = (pod(0), pod(1))
    assert names(leavers.choose(workers, 2, 1, records("job-0", "job-1"), moved)) == ["job-0"]
    assert leavers.choose(workers, 2, 2, records("job-0", "job-1"), moved) == (), "the minimum continues to train"


def test_worker_that_does_not_train_is_replaced_at_once():
    moved = share(size=2, replace=frozenset({"job-0"}))
    assert names(leavers.choose((pod(0), pod(1)), 2, 1, records("job-1"), moved)) == ["job-0"]
    assert leavers.choose((pod(0), pod(1)), 2, 2, records("job-1"), moved) == (), "it may be about to train"


def test_surplus_and_replacements_do_not_add_up_to_less_than_the_minimum():
    everybody = frozenset(f"job-{n}" for n in range(4))
    moved = share(size=3, replace=everybody, shaky=everybody)
    workers = tuple(pod(n) for n in range(4))
    assert names(leavers.choose(workers, 3, 2, records(*sorted(everybody)), moved)) == ["job-3", "job-2"]
