"""The times of a step that a job's status keeps, by size and placement."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import builders
from elastrain.api.batch import BatchFigures, LargerBatch
from elastrain.api.records import Progress, Rescale
from elastrain_operator.facts import Coordination, Pod
from elastrain_operator.policy.report.training import KEPT, batch_status, measured_sizes
from elastrain_resource.job import MeasuredSize
from elastrain_resource.job.batches import BatchStatus
from elastrain_resource.job.batches import LargerBatch as LargerBatchStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def pods(*nodes: str) -> list[Pod]:
    return [Pod(f"job-{i}", f"u{i}", i, NOW, node=node) for i, node in enumerate(nodes)]


def trained(workers: int, seconds: float | None, step: int = 10, began: int = 0, number: int = 1) -> Coordination:
    rescale = Rescale(generation=1, from_size=0, to_size=workers, reason="Start", step=began, pause_seconds=1.0)
    report = Progress(
        generation=1, world_size=workers, members=workers, step=step, step_seconds=seconds, rescales=(rescale,)
    )
    generation = builders.generation(number, *(f"job-{i}" for i in range(workers)))
    return Coordination(generation=generation, progress=report)


def size(workers: int, nodes: int, seconds: float) -> MeasuredSize:
    return MeasuredSize(workers=workers, nodes=nodes, step_seconds=seconds)


def test_a_generation_adds_its_size_and_placement():
    assert measured_sizes([], trained(3, 0.51234), pods("a", "a", "b")) == [size(3, 2, 0.5123)]


def test_the_same_size_on_other_nodes_is_another_entry():
    old = [size(3, 2, 0.5)]
    assert measured_sizes(old, trained(3, 0.4), pods("a", "a", "a")) == [*old, size(3, 1, 0.4)]


@pytest.mark.parametrize(("seconds", "after"), [(0.51, 0.5), (0.49, 0.5), (0.6, 0.6), (0.4, 0.4)])
def test_a_known_size_is_written_again_if_its_time_has_changed(seconds, after):
    old = [size(2, 1, 0.5)]
    found = measured_sizes(old, trained(2, seconds), pods("a", "a"))
    assert found == [size(2, 1, after)]
    assert (found is old) == (after == 0.5)


def test_the_newest_sizes_are_kept():
    old = [size(n, 1, 1 / n) for n in range(2, KEPT + 2)]
    assert measured_sizes(old, trained(1, 1.0), pods("a")) == [*old[1:], size(1, 1, 1.0)]


@pytest.mark.parametrize(
    ("etcd", "workers"),
    [
        (trained(2, None), pods("a", "a")),
        (trained(2, float("nan")), pods("a", "a")),
        (trained(2, 0.5, step=12, began=10), pods("a", "a")),
        (trained(2, 0.5, number=2), pods("a", "a")),
        (trained(2, 0.5), pods("a", "")),
        (trained(2, 0.5), pods("a")),
        (Coordination(), pods("a")),
    ],
    ids=["no time", "no number", "first steps", "report of another generation", "node unknown", "pod gone", "nothing"],
)
def test_nothing_is_added_if_the_time_or_its_size_is_unknown(etcd, workers):
    assert measured_sizes([], etcd, workers) == []


def chosen(samples: int, noise: float | None = None, seconds: float | None = 0.5) -> Coordination:
    seen = trained(2, 0.125)
    assert seen.progress is not None
    figures = BatchFigures(samples=samples, noise_scale=noise, step_seconds=seconds)
    return Coordination(generation=seen.generation, progress=seen.progress.model_copy(update={"batch": figures}))


def test_a_size_with_another_batch_is_another_entry_with_the_time_of_the_whole_step():
    old = [MeasuredSize(workers=2, nodes=1, step_seconds=0.3, batch=64)]
    new = MeasuredSize(workers=2, nodes=1, step_seconds=0.5, batch=128)
    assert measured_sizes(old, chosen(128), pods("a", "a")) == [*old, new]
    assert measured_sizes(old, chosen(128, seconds=None), pods("a", "a")) is old


def test_the_status_says_of_which_batch_of_the_script_a_step_takes_several():
    seen = trained(2, 0.5)
    assert seen.progress is not None
    figures = BatchFigures(samples=128, base=64)
    report = Coordination(progress=seen.progress.model_copy(update={"batch": figures}))
    assert batch_status(BatchStatus(samples=128), report) == BatchStatus(samples=128, base=64)


@pytest.mark.parametrize(
    ("old", "report", "after"),
    [
        (None, chosen(64), BatchStatus(samples=64)),
        (None, chosen(64, 123.4), BatchStatus(samples=64, noise_scale=120)),
        (BatchStatus(samples=64), chosen(64, 123.4), BatchStatus(samples=64, noise_scale=120)),
        (BatchStatus(samples=64, noise_scale=110), chosen(64, 123.4), BatchStatus(samples=64, noise_scale=110)),
        (BatchStatus(samples=64, noise_scale=60), chosen(64, 123.4), BatchStatus(samples=64, noise_scale=120)),
        (BatchStatus(samples=64, noise_scale=110), chosen(128, 123.4), BatchStatus(samples=128, noise_scale=120)),
        (BatchStatus(samples=64), chosen(64, float("nan")), BatchStatus(samples=64)),
        (BatchStatus(samples=64), Coordination(), BatchStatus(samples=64)),
        (BatchStatus(samples=64), trained(2, 0.5), None),
        (None, trained(2, 0.5), None),
    ],
)
def test_the_status_has_the_batch_and_the_noise_scale_if_these_have_changed(old, report, after):
    assert batch_status(old, report) == after


def figures(**changed) -> Coordination:
    seen = chosen(128, 1100.0)
    known = {"base": 64, "larger": LargerBatch(samples=256, gain=0.0312)}
    batch = seen.progress.batch.model_copy(update={**known, **changed})
    return Coordination(generation=seen.generation, progress=seen.progress.model_copy(update={"batch": batch}))


def test_the_status_has_the_gain_of_the_next_larger_batch():
    larger = LargerBatchStatus(samples=256, gain=0.031)
    full = BatchStatus(samples=128, base=64, noise_scale=1100, larger=larger)
    assert batch_status(None, figures()) == full
    assert batch_status(full, figures(noise_scale=1000.0, larger=LargerBatch(samples=256, gain=0.05))) is full
    assert batch_status(full, figures(larger=LargerBatch(samples=256, gain=0.08))).larger.gain == 0.08
    assert batch_status(full, figures(larger=None)).larger is None
    assert batch_status(None, figures(larger=LargerBatch(samples=256, gain=float("inf")))).larger is None
