"""Which workers hold the training state, and which hold its last copy."""

from __future__ import annotations

from datetime import UTC, datetime

import builders
from elastrain.api.records import Generation, Member, Progress
from elastrain_operator.model import Coordination, Ending
from elastrain_operator.policy.size.holders import holders, last
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
pod = workers_at(NOW, node="n{}")


def member(ordinal: int, generation: int = 0, incarnation: str = "a") -> Member:
    name = f"job-{ordinal}"
    return Member(id=f"{name}.{incarnation}", worker=name, address="a", generation=generation)


def progress(generation: int) -> Progress:
    return Progress(generation=generation, world_size=1, members=1, step=5)


def in_generation(number: int, *ordinals: int) -> Generation:
    return builders.generation(number, *(f"job-{n}.a" for n in ordinals))


def test_all_members_of_the_generation_in_force_hold_the_state():
    """Only the member with rank 0 reports the generation at once."""
    seen = Coordination(
        members=(member(0, 2), member(1, 1), member(2)), generation=in_generation(2, 0, 1, 2), progress=progress(2)
    )
    assert holders([pod(0), pod(1), pod(2)], seen) == {"job-0", "job-1", "job-2"}


def test_a_joiner_holds_nothing_before_its_generation_is_in_force():
    seen = Coordination(
        members=(member(0, 1), member(1)),
        generation=in_generation(2, 0, 1),
        progress=progress(1),
        earlier=lambda n: in_generation(1, 0).members if n == 1 else (),
    )
    assert holders([pod(0), pod(1)], seen) == {"job-0"}


def test_members_hold_their_state_after_the_order_to_stop():
    seen = Coordination(members=(member(0, 1), member(1, 1)), generation=in_generation(2))
    assert holders([pod(0), pod(1)], seen) == {"job-0", "job-1"}


def test_a_restarted_or_ended_worker_holds_nothing():
    seen = Coordination(
        members=(member(0, 1), member(1, incarnation="b"), member(2, 1)),
        generation=in_generation(1, 0, 1, 2),
        progress=progress(1),
    )
    assert holders([pod(0), pod(1), pod(2, ending=Ending(NOW))], seen) == {"job-0"}


def test_a_job_that_has_not_trained_has_no_holder():
    assert holders([pod(0)], Coordination(members=(member(0),), generation=in_generation(1, 0))) == frozenset()
    assert holders([pod(0)], Coordination()) == frozenset()


def test_holders_are_unknown_without_etcd():
    assert holders([pod(0)], None) is None


def test_workers_on_one_node_hold_the_last_copy_together():
    spread = [pod(0), pod(1)]
    assert last({"job-0", "job-1"}, spread) == frozenset()
    assert last({"job-1"}, spread) == {"job-1"}
    assert last({"job-0", "job-1"}, [pod(0, node="n"), pod(1, node="n"), pod(2, node="m")]) == {"job-0", "job-1"}
    assert last((), spread) == frozenset()
