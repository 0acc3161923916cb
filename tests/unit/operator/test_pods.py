"""The store of worker pods: its content, and the changes that it reports."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.observe.pods import Pods

JOB = JobKeys("default", "job", "job-uid")
OTHER = JobKeys("default", "other", "other-uid")


@pytest.fixture
def worker(pod_body):
    """``worker(ordinal, ...)``: a worker pod in the API server's form."""

    def build(ordinal: int, job: JobKeys = JOB, **fields) -> dict:
        labels = {names.LABEL_ORDINAL: str(ordinal), names.LABEL_JOB: job.job, names.LABEL_JOB_UID: job.uid}
        return pod_body(ordinal, labels=labels, **fields)

    return build


@pytest.fixture
def reported() -> list[tuple[str, str, bool]]:
    """Job, pod, and whether it is gone, in the order of the reports."""
    return []


@pytest.fixture
def pods(reported) -> Pods:
    return Pods(lambda job, pod, gone: reported.append((job.uid, pod.name, gone)))


def test_pods_are_kept_by_their_job(pods, reported, worker):
    for body in (worker(0), worker(1), worker(2, job=OTHER)):
        pods.see(body)
    assert [p.name for p in pods.of(JOB.uid)] == ["job-0", "job-1"]
    assert [p.name for p in pods.of(OTHER.uid)] == ["job-2"]
    assert pods.uids() == {"uid-0", "uid-1", "uid-2"}
    assert len(reported) == 3


def test_pod_is_reported_only_if_its_parsed_form_has_changed(pods, reported, worker):
    running = worker(0, phase="Running", state={"running": {"startedAt": "2030-01-01T12:00:01Z"}})
    for body in (worker(0), worker(0, resourceVersion="12"), running, running):
        pods.see(body)
    assert reported == [(JOB.uid, "job-0", False)] * 2
    assert pods.of(JOB.uid)[0].started


def test_deleted_pod_is_forgotten_and_reported_once(pods, reported, worker):
    pods.see(worker(0))
    pods.see(worker(1))
    pods.forget("uid-1")
    pods.forget("uid-1")
    assert [p.name for p in pods.of(JOB.uid)] == ["job-0"]
    assert reported[2:] == [(JOB.uid, "job-1", True)]


def test_other_pods_are_kept_if_one_is_not_readable_or_names_no_job(pods, reported, worker):
    broken, without_job = worker(0), worker(1)
    broken["metadata"]["creationTimestamp"] = "yesterday"
    del without_job["metadata"]["labels"][names.LABEL_JOB_UID]
    for body in (broken, without_job, worker(2)):
        pods.see(body)
    assert [p.name for p in pods.of(JOB.uid)] == ["job-2"]
    assert len(reported) == 1


def test_pod_is_gone_for_its_job_if_its_labels_are_removed_or_name_another(pods, reported, worker):
    pods.see(worker(0))
    pods.see(worker(0, job=OTHER))
    assert (pods.of(JOB.uid), [p.name for p in pods.of(OTHER.uid)]) == ((), ["job-0"])
    assert reported[1:] == [(JOB.uid, "job-0", True), (OTHER.uid, "job-0", False)]
    bare = worker(0)
    bare["metadata"]["labels"] = {}
    pods.see(bare)
    assert pods.uids() == frozenset()
    assert reported[3:] == [(OTHER.uid, "job-0", True)]
