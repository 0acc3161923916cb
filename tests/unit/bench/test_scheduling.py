"""The scheduling benchmark's adapter: simulated jobs through the product's own allocate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import scheduling
from bench_scheduling import decisions, kit, product
from bench_scheduling.kit import Run
from bench_scheduling.product import Product
from elastrain.sizing.speedup import Measured
from elastrain_operator.allocation.model import Policy, Sharing

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
    target: int = 64
    seen: dict[tuple[int, int, int], tuple[float, float]] = field(default_factory=dict)

    @property
    def model(self) -> SimpleNamespace:
        return SimpleNamespace(seen=self.seen)

    @property
    def app(self) -> SimpleNamespace:
        return SimpleNamespace(split=lambda batch, gpus: (16, max(batch // gpus // 16 - 1, 0)))


def test_a_new_job_gets_the_gpus_of_one_node():
    job = Simulated("new")
    assert Product(EFFICIENT, nodes=2, per_node=4)([job], 60) == {job: 4}


def test_workers_that_leave_free_their_room_within_the_same_decision():
    old, new = Simulated("old", (0, 0, 0, 0, 1, 1, 1, 1)), Simulated("new", submitted=5000)
    sizes = Product(EFFICIENT, nodes=2, per_node=4)([old, new], 5000)
    assert sizes[new] > 1
    assert sum(sizes.values()) == 8


def test_a_job_tells_the_times_of_whole_steps():
    job = Simulated("a", seen={(1, 1, 16): (0.5, 0.0), (2, 4, 16): (0.3, 0.1)})
    assert product.measured(job) == (Measured(1, 1, 0.5 + 3 * 0.5), Measured(4, 2, 0.3))


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
    assert [(d.sharing, d.jobs) for d in found] == [("equal", 20), ("efficient", 20)]
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
