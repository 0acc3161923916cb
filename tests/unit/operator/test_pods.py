"""The watch of worker pods: what it knows, whom it tells, and what it does when the API server loses its thread."""

from __future__ import annotations

import asyncio

import pytest

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.kube.client import ApiError
from elastrain_operator.observe import pods as pods_module
from elastrain_operator.observe.pods import Pods
from scripted_watch import ScriptedWatch

pytestmark = pytest.mark.usefixtures("quick_reflector")

JOB = JobKeys("default", "job", "job-uid")


class Api(ScriptedWatch):
    """Lists ``pods``, then plays one of ``scripts`` for each watch."""

    def __init__(self, *scripts) -> None:
        super().__init__(scripts)
        self.pods: list[dict] = []
        self.lists = 0

    async def list_pages(self, path, what, query):
        assert (path, query["labelSelector"]) == ("/api/v1/pods", f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}")
        self.lists += 1
        half = len(self.pods) // 2
        yield self.pods[:half], "10"
        yield self.pods[half:], "10"


@pytest.fixture
def worker(pod_body):
    """``worker(ordinal, version, ...)``: a worker pod as the API server shows it at a resource version."""

    def build(ordinal: int, version: str = "1", job: JobKeys = JOB, **fields) -> dict:
        labels = {names.LABEL_ORDINAL: str(ordinal), names.LABEL_JOB: job.job, names.LABEL_JOB_UID: job.uid}
        return pod_body(ordinal, resourceVersion=version, labels=labels, **fields)

    return build


def follow(api: Api) -> tuple[Pods, list[tuple[str, str, bool]]]:
    """Runs a watch until it waits for events that never come. Returns what it knows and what it has told."""
    pods, told = Pods(), []

    async def main():
        watch = pods_module.watch(api, "", pods, lambda job, pod, gone: told.append((job.uid, pod.name, gone)))
        running = asyncio.create_task(watch.run())
        async with asyncio.timeout(10):
            await api.at_rest.wait()
        assert watch.listed.is_set()
        running.cancel()

    asyncio.run(main())
    return pods, told


def event(kind: str, body: dict) -> dict:
    return {"type": kind, "object": body}


def bookmark(version: str) -> dict:
    return {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}


def test_pods_of_all_pages_are_known_by_their_job(worker):
    other = JobKeys("default", "other", "other-uid")
    api = Api()
    api.pods = [worker(0), worker(1), worker(2, job=other)]
    pods, told = follow(api)
    assert [p.name for p in pods.of(JOB.uid)] == ["job-0", "job-1"]
    assert [p.name for p in pods.of(other.uid)] == ["job-2"]
    assert len(told) == 3
    assert api.watched_from == ["10"]


def test_only_a_pod_that_looks_different_is_told(worker):
    scheduled = worker(0, "11", conditions=[{"type": "PodScheduled", "status": "True"}])
    running = worker(0, "12", phase="Running", state={"running": {"startedAt": "2030-01-01T12:00:01Z"}})
    api = Api([event("MODIFIED", scheduled), event("MODIFIED", running), event("MODIFIED", running)])
    api.pods = [worker(0)]
    pods, told = follow(api)
    assert told == [(JOB.uid, "job-0", False)] * 2
    assert pods.of(JOB.uid)[0].started


def test_deleted_pod_is_forgotten_and_told(worker):
    api = Api([event("ADDED", worker(1, "11")), event("DELETED", worker(1, "12"))])
    api.pods = [worker(0)]
    pods, told = follow(api)
    assert [p.name for p in pods.of(JOB.uid)] == ["job-0"]
    assert told[-1] == (JOB.uid, "job-1", True)


def test_watch_goes_on_where_it_stopped_if_the_connection_breaks(worker):
    lost = ApiError("watch pods", 0, "Unreachable", "connection reset")
    api = Api([event("ADDED", worker(0, "11")), bookmark("20"), lost], [event("ADDED", worker(1, "21"))])
    pods, _ = follow(api)
    assert api.lists == 1
    assert api.watched_from == ["10", "20", "21"]
    assert len(pods.of(JOB.uid)) == 2


def test_pods_are_listed_anew_and_those_that_went_meanwhile_told_if_history_is_gone(worker):
    api = Api()
    api.scripts = [[ApiError("watch pods", 410, "Expired", "too old resource version")]]
    api.pods = [worker(0), worker(1)]
    whole = api.list_pages

    async def list_pages(*args):
        if api.lists:
            api.pods = [worker(1)]
        async for page in whole(*args):
            yield page

    api.list_pages = list_pages
    pods, told = follow(api)
    assert api.lists == 2
    assert [p.name for p in pods.of(JOB.uid)] == ["job-1"]
    assert told == [(JOB.uid, "job-0", False), (JOB.uid, "job-1", False), (JOB.uid, "job-0", True)]


def test_what_was_known_stays_while_the_api_server_is_silent(worker):
    lost = ApiError("watch pods", 0, "Unreachable", "refused")
    api = Api([lost], [lost], [lost])
    api.pods = [worker(0)]
    pods, told = follow(api)
    assert len(pods.of(JOB.uid)) == 1
    assert len(told) == 1


def test_pod_that_cannot_be_read_hides_no_other(worker):
    broken = worker(0)
    broken["metadata"]["creationTimestamp"] = "yesterday"
    nobodys = worker(1)
    del nobodys["metadata"]["labels"][names.LABEL_JOB_UID]
    api = Api()
    api.pods = [broken, nobodys, worker(2)]
    pods, told = follow(api)
    assert [p.name for p in pods.of(JOB.uid)] == ["job-2"]
    assert len(told) == 1


def test_pod_is_gone_for_its_job_if_its_labels_are_taken_away(worker):
    bare = worker(0, "11")
    bare["metadata"]["labels"] = {}
    api = Api([event("MODIFIED", bare)])
    api.pods = [worker(0)]
    pods, told = follow(api)
    assert pods.of(JOB.uid) == ()
    assert told[-1] == (JOB.uid, "job-0", True)
