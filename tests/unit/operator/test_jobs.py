"""The watch of jobs: whom it tells what."""

from __future__ import annotations

import asyncio

import pytest

from elastrain.api import names
from elastrain_operator.kube.client import ApiError
from elastrain_operator.observe import jobs
from scripted_watch import ScriptedWatch

pytestmark = pytest.mark.usefixtures("quick_reflector")

LIST = f"/apis/{names.API_VERSION}/namespaces/ns/{names.PLURAL}"


def job(uid: str, version: str = "1", **spec) -> dict:
    """A job as the API server shows it at a resource version."""
    meta = {"namespace": "ns", "name": "job", "uid": uid, "resourceVersion": version, "managedFields": [{"a": "b"}]}
    return {"metadata": meta, "spec": spec}


class Api(ScriptedWatch):
    """Answers with one of ``lists`` after the other, and plays one of ``scripts`` for each watch."""

    def __init__(self, lists, scripts) -> None:
        super().__init__(scripts)
        self.lists = list(lists)

    async def list_pages(self, path, what, query):
        assert path == LIST
        yield self.lists.pop(0), "10"


def follow(lists, *scripts) -> list[tuple[dict, bool]]:
    """What a watch of these lists and events has told."""
    told = []

    async def main():
        api = Api(lists, scripts)
        running = asyncio.create_task(jobs.watch(api, "ns", lambda *call: told.append(call)).run())
        async with asyncio.timeout(10):
            await api.at_rest.wait()
        running.cancel()

    asyncio.run(main())
    return told


def short(told) -> list[tuple[str, str, bool]]:
    return [(body["metadata"]["uid"], body["metadata"]["resourceVersion"], gone) for body, gone in told]


def test_listed_new_changed_and_deleted_jobs_are_told_in_order():
    events = [("ADDED", job("b", "11")), ("MODIFIED", job("a", "12", replicas=2)), ("DELETED", job("a", "13"))]
    told = follow([[job("a")]], [{"type": kind, "object": body} for kind, body in events])
    assert short(told) == [("a", "1", False), ("b", "11", False), ("a", "12", False), ("a", "12", True)]
    assert told[2][0]["spec"] == {"replicas": 2}


def test_new_job_of_a_name_is_another_one_than_that_which_had_it_before():
    events = [("DELETED", job("old", "11")), ("ADDED", job("new", "12"))]
    told = follow([[job("old")]], [{"type": kind, "object": body} for kind, body in events])
    assert short(told) == [("old", "1", False), ("old", "1", True), ("new", "12", False)]


def test_jobs_that_went_while_nobody_watched_are_told_if_history_is_gone():
    gone = ApiError("watch jobs", 410, "Expired", "too old resource version")
    told = follow([[job("a"), job("b")], [job("b", "20")]], [gone])
    assert sorted(short(told)[2:]) == [("a", "1", True), ("b", "20", False)]


def test_job_is_kept_without_the_record_of_who_wrote_which_field():
    [(body, _)] = follow([[job("a")]])
    assert "managedFields" not in body["metadata"]
    assert body["metadata"]["name"] == "job"
