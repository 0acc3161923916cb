"""The store of worker pods: its content, and the changes that it reports."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.allocation.snapshot import Held
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest
from elastrain_operator.watch.pods import WorkerPods

JOB = JobKeys("default", "job", "job-uid")
OTHER = JobKeys("default", "other", "other-uid")


@pytest.fixture
def worker(pod_body):
    """``worker(ordinal, ...)``: a worker pod in the API server's form."""

    def build(ordinal: int, job: JobKeys = JOB, **fields) -> dict:
        reference = manifest.owner(JobRef(job.namespace, job.job, job.uid))
        fields = {"name": f"{job.job}-{ordinal}", "namespace": job.namespace, "ownerReferences": [reference], **fields}
        return pod_body(ordinal, **fields)

    return build


@pytest.fixture
def reported() -> list[tuple[str, str, bool]]:
    """Job, pod, and whether it is gone, in the order of the reports."""
    return []


@pytest.fixture
def strays() -> dict[str, Held | None]:
    """What pods hold that are no workers."""
    return {}


class Watched(WorkerPods):
    """The store, as its watch feeds it."""

    def show(self, body: dict, kind: str = "MODIFIED") -> None:
        body = {**body, "metadata": {"resourceVersion": "1", **body["metadata"]}}
        self._watches[""]._take("watch worker pods", kind, body)

    def delete(self, body: dict) -> None:
        self.show({**body, "metadata": {**body["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}}, "DELETED")


@pytest.fixture
def pods(reported, strays) -> Watched:
    return Watched(None, (), lambda job, pod, gone: reported.append((job.uid, pod.name, gone)), strays.__setitem__)


def test_pods_are_kept_by_their_job(pods, reported, worker):
    for body in (worker(0), worker(1), worker(2, job=OTHER)):
        pods.show(body)
    assert [p.name for p in pods.of(JOB)] == ["job-0", "job-1"]
    assert [p.name for p in pods.of(OTHER)] == ["other-2"]
    assert len(reported) == 3


def test_pod_is_reported_only_if_its_parsed_form_has_changed(pods, reported, worker):
    running = worker(0, phase="Running", state={"running": {"startedAt": "2030-01-01T12:00:01Z"}})
    for body in (worker(0), worker(0, resourceVersion="12"), running, running):
        pods.show(body)
    assert reported == [(JOB.uid, "job-0", False)] * 2
    assert pods.of(JOB)[0].started


def test_deleted_pod_is_forgotten_and_reported_once(pods, reported, worker):
    pods.show(worker(0))
    pods.show(worker(1))
    pods.delete(worker(1))
    assert [p.name for p in pods.of(JOB)] == ["job-0"]
    assert [r for r in reported if r[2]] == [(JOB.uid, "job-1", True)]


def test_last_version_of_a_deleted_pod_tells_how_it_ended(pods, worker, terminated):
    told = []
    pods._on_pod = lambda job, pod, gone: told.append((gone, pod))
    pods.show(worker(0))
    pods.delete(worker(0, phase="Failed", state=terminated(3)))
    assert (told[-1][0], told[-1][1].ending.exit_code) == (True, 3)


def test_pod_that_was_deleted_before_it_was_seen_is_reported_as_gone(pods, reported, worker):
    pods.delete(worker(0))
    assert reported[-1] == (JOB.uid, "job-0", True)
    assert not pods.of(JOB)


# ---- whose pod it is -------------------------------------------------------------------------------------------------
def forged(worker, **fields) -> dict:
    """A pod with all of a worker's labels."""
    body = worker(0, uid="forged", **fields)
    body["metadata"]["labels"] = {
        names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB: JOB.job, names.LABEL_JOB_UID: JOB.uid,
        names.LABEL_ORDINAL: "0",
    }  # fmt: skip
    return body


def reference(**fields) -> dict:
    return {**manifest.owner(JobRef(JOB.namespace, JOB.job, JOB.uid)), **fields}


def by_set(**fields) -> dict:
    return reference(**{"kind": names.SET_KIND, "name": names.worker_set(JOB.job, JOB.uid), "uid": "of-set", **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": "elsewhere", "ownerReferences": []},
        {"ownerReferences": []},
        {"ownerReferences": [reference(controller=False)]},
        {"ownerReferences": [reference(controller=None)]},
        {"ownerReferences": [reference(kind="Job", apiVersion="batch/v1")]},
        {"ownerReferences": [reference(apiVersion="elastrain.dev.example.com/v1alpha1")]},
        {"ownerReferences": [reference(uid="another")]},
        {"ownerReferences": [by_set()]},
        {"ownerReferences": [reference(controller=False), by_set(name="job-another")]},
        {"ownerReferences": [reference(controller=False), by_set(apiVersion="example.com/v1")]},
        {"ownerReferences": [reference(controller=False), reference(controller=False, uid="b"), by_set()]},
        {"ownerReferences": [reference(name="another")]},
        {"namespace": "elsewhere"},
        {"name": "copy-of-job-0"},
        {"name": "job-2147483648"},
        {"name": "job-00"},
        {"name": "job--1"},
        {"name": "job-٣"},
    ],
    ids=str,
)
def test_labels_make_no_pod_a_worker(pods, worker, fields):
    pods.show(forged(worker, **fields))
    assert pods.of(JOB) == ()


@pytest.mark.parametrize("owners", [[reference()], [reference(controller=False), by_set()]], ids=["job", "set"])
def test_pod_that_a_job_or_its_set_controls_is_its_worker_without_any_label(pods, worker, owners):
    pods.show(worker(0, labels={}, ownerReferences=owners))
    assert [p.ordinal for p in pods.of(JOB)] == [0]


def test_pod_whose_set_a_user_has_deleted_stays_a_worker(pods, worker):
    """The garbage collector has removed the reference to the set, and left that to the job."""
    pods.show(worker(0, ownerReferences=[reference(controller=False)], annotations={names.CONTAINERS_NOTE: "trainer"}))
    assert [p.ordinal for p in pods.of(JOB)] == [0]


@pytest.mark.parametrize(("name", "uid"), [("job/../../x", "u"), ("job", "a/b"), ("", "u"), ("job", ""), ("Job", "u")])
def test_reference_that_is_no_name_or_uid_names_no_job(pods, worker, reported, name, uid):
    """They become keys in etcd and paths of requests."""
    pods.show(worker(0, name=f"{name}-0", ownerReferences=[reference(name=name, uid=uid)]))
    assert not reported


def test_stray_counts_as_holder_of_its_node_until_it_ends_or_is_gone(pods, strays, worker):
    stray = forged(worker, ownerReferences=[])
    pods.show(stray)
    assert strays == {"forged": None}
    stray["spec"]["nodeName"] = "n"
    pods.show(stray)
    assert strays["forged"].node == "n"
    pods.show({**stray, "status": {"phase": "Failed"}})
    assert strays["forged"] is None
    stray["status"] = {"phase": "Running"}
    pods.show(stray)
    assert strays["forged"].node == "n"
    pods.delete(stray)
    assert strays["forged"] is None


def test_pod_is_gone_for_its_job_if_another_controls_it(pods, reported, worker, strays):
    pods.show(worker(0))
    pods.show(worker(0, ownerReferences=[reference(name=OTHER.job, uid=OTHER.uid)], name="other-0"))
    assert (pods.of(JOB), [p.name for p in pods.of(OTHER)]) == ((), ["other-0"])
    assert reported[1:] == [(JOB.uid, "job-0", True), (OTHER.uid, "other-0", False)]
    pods.show(worker(0, ownerReferences=[]))
    assert reported[3:] == [(OTHER.uid, "other-0", True)]
    assert strays == {"uid-0": None}


@pytest.mark.parametrize(("subresource", "resized"), [("resize", True), ("status", False)])
def test_a_pod_that_was_resized_in_place_is_known_as_such(pods, worker, subresource, resized):
    body = worker(0)
    body["metadata"]["managedFields"] = [{"manager": "vpa", "subresource": subresource}]
    pods.show(body)
    assert [p.resized for p in pods.of(JOB)] == [resized]


@pytest.mark.parametrize(("prepared", "passes"), [("True", True), ("False", False)])
def test_a_worker_whose_sandbox_is_there_pulls_its_image(pods, worker, prepared, passes):
    body = worker(0)
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    conditions = [{"type": "PodReadyToStartContainers", "status": prepared}]
    pods.show({**body, "status": {"phase": "Pending", "conditions": conditions, "containerStatuses": [waiting]}})
    assert [(p.trouble.reason, p.trouble.passes) for p in pods.of(JOB)] == [("ContainerNotCreated", passes)]
