"""The commands' output about jobs."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from elastrain.api import names
from elastrain_cli.client.explain import explain
from elastrain_cli.client.records import worker_of
from elastrain_cli.shell import view
from elastrain_resource.job import ElasticTrainingJob, LastRescale
from elastrain_resource.job.shown import Event, Worker

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def job(status: dict[str, Any] | None = None, **spec: Any) -> ElasticTrainingJob:
    container = {"name": "trainer", "image": "train:1", "command": ["python", "train.py"]}
    body: dict[str, Any] = {
        "apiVersion": names.API_VERSION, "kind": names.KIND,
        "metadata": {"name": "digits", "uid": "u1", "creationTimestamp": "2026-01-01T10:00:00Z"},
        "spec": {"maxReplicas": 4, "template": {"spec": {"containers": [container]}}, **spec},
    }  # fmt: skip
    return ElasticTrainingJob.model_validate(body | ({"status": status} if status else {}))


def condition(kind: str, status: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": "t"}


def worker(ordinal: int, **fields: Any) -> Worker:
    facts: dict[str, Any] = {"phase": "Running", "node": "n", "reason": "", "message": "", "started": NOW}
    return Worker(name=f"digits-{ordinal}", ordinal=ordinal, **(facts | fields))


def shown(what: Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


RUNNING = {
    "phase": "Running", "desiredReplicas": 4, "readyReplicas": 3, "step": 128, "observedGeneration": 1,
    "generation": {"number": 5, "size": 3, "reason": "Lost"},
    "lastRescale": {"from": 4, "to": 3, "reason": "Lost", "pauseSeconds": 0.314, "lostSteps": 0,
                    "phases": {"detect": 0.07, "first_step": 0.2}},
    "conditions": [condition("PodsReady", "False", "3 of 4 workers train")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (200_000, "2d")]
)
def test_ages_have_kubectls_format(seconds: int, words: str) -> None:
    assert view.age(NOW - timedelta(seconds=seconds), NOW) == words


def test_a_clock_that_is_behind_the_clusters_shows_no_negative_age() -> None:
    assert view.age(NOW + timedelta(seconds=5), NOW) == "0s"


def test_a_line_shows_size_step_and_pause_and_a_wide_one_the_reason() -> None:
    line = " ".join(shown(view.table([job(RUNNING)], NOW, namespaces=True, wide=True)).splitlines()[1].split())
    assert line == "default digits Running 3/4 128 0.31 s 2h 1 4 5 (Lost) 3 of 4 workers train"


def test_a_job_that_no_operator_has_seen_is_pending() -> None:
    assert (view.phase_of(job()), view.size_of(job(replicas=2))) == ("Pending", "0/2")


def test_a_lost_step_is_not_hidden() -> None:
    lost = LastRescale(from_=2, to=1, reason="Lost", pause_seconds=1, lost_steps=3)
    assert view.rescale_line(lost) == "Lost 2→1 ranks: 1.00 s pause, 3 steps lost"


def test_details_show_why_the_phases_of_the_pause_workers_and_events() -> None:
    event = Event(time=NOW - timedelta(seconds=9), type="Warning", reason="WorkerLost", message="digits-1", count=1)
    text = shown(view.details(job(RUNNING), [worker(0)], [event], NOW))
    assert "digits  Running  3/4 workers (min 1, max 4)  step 128  generation 5 (Lost)" in text
    assert "3 of 4 workers train" in text
    assert "last rescale: Lost 4→3 ranks: 0.31 s pause (detect 0.07, first_step 0.20)" in text
    assert "9s   WorkerLost  digits-1" in text


def test_details_show_how_much_of_the_paid_time_trained_and_the_lost_time_by_cause() -> None:
    usage = {"training": 95.0, "waiting": 3.0, "rescaling": 2.0, "rescalingPhases": {"detect": 2.0}}
    text = shown(view.details(job(RUNNING | {"acceleratorSeconds": usage}), [], [], NOW))
    assert "paid time: 95.00 % trains, 3.00 % waiting, 2.00 % detection" in text
    assert "paid time" not in shown(view.details(job(RUNNING | {"acceleratorSeconds": {}}), [], [], NOW))


# ---- explain -------------------------------------------------------------------------------------------------------
def test_a_missing_operator_is_the_explanation_if_the_job_has_no_status() -> None:
    assert [(r.text, r.change) for r in explain(job(), ())] == [
        ("no operator has observed the job", "elastrain doctor")
    ]


def test_an_end_explains_itself() -> None:
    failed = {"observedGeneration": 1, "conditions": [condition("Failed", "True", "exit code 3 in rank 1")]}
    (reason,) = explain(job(failed), [worker(0, phase="Failed", reason="Error")])
    assert reason.text == "the job failed: exit code 3 in rank 1"
    assert "elastrain logs digits" in reason.change


def test_a_suspended_job_is_resumed_by_a_command() -> None:
    (reason,) = explain(job({"observedGeneration": 1}, suspend=True), ())
    assert reason.change == "elastrain resume digits"


def test_workers_that_cannot_start_are_shown_with_the_remedy() -> None:
    stuck = {"phase": "Pending", "reason": "Unschedulable", "message": "0/3 nodes: insufficient nvidia.com/gpu"}
    reasons = explain(job(RUNNING), [worker(0), worker(2, **stuck), worker(3, **stuck)])
    assert reasons[0].text == "digits-2, digits-3: Unschedulable: 0/3 nodes: insufficient nvidia.com/gpu"
    assert reasons[0].change == "free or add nodes with these resources, or lower replicas"


def test_groups_of_several_workers_are_counted_as_groups() -> None:
    reasons = explain(job(RUNNING, parallelism={"shards": 2}), [worker(0)])
    assert reasons[-1].text.startswith("3 of 4 desired groups train")


def test_starting_workers_are_named_without_advice_to_grow() -> None:
    reasons = explain(job(RUNNING), [worker(0), worker(3, phase="Pending")])
    assert [r.text for r in reasons[:-1]] == ["digits-3: starting"], "the number of training workers is shown once"
    assert reasons[-1].text.startswith("3 of 4 desired workers train")
    assert "elastrain scale" not in reasons[-1].change


@pytest.mark.parametrize(
    ("spec", "wanted", "change"),
    [
        ({"replicas": 2}, 2, "elastrain scale digits 3"),
        ({"replicas": 4}, 4, "raise spec.maxReplicas"),
        ({}, 2, ""),
    ],
)
def test_the_last_reason_is_what_bounds_the_size(spec: dict[str, int], wanted: int, change: str) -> None:
    status = {"observedGeneration": 1, "desiredReplicas": wanted, "readyReplicas": wanted}
    assert explain(job(status, **spec), ())[-1].change == change


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("TemplateInvalid", "correct the template and apply it again; elastrain validate checks it before"),
        ("QuotaExceeded", "kubectl describe quota -n default; raise it, or lower minReplicas or the requests"),
        ("AnotherReason", ""),
        ("BackingOff", "elastrain logs digits"),
    ],
)
def test_a_job_that_cannot_start_is_not_advised_to_grow(reason: str, change: str, shared: bool) -> None:
    """``shared``: the allocator gives it no worker, and says why in a second condition."""
    kinds = ("PodsReady", "Grown")[: 1 + shared]
    why = [{**condition(kind, "False", "the cause"), "reason": reason} for kind in kinds]
    status = {"observedGeneration": 1, "desiredReplicas": 0 if shared else 4, "conditions": why}
    first, last = explain(job(status, replicas=4), [worker(0, phase="Pending")])
    assert (first.text, first.change, last.change) == ("the cause", change, "")


# ---- warm spares ---------------------------------------------------------------------------------------------------
def test_details_show_the_number_of_ready_warm_spares() -> None:
    text = shown(view.details(job(RUNNING | {"spares": {"ready": 1, "desired": 2}}, warmSpares=2), [], [], NOW))
    assert "3/4 workers (min 1, max 4)  spares 1/2  step 128" in text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"spares": {"ready": 2, "desired": 2}}, None),
        ({"spares": {"ready": 1, "desired": 2}}, "1 of 2 warm spares are ready: the others are starting"),
        ({"spares": {"ready": 1, "desired": 1}},
         "1 of 2 warm spares are ready: the unused capacity holds 1"),
        ({"spares": {"ready": 0, "desired": 0}, "generation": None},
         "0 of 2 warm spares are ready: they start once the job trains"),
    ],
)  # fmt: skip
def test_missing_spares_are_explained(more: dict[str, Any], says: str | None) -> None:
    found = [r.text for r in explain(job(RUNNING | more, warmSpares=2), ()) if "spares" in r.text]
    assert found == ([says] if says else [])


# ---- pods ----------------------------------------------------------------------------------------------------------
def test_an_unscheduled_worker_quotes_the_scheduler() -> None:
    pod = {
        "metadata": {"name": "digits-3", "labels": {names.LABEL_ORDINAL: "3"}},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}]},
    }  # fmt: skip
    found = worker_of(pod)
    assert (found.ordinal, found.phase, found.reason, found.message) == (3, "Pending", "Unschedulable", "no node")


def test_a_deleted_worker_is_terminating_and_a_starting_one_has_no_message() -> None:
    meta = {"name": "digits-3", "deletionTimestamp": "2026-01-01T12:00:00Z"}
    starting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    found = worker_of({"metadata": meta, "status": {"phase": "Pending", "containerStatuses": [starting]}})
    assert (found.phase, found.reason) == ("Terminating", "")


# ---- more of the screen ----------------------------------------------------------------------------------------------
def narrow(what: Any) -> str:
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


BUSY = RUNNING | {
    "progress": {"of": 1840, "epoch": 5, "samplesPerSecond": 10342.7, "loss": 0.0821764,
                 "eta": "2026-01-01T13:12:00Z"},
    "lastFailure": {"time": "2026-01-01T11:58:00Z", "worker": "digits-1", "rank": 3, "cause": "user",
                    "reason": "ScriptFailed", "message": "ValueError: x", "logTail": "Traceback\nValueError: x"},
    "conditions": [condition("PodsReady", "False", "3 of 4 workers train"),
                   condition("Grown", "False", "0 of 8 nvidia.com/gpu are free")],
}  # fmt: skip


def test_details_show_progress_speed_and_why_the_job_is_not_larger() -> None:
    text = shown(view.details(job(BUSY), [], [], NOW))
    assert "step 128/1840, epoch 5, loss 0.08218, 10,343 samples/s, 1h12m left" in text
    assert "why not larger: 0 of 8 nvidia.com/gpu are free" in text
    assert "last failure: 2m ago, rank 3 in digits-1: ScriptFailed: ValueError: x" in text
    assert "Traceback" not in text, "it lives"


def test_details_show_no_loss_if_the_script_reports_none() -> None:
    progress = {key: value for key, value in BUSY["progress"].items() if key != "loss"}
    unknown = job(BUSY | {"progress": progress})
    assert "epoch 5, 10,343 samples/s" in shown(view.details(unknown, [], [], NOW))
    assert view.position_of(unknown) == ", step 128"


def test_a_line_shows_step_and_loss_if_they_are_known() -> None:
    assert view.position_of(job(BUSY)) == ", step 128, loss 0.08218"
    assert view.position_of(job({"phase": "Pending"})) == ""


def test_a_failed_job_shows_the_last_lines_of_its_rank() -> None:
    failed = BUSY | {"phase": "Failed", "conditions": [condition("Failed", "True", "backoffLimit (2) reached")]}
    text = shown(view.details(job(failed), [], [], NOW))
    assert "backoffLimit (2) reached" in text
    assert "    Traceback\n    ValueError: x" in text


def test_nothing_is_cut_on_a_narrow_terminal() -> None:
    long = "gpt2-pretrain-on-the-nightly-cluster"
    waits = Worker(long + "-12", 12, "Pending", "", "Unschedulable", "8 Insufficient nvidia.com/gpu", None)
    texts = [
        narrow(view.details(job(BUSY), [waits], [], NOW)),
        narrow(view.table([job(BUSY)], NOW, namespaces=True, wide=False)),
    ]
    for text in texts:
        assert "…" not in text
        assert all(len(line) <= 60 for line in text.splitlines())
    assert long + "-12" in "".join(line[:20].strip() for line in texts[0].splitlines() if "last" not in line)


def test_a_change_that_the_operator_has_not_observed_is_reported() -> None:
    old = job(RUNNING)
    old.metadata["generation"] = 2
    assert "has not observed the last change" in view.summary(old, NOW)
    assert "no operator has observed the job for 2h" in view.summary(job(), NOW)
    fresh = job()
    assert view.unobserved(fresh, NOW - timedelta(hours=2) + timedelta(seconds=3)) == ""


def test_explain_shows_why_the_job_is_not_larger() -> None:
    assert "0 of 8 nvidia.com/gpu are free" in [reason.text for reason in explain(job(BUSY), [])]


BATCH = {"min": 64, "max": 512, "learningRate": "AdaScale"}
CHOSEN = {"samples": 128, "base": 64, "noiseScale": 1100, "larger": {"samples": 256, "gain": 0.03}}


def test_details_show_the_batch_and_what_the_samples_were_worth() -> None:
    progress = BUSY["progress"] | {"samples": 117_760, "effectiveSamples": 112_345}
    text = shown(view.details(job(BUSY | {"progress": progress, "batch": CHOSEN}, batch=BATCH), [], [], NOW))
    assert "batch 128 (2 x 64), noise scale 1,100, efficiency 0.95, 256 would gain 3%" in text
    assert "117,760 samples worth 112,345" in text


def test_explain_shows_who_chose_the_batch_and_why_it_is_not_larger() -> None:
    reasons = [reason.text for reason in explain(job(BUSY | {"batch": CHOSEN}, batch=BATCH), [])]
    assert (
        "rank 0 chose a batch of 128 samples between spec.batch.min (64) and spec.batch.max (512); a sample is worth "
        "0.95 of one in the script's batch of 64 (noise scale 1,100); 256 would gain 3% of goodput, and a change needs "
        "7%"
    ) in reasons
    assert not [reason for reason in explain(job(BUSY), []) if "batch" in reason.text]


# ---- jobs under Kueue ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("ExtrasWait", "it grows when other jobs give quota back; raise the quota of its ClusterQueue"),
        ("Queued", "or lower minReplicas"),
        ("AdmissionCheck", "kubectl describe workload -n default -l elastrain.dev/job=digits"),
        ("QueueObjectMissing", "kubectl get localqueues,workloadpriorityclasses,resourceflavors -n default"),
        ("Moves", "kubectl get localqueues -n default"),
        ("AtMax", ""),
    ],
)
def test_a_queued_job_names_its_queue_and_what_would_make_it_larger(reason: str, change: str) -> None:
    said = "queue lq (ClusterQueue cq) admits 2 of 4 workers; the next one waits: insufficient unused quota"
    grown = {**condition("Grown", "False", said), "reason": reason}
    status = {"observedGeneration": 1, "desiredReplicas": 2, "readyReplicas": 2, "conditions": [grown]}
    queued = job(status)
    queued.metadata["labels"] = {names.LABEL_QUEUE: "lq"}
    first, last = explain(queued, ())
    assert first.text == said
    assert change in first.change
    assert bool(change) == bool(first.change)
    assert last.text == "2 of 2 desired workers train; Kueue's queue lq decides between 1 and 4"
    assert explain(job(status), ())[0].change == "", "without the label, Kueue is not asked"


# -- shares ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("share", "named"), [(0.5, True), (0.95, False)])
def test_explain_names_the_slowest_ranks_only_if_they_compute_clearly_less(share: float, named: bool) -> None:
    shares = [{"rank": 1, "share": share, "samplesPerSecond": 125.0}]
    reasons = [reason.text for reason in explain(job(RUNNING | {"rankShares": shares}, shares="Measured"), ())]
    assert any("shares by speed: rank 1 0.50 (125 samples/s); 1 is an equal share" in text for text in reasons) is named


def test_details_show_the_shares_of_the_slowest_ranks() -> None:
    shares = [{"rank": 1, "share": 0.5, "samplesPerSecond": 125.0}]
    text = shown(view.details(job(RUNNING | {"rankShares": shares}, shares="Measured"), [], [], NOW))
    assert "shares by speed: rank 1 0.50 (125 samples/s)" in text
