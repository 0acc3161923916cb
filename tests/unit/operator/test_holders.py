"""Which workers hold the training state, and which hold its last copy."""

from __future__ import annotations

from datetime import UTC, datetime

import builders
from elastrain.api.records import Generation, Member, Phase, Progress, Rescale, Target
from elastrain_operator.facts import Coordination, Ending
from elastrain_operator.policy.size.protection import holders, last_holders, staying
from workers import workers_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
pod = workers_at(NOW, node="n{}")


def member(ordinal: int, generation: int = 0, incarnation: str = "a", **fields) -> Member:
    name = f"job-{ordinal}"
    return Member(id=f"{name}.{incarnation}", worker=name, address="a", generation=generation, **fields)


def progress(generation: int, trained: int | None = None) -> Progress:
    """After the first commit of generation ``trained`` (by default of ``generation``)."""
    number = generation if trained is None else trained
    rescale = Rescale(generation=number, from_size=1, to_size=2, reason="Grow", step=4, pause_seconds=0.2)
    return Progress(generation=generation, world_size=1, members=1, step=5, rescales=(rescale,))


def in_generation(number: int, *ordinals: int) -> Generation:
    return builders.generation(number, *(f"job-{n}.a" for n in ordinals))


def test_all_members_of_the_generation_that_trains_hold_the_state():
    """Only the member with rank 0 reports the generation at once."""
    seen = Coordination(
        members=(member(0, 2), member(1, 1), member(2)), generation=in_generation(2, 0, 1, 2), progress=progress(2)
    )
    assert holders([pod(0), pod(1), pod(2)], seen) == {"job-0", "job-1", "job-2"}


def test_a_joiner_holds_nothing_before_its_generation_has_committed_a_step():
    pods = [pod(0), pod(1)]
    for adopted in (1, 2):
        entering = Coordination(
            members=(member(0, adopted), member(1, adopted - 1)),
            generation=in_generation(2, 0, 1),
            progress=progress(adopted, trained=1),
            earlier=lambda n: in_generation(1, 0).members if n == 1 else (),
        )
        assert holders(pods, entering) == {"job-0"}
    entered = Coordination(members=(member(0, 2), member(1)), generation=in_generation(2, 0, 1), progress=progress(2))
    assert holders(pods, entered) == {"job-0", "job-1"}


def test_members_hold_their_state_after_the_order_to_stop():
    seen = Coordination(
        members=(member(0, 1), member(1, 1)),
        generation=in_generation(2),
        progress=progress(1),
        earlier=lambda n: in_generation(1, 0, 1).members if n == 1 else (),
    )
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


def test_holders_are_unknown_if_records_are_missing():
    assert holders([pod(0)], None) is None
    lost = Coordination(members=(member(0, 1),), generation=in_generation(1, 0))
    assert holders([pod(0)], lost) is None, "no progress, though a generation was adopted: etcd has lost its data"
    old = Coordination(members=(member(0, 9),), generation=in_generation(9, 0), progress=progress(9, trained=2))
    assert holders([pod(0)], old) is None, "the members of generation 2 are not kept any more"


def test_leaving_workers_hold_the_state_but_do_not_stay():
    seen = Coordination(
        members=(member(0, 1), member(1, 1), member(2, 1, phase=Phase.LEAVING), member(3, 1)),
        generation=in_generation(1, 0, 1, 2, 3),
        progress=progress(1),
        target=Target(min=1, max=4, desired=3, leaving=("job-1",)),
    )
    pods = [pod(0), pod(1), pod(2), pod(3, terminating=True)]
    assert holders(pods, seen) == {"job-0", "job-1", "job-2", "job-3"}
    assert staying(pods, seen) == {"job-0"}
    assert staying(pods, None) is None


def test_workers_on_one_node_hold_the_last_copy_together():
    spread = [pod(0), pod(1)]
    assert last_holders({"job-0", "job-1"}, spread) == frozenset()
    assert last_holders({"job-1"}, spread) == {"job-1"}
    assert last_holders({"job-0", "job-1"}, [pod(0, node="n"), pod(1, node="n"), pod(2, node="m")]) == {
        "job-0",
        "job-1",
    }
    assert last_holders((), spread) == frozenset()
