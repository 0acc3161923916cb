"""A job tries fewer workers to learn whether it needs those that it has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Share, Sharing, Snapshot, Worker, WorkerShape
from elastrain_operator.allocation.trials import PATIENCE_SECONDS, PAUSES
from elastrain_resource.sizing.speedup import Measured, learned

NOW = datetime(2030, 1, 2, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
EFFICIENT = Policy(sharing=Sharing.EFFICIENT, hysteresis=0, pause=1.0, startup=0)
WELL = (Measured(2, 1, 0.5), Measured(4, 1, 0.25), Measured(6, 2, 0.17))
"""Times of a job whose speed is proportional to its workers."""


def job(name: str, node: str, held: int, **fields) -> Job:
    workers = tuple(Worker(f"{name}-{i}", node, ONE.demand, trains=True) for i in range(held))
    made = Job(name, "ns", name, 1, 8, ONE, created=NOW.timestamp() - 3600, workers=workers, size=held, trains=True)
    return replace(made, **{"pause": 1.0, "measured": (Measured(held, 1, 0.5),), **fields})


WANTS = job("wants", "n1", 4, cap=6, measured=WELL)


def shares(*jobs: Job) -> dict[str, Share]:
    nodes = tuple(Node(name, {GPU: 4, "pods": 9}) for name in ("n0", "n1"))
    return dict(allocate(Snapshot(nodes, jobs), EFFICIENT, NOW).shares)


def size(here: Job, wants: Job = WANTS) -> int | None:
    return shares(here, wants)[here.uid].size


def test_a_job_that_has_measured_one_size_tries_half_of_it_if_another_job_gains_by_the_rest():
    share = shares(job("here", "n0", 4), WANTS)["here"]
    assert (share.size, share.reason) == (2, "NotYetMeasured")
    assert share.message == (
        "not grown: it tries 2 workers, to learn whether it needs more; 2 workers of ns/wants gain 47 %"
    )


def test_a_job_that_may_owe_its_speed_to_one_node_tries_half_of_it():
    assert size(job("here", "n0", 4, measured=(Measured(4, 1, 0.5), Measured(8, 2, 0.5)))) == 2


def test_no_job_tries_fewer_workers_if_no_other_one_wants_the_rest():
    assert size(job("here", "n0", 4), job("full", "n1", 4, cap=4, measured=WELL)) == 4


def test_no_job_tries_fewer_workers_if_the_other_one_gains_too_little():
    assert size(job("here", "n0", 4), replace(WANTS, measured=(Measured(2, 1, 1.0), Measured(4, 1, 0.95)))) == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"measured": (Measured(4, 1, 0.25), Measured(8, 1, 0.125))},
        {"measured": (Measured(4, 1, 0.25), Measured(8, 2, 0.125))},
        {"measured": ()},
        {"measured": (Measured(8, 2, 0.5),)},
        {"min": 4},
        {"priority": 1},
        {"elastic": False, "cap": 4},
        {"created": NOW.timestamp() - PAUSES + 1},
        {"pause": 3600 / PAUSES + 1},
        {"rescales": 18},
        {"remaining": 1.0},
    ],
    ids=["known", "faster on two nodes", "silent", "not measured here", "minimum", "priority", "fixed", "young",
         "long pauses", "often resized", "about to end"],
)  # fmt: skip
def test_a_job_keeps_its_workers_if_it_knows_that_it_needs_them_or_a_trial_would_not_pay(fields):
    assert size(job("here", "n0", 4, **fields)) == 4


def test_a_trial_never_goes_below_the_minimum_and_takes_whole_groups():
    assert size(job("here", "n0", 4, min=3), replace(WANTS, cap=5)) == 3
    pairs = job("here", "n0", 4, min=2, group_size=2)
    pairs = replace(pairs, workers=tuple(replace(w, group=f"g{i // 2}") for i, w in enumerate(pairs.workers)))
    assert size(pairs) == 2


def test_a_job_keeps_the_workers_that_it_tries_until_it_has_measured_them():
    here = job("here", "n0", 2, measured=(Measured(4, 1, 0.25),), resized=NOW - timedelta(seconds=60))
    wants = job("wants", "n1", 4, cap=4, measured=WELL)  # two accelerators are free
    share = shares(here, wants)["here"]
    assert (share.size, share.reason) == (2, "NotYetMeasured")
    assert share.message == "not grown: it keeps 2 workers until its steps with them are measured"
    assert size(replace(here, resized=NOW - timedelta(seconds=PATIENCE_SECONDS)), wants) == 4, "no steps are reported"
    assert size(replace(here, measured=(Measured(4, 1, 0.25), Measured(2, 1, 0.5))), wants) == 4, "it needs them"
    assert size(replace(here, measured=(Measured(4, 1, 0.25), Measured(2, 1, 0.255))), wants) == 2, "it does not"


def test_the_sceptical_model_believes_only_what_was_measured():
    one = learned((Measured(4, 1, 0.5),), sceptical=True)
    assert one.seconds(1, spans=False) == pytest.approx(0.5, rel=0.02)
    scales = learned((Measured(4, 1, 0.5), Measured(8, 2, 0.25)), sceptical=True)
    assert scales.seconds(2, spans=False) == pytest.approx(1.0, rel=0.1)
