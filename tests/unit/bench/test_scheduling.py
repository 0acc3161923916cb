"""The scheduling benchmark's adapter: simulated jobs through the product's own allocate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import scheduling
from bench_scheduling import decisions, kit, product
from bench_scheduling.kit import Run
from bench_scheduling.product import Product
from elastrain.sizing.speedup import Measured, learned
from elastrain_operator.allocation.snapshot import Policy, Sharing
from elastrain_operator.policy.report.training import KEPT

EFFICIENT = Policy(sharing=Sharing.EFFICIENT, hysteresis=0.0, pause=1.0)
KIT = Path(__file__).parents[4] / "shared" / "scheduling"


@dataclass(eq=False)
class Simulated:
    """A job as the kit's simulator has it."""

    name: str
    nodes: tuple[int, ...] = ()
    submitted: int = 0
    cap: int = 64
    restarts: int = -1
    delay: float = 1.0
    target: int | None = 64
    atomic: int = 0
    accum: int = 0
    epoch: int = 0
    seen: dict[tuple[int, int, int | None], float] = field(default_factory=dict)

    @property
    def placement(self) -> tuple[int, ...]:
        return tuple(Counter(self.nodes).values())

    @property
    def batch(self) -> int:
        return len(self.nodes) * self.atomic * (self.accum + 1)

    @property
    def app(self) -> SimpleNamespace:
        return SimpleNamespace(
            init=16, max_batch=256, min_local=4, max_local=256,
            split=lambda batch, gpus: (batch // gpus, 0), noise_at=lambda _batch, _epoch: (1.0, 100.0),
        )  # fmt: skip


def test_a_new_job_gets_the_gpus_of_one_node():
    job = Simulated("new")
    assert Product(EFFICIENT, nodes=2, per_node=4)([job], 60) == {job: 4}


def test_workers_that_leave_free_their_room_within_the_same_decision():
    old, new = Simulated("old", (0, 0, 0, 0, 1, 1, 1, 1)), Simulated("new", submitted=5000)
    sizes = Product(EFFICIENT, nodes=2, per_node=4)([old, new], 5000)
    assert sizes[new] > 1
    assert sum(sizes.values()) == 8


def test_a_job_tells_the_times_of_whole_steps():
    job = kit.job(Simulated)("a", (0,), target=64, atomic=16, accum=3)
    job.model.add((1,), 16, 0.5, 0.0)
    job.nodes, job.accum = (0, 0, 0, 1), 0
    job.model.add((3, 1), 16, 0.3, 0.1)
    assert product.measured(job) == (Measured(1, 1, 0.5 + 3 * 0.5), Measured(4, 2, 0.3))


def test_a_job_tells_only_as_many_times_as_the_operator_keeps():
    job = kit.job(Simulated)("a", target=64)
    for gpus in range(1, 20):
        job.model.add((gpus,), 16, 1 / gpus, 0.0)
    assert [m.workers for m in product.measured(job)] == list(range(20 - KEPT, 20))


def test_a_job_without_a_fixed_batch_trains_with_the_best_one_of_its_model():
    job = kit.job(Simulated)("a", (0,), target=None, atomic=16)
    job.rebatch()
    assert job.batch == 16, "its own batch, until a step was measured"
    job.model.add((1,), 16, 0.5, 0.0)
    job.rebatch()
    assert job.batch == learned(product.measured(job)).next_batch(16, 1, spans=False, batches=product.batches(job)) > 16


def test_nothing_is_decided_while_nothing_changes(monkeypatch):
    job = Simulated("a", (0,), cap=1)
    policy = Product(EFFICIENT, nodes=1, per_node=4)
    assert policy([job], 60) == {job: 1}
    monkeypatch.setattr(product, "allocate", lambda *_: pytest.fail("a decision"))
    assert policy([job], 70) == {job: 1}


def test_workers_stay_on_their_nodes_if_a_job_grows_or_shrinks():
    grows, shrinks = Simulated("grows", (0, 0)), Simulated("shrinks", (1, 1, 1, 2))
    placed = kit.kept([grows, shrinks], {grows: 3, shrinks: 2}, nodes=3, per_node=4)
    assert placed == {grows: (0, 0, 0), shrinks: (1, 1)}


def test_the_time_of_a_decision_is_measured(monkeypatch):
    monkeypatch.setattr(decisions, "SIZES", ((20, 16, 4),))
    found = decisions.measure()
    assert [(d.sharing, d.free) for d in found] == [("equal", False), ("efficient", False), ("efficient", True)]
    assert all(0 < d.median < 0.5 for d in found)


def test_the_missing_file_is_named_if_the_folder_is_not_the_simulator(tmp_path, capsys):
    with pytest.raises(typer.Exit):
        scheduling.main(folder=tmp_path)
    assert "sim.py is missing" in capsys.readouterr().err


@pytest.mark.skipif(bool(kit.missing(KIT)), reason="the simulator's folder is not beside the checkout")
@pytest.mark.nightly
def test_a_published_workload_ends_sooner_than_with_equal_shares():
    runs = [Run(policy, "6") for policy in (Sharing.EFFICIENT, Sharing.EQUAL)]
    efficient, equal = (kit.play(KIT, replace(run, workload="6")).figures["mean"] for run in runs)
    assert efficient < 0.97 * equal
