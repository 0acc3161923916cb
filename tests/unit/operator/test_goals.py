"""Sizes by marginal speed-up (``capacity.sharing``: balanced, efficient)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.allocation import worth
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.goals import REACH, REVIEW_SECONDS, SOON_SECONDS
from elastrain_operator.allocation.snapshot import (
    Claims,
    Job,
    Node,
    Policy,
    Share,
    Sharing,
    Snapshot,
    Worker,
    WorkerShape,
)
from elastrain_resource.sizing.speedup import Batches, Measured

NOW = datetime(2030, 1, 2, tzinfo=UTC)
HOUR = 3600.0
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
EFFICIENT = Policy(sharing=Sharing.EFFICIENT, hysteresis=0, pause=1.0, startup=0)
WELL = tuple(Measured(w, 1 + (w > 4), 1 / w) for w in (1, 4, 16))
"""Times of a job whose speed is proportional to its workers."""
BADLY = tuple(Measured(w, 1 + (w > 4), 0.5 + 0.5 / w) for w in (1, 4, 16))
"""Times of a job that is at most twice as fast as with one worker."""


def batched(workers: int, batch: int) -> Measured:
    return Measured(workers, 1 + (workers > 4), 0.05 + 0.001 * batch / workers + 0.02 * (workers > 4), batch)


BATCHES = (batched(1, 64), batched(1, 256), batched(4, 256), batched(8, 512))


def job(name: str, held: int = 0, most: int = 64, age: float = 24 * HOUR, **fields) -> Job:
    workers = tuple(Worker(f"{name}-{i}", f"n{i % 4}", ONE.demand, trains=True) for i in range(held))
    made = Job(name, "ns", name, 1, most, ONE, created=NOW.timestamp() - age, workers=workers, size=held)
    return replace(made, **{"trains": held > 0, "pause": 1.0, **fields})


def shares(*jobs: Job, nodes: int = 4, per_node: int = 4, policy: Policy = EFFICIENT) -> dict[str, Share]:
    cluster = tuple(Node(f"n{i}", {GPU: per_node, "pods": 99}) for i in range(nodes))
    return dict(allocate(Snapshot(cluster, jobs), policy, NOW).shares)


def settled(*jobs: Job, **cluster) -> dict[str, int]:
    """Sizes after all workers that were to leave have left, and new ones train."""
    for _ in range(6):
        given = shares(*jobs, **cluster)
        after = []
        for each in jobs:
            share = given[each.uid]
            stay = [w for w in each.workers if w.name not in share.release][: share.size]
            stay += [Worker(f"{each.name}+{i}", "", ONE.demand) for i in range(len(stay), share.size or 0)]
            after.append(replace(each, workers=tuple(stay), size=share.size or 0))
        if [j.size for j in after] == [j.size for j in jobs]:
            break
        jobs = tuple(after)
    return {j.uid: j.size for j in jobs}


def test_the_job_that_gets_faster_has_more():
    sizes = settled(job("well", measured=WELL), job("badly", measured=BADLY))
    assert sizes["well"] >= 2 * sizes["badly"]
    assert sum(sizes.values()) == 16


def test_shares_are_equal_by_default_whatever_was_measured():
    sizes = settled(job("well", measured=WELL), job("badly", measured=BADLY), policy=Policy(hysteresis=0))
    assert sizes == {"well": 8, "badly": 8}


def test_balanced_sizes_are_between_equal_and_efficient_ones():
    jobs = job("well", measured=WELL), job("badly", measured=BADLY)
    efficient = settled(*jobs)["well"]
    balanced = settled(*jobs, policy=replace(EFFICIENT, sharing=Sharing.BALANCED))["well"]
    assert 8 <= balanced < efficient


def test_a_job_that_has_not_run_gets_at_most_the_workers_of_one_node():
    assert settled(job("new", age=0.0)) == {"new": 4}
    assert settled(job("new", age=0.0), per_node=8, nodes=2) == {"new": 8}


def test_a_job_gets_at_most_a_multiple_of_the_size_that_it_has_measured():
    assert settled(job("a", 1, measured=(Measured(1, 1, 1.0),))) == {"a": REACH}


def test_a_job_that_reports_no_step_times_gets_an_equal_share():
    assert settled(job("silent", 1), job("other", 4, measured=WELL))["silent"] == 8


def test_a_size_that_is_slower_than_the_one_below_stops_no_job():
    dip = (Measured(1, 1, 1.0), Measured(4, 1, 0.3), Measured(5, 2, 0.6), Measured(8, 2, 0.15))
    assert settled(job("dip", 4, most=8, measured=dip)) == {"dip": 8}


def test_an_idle_accelerator_stays_idle_if_no_job_gets_faster_by_it():
    flat = tuple(Measured(w, 1, t) for w, t in ((1, 1.0), (2, 0.5), (3, 0.5), (4, 0.5)))
    assert settled(job("flat", 1, most=4, measured=flat)) == {"flat": 2}


def test_noise_of_step_times_moves_no_worker():
    even = job("a", 8, measured=WELL), job("b", 8, measured=WELL)
    assert settled(*even) == {"a": 8, "b": 8}
    faster = tuple(replace(m, seconds=m.seconds * (0.99 if m.workers > 4 else 1.01)) for m in WELL)
    assert settled(even[0], replace(even[1], measured=faster)) == {"a": 8, "b": 8}


def test_a_job_is_resized_for_an_improvement_at_most_twelve_times_an_hour_and_six_times_more():
    rival = job("well", 8, measured=WELL)
    assert settled(job("badly", 8, measured=BADLY, age=2 * HOUR, rescales=29), rival)["badly"] < 8
    assert settled(job("badly", 8, measured=BADLY, age=2 * HOUR, rescales=30), rival)["badly"] == 8


@pytest.mark.parametrize(
    "fields", [{"age": 0.5}, {"rescales": 294}, {"remaining": 1.5}], ids=["young", "often resized", "about to end"]
)
def test_a_job_for_which_a_change_would_not_pay_keeps_its_size(fields):
    rival = job("well", 8, measured=WELL)
    assert settled(job("badly", 8, measured=BADLY), rival)["badly"] < 8
    assert settled(job("badly", 8, measured=BADLY, **fields), rival)["badly"] == 8


def test_a_job_grows_once_when_all_of_its_room_is_free():
    given = shares(job("well", 8, measured=WELL), job("badly", 8, measured=BADLY))
    assert (given["well"].size, given["well"].reason) == (8, "OthersLeave")
    assert given["badly"].size < 8


def test_a_new_job_takes_the_worker_of_a_job_that_holds_more_than_it_should():
    well, badly = job("well", 8, measured=WELL), job("badly", 8, measured=BADLY)
    given = shares(well, badly, job("new", age=0.0, cap=1))
    assert not given["well"].release
    assert given["badly"].release


def test_the_explanation_names_the_gain_here_and_in_the_job_that_got_the_accelerators():
    well = job("well", 11, measured=WELL, samples=256.0)
    share = shares(well, job("badly", 5, measured=BADLY, samples=32.0))["badly"]
    assert (share.size, share.reason) == (5, "OthersGainMore")
    assert share.message == (
        "not grown: 9 workers would add 6.4 samples/s (12 %) here; "
        "2 workers of ns/well gained more: 510 samples/s (22 %)"
    )


def test_a_job_that_chooses_its_batch_has_more_the_noisier_its_gradients_are():
    calm, noisy = (job(f"{n:g}", measured=BATCHES, batches=Batches(64, 4096, n)) for n in (20.0, 20_000.0))
    sizes = settled(calm, noisy)
    assert sizes["20000"] >= 2 * sizes["20"]


def test_the_explanation_counts_samples_of_the_smallest_batch_if_the_job_chooses_its_batch():
    noisy = job("noisy", 13, measured=BATCHES, batches=Batches(64, 4096, 20_000.0))
    share = shares(noisy, job("badly", 3, measured=BADLY, samples=32.0))["badly"]
    assert share.reason == "OthersGainMore"
    assert "3 workers of ns/noisy gained more: 1,700 effective samples/s (24 %)" in share.message


def test_no_gain_in_samples_is_named_before_a_step_is_measured():
    share = shares(job("new", 2, age=60.0, samples=64.0), job("well", 2, measured=WELL, samples=32.0), nodes=1)["new"]
    assert share.reason == "OthersGainMore"
    assert "samples/s" not in share.message.partition(" here; ")[0]


def test_another_noise_scale_waits_for_the_next_decision():
    quiet, loud, unknown = (Claims(job("a", batches=Batches(64, 256, n))) for n in (10.0, 20.0, None))
    assert not quiet.differs(loud)
    assert quiet.differs(unknown)


@pytest.mark.parametrize(
    ("measured", "held", "text"),
    [
        ((), 0, "it tries at most 4 workers before its steps are measured"),
        (WELL[:1], 4, "it tries at most 4 workers before its steps with more than 1 worker are measured"),
    ],
)
def test_the_explanation_says_that_a_size_was_not_tried_yet(measured, held, text):
    share = shares(job("a", held, measured=measured, age=60.0))["a"]
    assert (share.reason, share.message) == ("NotYetMeasured", f"not grown: {text}")


def test_the_explanation_says_that_no_larger_size_is_faster():
    flat = tuple(Measured(w, 1, t) for w, t in ((1, 1.0), (2, 0.5), (3, 0.5), (4, 0.5)))
    assert shares(job("a", 2, most=4, measured=flat))["a"].reason == "NotFaster"


def test_the_room_is_the_reason_if_no_other_job_has_got_it():
    assert shares(job("a", 4, measured=WELL), nodes=1)["a"].reason == "NoRoom"


def test_the_explanation_says_how_many_workers_pay_together_if_fewer_accelerators_are_idle():
    nodes = (Node("n0", {GPU: 1, "pods": 9}), Node("n1", {GPU: 2, "pods": 9}))
    policy = replace(EFFICIENT, sharing=Sharing.BALANCED)
    given = allocate(Snapshot(nodes, (job("a", 1, most=4, measured=WELL[:1]),)), policy, NOW).shares["a"]
    assert (given.size, given.reason) == (2, "NoRoom")
    assert given.message == f"not grown: 1 {GPU} idle, 2 needed for the next 2 workers together"


@pytest.mark.parametrize(("age", "after"), [(HOUR, REVIEW_SECONDS), (20.0, 20.0), (1.0, SOON_SECONDS)])
def test_sizes_are_decided_anew_after_a_while_even_if_nothing_changes(age, after):
    made = allocate(Snapshot((Node("n", {GPU: 1, "pods": 9}),), (job("a", 1, age=age), job("b"))), EFFICIENT, NOW)
    assert made.again == after


def test_a_job_that_gets_no_faster_gives_up_what_an_equal_share_gave_it():
    """Both hold 4 of 8; one was as fast with 8 before, the other has run with 4 only."""
    flat = tuple(Measured(w, 1, 0.95 + 0.05 / w) for w in (8, 4))

    def here(name: str, measured: tuple[Measured, ...]) -> Job:
        workers = tuple(Worker(f"{name}-{i}", "n0", ONE.demand, trains=True) for i in range(4))
        return replace(job(name, 4, measured=measured), workers=workers)

    sizes = settled(here("flat", flat), here("well", (Measured(4, 1, 0.25),)), nodes=1, per_node=8)
    assert sizes["well"] >= 6


def test_jobs_bound_to_other_nodes_do_not_compete():
    def pool(name: str) -> WorkerShape:
        return replace(ONE, place=replace(ONE.place, selector=(("pool", name),)))

    nodes = tuple(Node(f"n{i}", {GPU: 4, "pods": 9}, labels={"pool": "ab"[i % 2]}) for i in range(4))
    jobs = (job("well", measured=WELL, kind=pool("a")), job("badly", measured=BADLY, kind=pool("b")))
    given = allocate(Snapshot(nodes, jobs), EFFICIENT, NOW).shares
    assert {uid: s.size for uid, s in given.items()} == {"well": 8, "badly": 8}


def test_a_weight_is_worth_accelerators():
    jobs = job("a", measured=BADLY), replace(job("b", measured=BADLY), namespace="x")
    sizes = settled(*jobs, policy=replace(EFFICIENT, weights={"x": 3}))
    assert sizes["b"] > sizes["a"]


def times(fixed: float) -> tuple[Measured, ...]:
    return tuple(Measured(w, 1 + (w > 4), fixed + (1 - fixed) / w) for w in (1, 4, 16))


FIXED = st.floats(0.01, 0.9)


@examples(40)
@given(st.lists(FIXED, min_size=1, max_size=8), st.sampled_from([Sharing.BALANCED, Sharing.EFFICIENT]))
def test_a_job_that_can_be_divided_better_never_gets_less(fixed, sharing):
    jobs = [job(f"j{i}", measured=times(f)) for i, f in enumerate(fixed)]
    sizes = settled(*jobs, policy=replace(EFFICIENT, sharing=sharing))
    assert sum(sizes.values()) <= 16
    ranked = [sizes[f"j{i}"] for i in sorted(range(len(fixed)), key=lambda i: -fixed[i])]
    for less, more in pairwise(ranked):
        assert more >= less - 2, "the next accelerators go where they add most, up to a stride of two"


@examples(40)
@given(st.lists(FIXED, min_size=2, max_size=6), st.integers(0, 5), st.none() | st.floats(1.0, 1e6))
def test_a_higher_priority_never_means_fewer_workers(fixed, which, noise):
    jobs = [job(f"j{i}", measured=times(f)) for i, f in enumerate(fixed)]
    if noise is not None:
        jobs[0] = replace(jobs[0], measured=BATCHES, batches=Batches(64, 4096, noise))
    raised = which % len(jobs)
    before = settled(*jobs)[f"j{raised}"]
    jobs[raised] = replace(jobs[raised], priority=1)
    assert settled(*jobs)[f"j{raised}"] >= before


@pytest.mark.parametrize(("sharing", "held"), [(Sharing.EQUAL, True), (Sharing.EFFICIENT, False)])
def test_by_speeds_a_job_rests_for_at_most_ten_of_its_pauses(sharing, held):
    policy = replace(EFFICIENT, sharing=sharing, hysteresis=60.0)
    recent = job("a", 4, resized=NOW - timedelta(seconds=11), pause=1.0)
    assert (worth.thaws(recent, policy, NOW) is not None) == held
    assert worth.thaws(replace(recent, pause=6.0), policy, NOW) is not None
    assert worth.rest(replace(recent, pause=30.0), policy) == 60.0
