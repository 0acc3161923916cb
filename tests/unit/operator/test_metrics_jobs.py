"""Series of jobs: from their loops' last observations, and gone with the job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from elastrain.api.records import Progress, Rescale
from elastrain_operator.facts import Coordination, JobRef, Observed
from elastrain_operator.job.meter import METRICS, PAUSE_BUCKETS, JobMeter, JobSeries, Tally, escaped
from elastrain_operator.policy.report.accelerator_seconds import Usage
from elastrain_resource.job import (
    Condition,
    GenerationStatus,
    JobStatus,
    LastRescale,
    RestartCounts,
    UnhealthyWorker,
)
from elastrain_resource.job.batches import BatchStatus, LargerBatch, RankShareStatus
from elastrain_resource.job.status import ProgressStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)
REPORT = Progress(generation=2, world_size=4, members=4, step=100, total_steps=1000, samples=25_600, step_seconds=0.5)
USAGE = Usage(
    training=50, rescaling=5, waiting=2, redone=3, held=4, in_generation=4, use="training", redone_steps=6,
    generation=2, until=NOW.isoformat(),
)  # fmt: skip
STATUS = JobStatus(
    phase="Running",
    replicas=4,
    desired_replicas=5,
    ready_replicas=4,
    step=100,
    generation=GenerationStatus(number=2, size=4, reason="Grow"),
    conditions=[
        Condition(type="Running", status="True", reason="Training", last_transition_time="t"),
        Condition(type="PodsReady", status="False", reason="Starting", last_transition_time="t"),
        Condition(type="CheckpointHealthy", status="Unknown", reason="NoneYet", last_transition_time="t"),
    ],
    restarts=RestartCounts(user=1, infrastructure=2),
    last_rescale=LastRescale(
        from_=2, to=4, reason="Grow", pause_seconds=0.3, lost_steps=0, phases={"transfer": 0.1, "first_step": 0.2}
    ),
    unhealthy_workers=[UnhealthyWorker(worker="w", health="slow", since=NOW.isoformat())],
)


def rescale(generation: int, pause: float, reason: str = "Grow", from_size: int = 2) -> Rescale:
    return Rescale(generation=generation, from_size=from_size, to_size=4, reason=reason, step=9, pause_seconds=pause)


def observed(report: Progress | None = REPORT) -> Observed:
    return Observed(JobRef("team", "bert", "uid"), coordination=Coordination(progress=report))


def meter(status: JobStatus = STATUS, report: Progress | None = REPORT, usage: Usage = USAGE) -> JobMeter:
    found = JobMeter()
    found.saw(JobRef("team", "bert", "uid"), status, observed(report), None, usage)
    return found


def scrape(*meters: JobMeter, seconds: float = 0.0) -> dict[tuple[str, ...], float]:
    """(name, label values but namespace and job, in the order of their names) → value, as Prometheus parses it."""
    text = JobSeries(lambda: meters, lambda: NOW + timedelta(seconds=seconds)).text()
    return {
        (s.name, *(v for k, v in sorted(s.labels.items()) if k not in ("namespace", "job"))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_a_jobs_series_are_its_loops_last_observation():
    found = scrape(meter())
    assert {k: found[k] for k in found if k[0] in _PLAIN} == {
        ("elastrain_job_phase", "Running"): 1,
        ("elastrain_job_condition", "Running"): 1,
        ("elastrain_job_condition", "PodsReady"): 0,
        ("elastrain_job_replicas_wanted",): 5,
        ("elastrain_job_replicas",): 4,
        ("elastrain_job_replicas_ready",): 4,
        ("elastrain_job_generation",): 2,
        ("elastrain_job_world_size",): 4,
        ("elastrain_job_step",): 100,
        ("elastrain_job_target_steps",): 1000,
        ("elastrain_job_steps_total",): 106,
        ("elastrain_job_samples_per_second",): 512,
        ("elastrain_job_remaining_seconds",): 450,
        ("elastrain_job_restarts_total", "user"): 1,
        ("elastrain_job_restarts_total", "infrastructure"): 2,
        ("elastrain_job_restarts_total", "preemption"): 0,
        ("elastrain_job_unhealthy_workers", "slow"): 1,
        ("elastrain_job_unhealthy_workers", "stuck"): 0,
        ("elastrain_job_accelerators",): 4,
        ("elastrain_job_last_rescale_pause_seconds",): 0.3,
        ("elastrain_job_last_rescale_phase_seconds", "transfer"): 0.1,
        ("elastrain_job_last_rescale_phase_seconds", "first_step"): 0.2,
    }
    assert found["elastrain_operator_jobs", "Running"] == 1


_PLAIN = {
    f"elastrain_job_{name}"
    for name in (
        "phase", "condition", "replicas_wanted", "replicas", "replicas_ready", "generation", "world_size", "step",
        "target_steps", "steps_total", "samples_per_second", "remaining_seconds", "restarts_total",
        "unhealthy_workers", "accelerators", "last_rescale_pause_seconds", "last_rescale_phase_seconds",
    )
}  # fmt: skip


def test_the_share_of_the_slowest_rank_is_there_only_if_shares_are_measured():
    slow = RankShareStatus(rank=3, share=0.4, samples_per_second=80.0)
    fast = RankShareStatus(rank=0, share=1.2, samples_per_second=240.0)
    found = scrape(meter(STATUS.model_copy(update={"rank_shares": [slow, fast]})))
    assert found["elastrain_job_slowest_rank_share",] == 0.4
    assert "elastrain_job_slowest_rank_share" not in {name for name, *_ in scrape(meter())}


def test_a_job_that_chooses_its_batch_has_series_of_it():
    batch = BatchStatus(samples=512, base=64, noise_scale=900, larger=LargerBatch(samples=1024, gain=-0.1))
    progress = ProgressStatus(samples=25_600, effective_samples=21_000)
    found = scrape(meter(STATUS.model_copy(update={"batch": batch, "progress": progress})))
    assert {k[0]: v for k, v in found.items() if k[0] in _OF_THE_BATCH} == {
        "elastrain_job_batch_samples": 512,
        "elastrain_job_batch_noise_scale": 900,
        "elastrain_job_batch_efficiency": 0.68,
        "elastrain_job_batch_larger_gain": -0.1,
        "elastrain_job_effective_samples": 21_000,
    }
    unknown = scrape(meter(STATUS.model_copy(update={"batch": BatchStatus(samples=64)})))
    assert {k[0] for k in unknown} & _OF_THE_BATCH == {"elastrain_job_batch_samples"}
    assert not {k[0] for k in scrape(meter())} & _OF_THE_BATCH


_OF_THE_BATCH = {
    "elastrain_job_batch_samples", "elastrain_job_batch_noise_scale", "elastrain_job_batch_efficiency",
    "elastrain_job_batch_larger_gain", "elastrain_job_effective_samples",
}  # fmt: skip


def test_accelerator_seconds_grow_between_passes():
    name = "elastrain_job_accelerator_seconds_total"
    assert {k[1]: v for k, v in scrape(meter(), seconds=10).items() if k[0] == name} == {
        "training": 90, "rescaling": 5, "waiting": 2, "redone": 3, "spare": 0,
    }  # fmt: skip


def test_a_job_that_does_not_train_has_no_speed_and_no_end():
    found = scrape(meter(usage=USAGE.model_copy(update={"use": "rescaling"})))
    assert found["elastrain_job_samples_per_second",] == found["elastrain_job_world_size",] == 0
    assert ("elastrain_job_remaining_seconds",) not in found
    assert found["elastrain_job_step",] == 100


def test_a_job_keeps_its_step_if_etcd_is_unknown():
    seen = JobMeter()
    seen.saw(JobRef("team", "bert", "uid"), STATUS, Observed(JobRef("team", "bert", "uid")), None, USAGE)
    assert scrape(seen)["elastrain_job_step",] == 100


def test_series_vanish_with_the_job():
    assert [k for k in scrape(meter()) if k[0].startswith("elastrain_job")]
    assert scrape() == {}
    assert scrape(JobMeter()) == {}, "no pass yet"


def test_a_job_has_a_bounded_number_of_series():
    quiet = JobStatus(phase="Pending", conditions=STATUS.conditions)
    assert len(scrape(meter(quiet, None))) <= 26
    busy = meter()
    for n, reason in enumerate(("Grow", "Drain", "Lost", "Broken", "Replace", "Suspend", "Stop", "Start")):
        busy.tally.add([rescale(n, 0.1, reason)])
    assert len(scrape(busy)) <= 60


# ---- rescales --------------------------------------------------------------------------------------------------------
def test_rescales_are_counted_when_they_are_new_and_the_start_is_none():
    found = meter(report=REPORT.model_copy(update={"rescales": (rescale(1, 9.0), rescale(2, 9.0))}))
    assert not found.tally.by_reason, "they were before this operator's start"
    more = (rescale(2, 9.0), rescale(3, 0.07), rescale(4, 0.3, "Lost"), rescale(5, 2.0, "Start", from_size=0))
    later = REPORT.model_copy(update={"generation": 5, "rescales": more})
    found.saw(JobRef("team", "bert", "uid"), STATUS, observed(later), USAGE, USAGE)
    series = scrape(found)
    assert series["elastrain_job_rescales_total", "Grow"] == series["elastrain_job_rescales_total", "Lost"] == 1
    assert ("elastrain_job_rescales_total", "Start") not in series
    pause = "elastrain_job_rescale_pause_seconds"
    assert [series[f"{pause}_bucket", le] for le in ("0.05", "0.1", "0.25", "0.5", "+Inf")] == [0, 1, 1, 2, 2]
    assert (series[f"{pause}_count",], series[f"{pause}_sum",]) == (2, pytest.approx(0.37))


@pytest.mark.parametrize("pause", [0.0, PAUSE_BUCKETS[0], 299.9, PAUSE_BUCKETS[-1], 1e9])
def test_every_pause_falls_into_the_buckets_that_it_fits(pause):
    tally = Tally()
    tally.add([rescale(1, pause)])
    for bound, count in tally.buckets():
        assert count == (pause <= float(bound))


# ---- the text --------------------------------------------------------------------------------------------------------
def test_the_text_has_type_help_and_labels_of_each_metric():
    found = {f.name: f for f in text_string_to_metric_families(JobSeries(lambda: [meter()]).text())}
    for family in METRICS:
        read = found[family.name.removesuffix("_total")]
        assert (read.type, read.documentation) == (family.kind, family.documentation)
        assert {tuple(sorted(set(s.labels) - {"le"})) for s in read.samples} <= {tuple(sorted(family.labels))}


@given(st.text())
def test_any_label_is_read_back(text):
    (family,) = text_string_to_metric_families(f'x{{a="{escaped(text)}"}} 1\n')
    assert family.samples[0].labels == {"a": text}
