"""The page's data about a job and the accelerators."""

from __future__ import annotations

import json

import pytest

from elastrain_cli.client.records import job_of
from elastrain_dashboard import accelerators, facts, picture, timeline


@pytest.fixture
def job(body, running):
    return job_of(facts.job(body("job", status=running)).body)


def test_a_row_shows_progress_size_and_why_the_job_is_not_larger(job) -> None:
    row = picture.row(job)
    assert row["key"] == "research/digits"
    assert (row["phase"], row["ready"], row["desired"], row["min"], row["max"]) == ("Running", 2, 3, 1, 4)
    assert (row["step"], row["of"], row["loss"], row["goodput"]) == (120, 1000, 0.4321, 0.9)
    assert row["why"] == "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker"


def test_a_job_without_a_status_has_a_row(body) -> None:
    new = body("job", replicas=2)
    new["status"] = {}
    row = picture.row(job_of(facts.job(new).body))
    assert (row["phase"], row["ready"], row["desired"], row["step"], row["goodput"]) == ("Pending", 0, 2, None, None)


def test_a_job_of_another_version_is_shown_with_its_error(body) -> None:
    row = picture.unreadable(body("job", status={"phase": "Running"}), "job digits is of another version")
    assert (row["key"], row["phase"], row["ready"], row["why"]) == (
        "research/digits",
        "Running",
        None,
        "job digits is of another version",
    )


def test_details_have_phases_in_their_order_and_the_newest_first(job, body, running) -> None:
    worker = facts.pod(body("pod", "digits", 0)).worker
    events = [
        facts.event(body("event", "digits", "Scaling", f"n{i}", f"2030-01-01T00:0{i}:00Z")).event for i in range(3)
    ]
    moments = timeline.merged((), [], job.status.last_rescale)
    shown = picture.detail(job, [worker], events, moments)
    assert [e["message"] for e in shown["events"]] == ["n2", "n1", "n0"]
    (rescale,) = shown["rescales"]
    assert [p["name"] for p in rescale["phases"]] == ["connect", "transfer", "first_step"]
    assert (rescale["from"], rescale["to"], rescale["pause"]) == (1, 2, 0.31)
    assert shown["workers"][0] == {
        "name": "digits-0", "phase": "Running", "node": "node-a", "started": "2030-01-01T00:00:00+00:00",
        "health": "", "note": "",
    }  # fmt: skip
    assert shown["usage"]["training"] == 900.0
    assert shown["explain"][-1]["text"].startswith("2 of 3 desired workers train")
    json.dumps(shown, allow_nan=False)


def test_details_have_the_batch_of_a_job_that_chooses_it(body, running) -> None:
    progress = running["progress"] | {"samples": 7_680, "effectiveSamples": 7_300}
    status = running | {"progress": progress, "batch": {"samples": 128, "base": 64, "noiseScale": 1100}}
    shown = picture.detail(job_of(facts.job(body("job", status=status)).body), [], [], ())
    assert (shown["batch"]["samples"], shown["batch"]["noiseScale"], shown["effectiveSamples"]) == (128, 1100, 7_300)


def test_details_have_speed_and_share_of_the_slowest_ranks(body, running) -> None:
    shares = [{"rank": 3, "share": 0.4, "samplesPerSecond": 80.0, "limit": "MaxShare"}]
    shown = picture.detail(job_of(facts.job(body("job", status=running | {"rankShares": shares})).body), [], [], ())
    assert shown["shares"] == shares


def test_workers_that_do_not_run_come_first_if_there_are_many(job, body) -> None:
    pods = [
        facts.pod(body("pod", "digits", n, phase="Running" if n else "Pending")).worker
        for n in range(picture.WORKERS + 5)
    ]
    shown = picture.detail(job, pods, [], ())
    assert (len(shown["workers"]), shown["workersLeftOut"], shown["groupSize"]) == (picture.WORKERS, 5, 1)
    assert shown["workers"][0]["name"] == "digits-0"


# ---- accelerators --------------------------------------------------------------------------------------------------
def test_accelerators_are_shown_by_node_and_by_job(body) -> None:
    pods = [facts.pod(body("pod", *which)) for which in (("a", 0, "n1", 2), ("a", 1, "n2", 2), ("b", 0, "n2", 1))]
    nodes = [facts.node(body("node", name, 4)) for name in ("n1", "n2", "n3")]
    (gpus,) = accelerators.picture(pods, nodes)
    assert (gpus["resource"], gpus["total"], gpus["held"]) == ("nvidia.com/gpu", 12, 5)
    assert gpus["jobs"] == [{"key": "research/a", "count": 4}, {"key": "research/b", "count": 1}]
    assert [(n["name"], n["held"], n["total"], len(n["jobs"])) for n in gpus["nodes"]] == [
        ("n1", 2, 4, 1),
        ("n2", 3, 4, 2),
        ("n3", 0, 4, 0),
    ]


def test_without_nodes_there_are_those_that_workers_run_on_and_no_total(body) -> None:
    (gpus,) = accelerators.picture([facts.pod(body("pod", "a", 0, "n1", 2))], None)
    assert (gpus["total"], gpus["held"]) == (None, 2)
    assert [(n["name"], n["total"], n["ready"]) for n in gpus["nodes"]] == [("n1", None, None)]


def test_workers_without_accelerators_are_counted_apart(body) -> None:
    pods = [facts.pod(body("pod", "a", n, "n1", 0)) for n in range(3)]
    gpus, workers = accelerators.picture(pods, [facts.node(body("node", "n1", 2))])
    assert (gpus["held"], gpus["total"]) == (0, 2)
    assert (workers["resource"], workers["held"], workers["total"]) == (facts.CPU_WORKERS, 3, None)


def test_a_queued_job_shows_its_queue_and_no_other_label(body, running) -> None:
    queued = body("job", status=running)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research", "team": "secret"}
    kept = facts.job(queued)
    assert "secret" not in str(kept.body)
    assert picture.detail(job_of(kept.body), [], [], [])["queue"] == "research"
    assert picture.detail(job_of(facts.job(body("job", status=running)).body), [], [], [])["queue"] == ""
