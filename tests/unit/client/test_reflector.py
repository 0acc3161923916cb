"""A list kept current by a watch, through failures of either."""

from __future__ import annotations

import asyncio

import pytest

from conditions import until
from dashboard_fixtures import FakeCluster
from elastrain_cli.client import ClusterError, NotAllowed
from elastrain_resource import reflector
from elastrain_resource.reflector import GONE, Reflector
from raw_objects import job_body

JOBS = "elastictrainingjobs"


@pytest.fixture
def fake() -> FakeCluster:
    return FakeCluster()


def scenario(fake: FakeCluster, steps) -> None:
    """Run ``steps(jobs, changes)`` beside a reflector that keeps ``maxReplicas`` of jobs, and ignores jobs with 0."""

    async def main() -> None:
        changes: list[tuple[str, int | None]] = []
        jobs = Reflector(
            fake, f"/apis/x/{JOBS}", "jobs", parse=lambda body: body["spec"]["maxReplicas"] or None,
            on_change=lambda key, _, after: changes.append((key, after)),
            on_problem=lambda: changes.append(("known" if jobs.listed and not jobs.problem else "problem", None)),
            retry_delays=(0.01,),
        )  # fmt: skip
        running = asyncio.create_task(jobs.run())
        try:
            await until(lambda: fake._queues or jobs.problem)
            await asyncio.wait_for(steps(jobs, changes), 20)
        finally:
            running.cancel()

    asyncio.run(main())


def test_each_change_is_reported_once(fake) -> None:
    fake.put(JOBS, job_body("old"))
    fake.put(JOBS, job_body("unimportant", maxReplicas=0))

    async def steps(jobs, changes) -> None:
        fake.put(JOBS, job_body("new", maxReplicas=2))
        fake.put(JOBS, job_body("new", maxReplicas=2))  # only its version differs
        fake.put(JOBS, job_body("new", maxReplicas=0))
        fake.delete(JOBS, "research/old")
        await until(lambda: not jobs.values)
        expected = [("old", 4), ("new", 2), ("new", None), ("old", None)]
        assert changes == [
            ("research/old", 4), ("known", None), *((f"research/{name}", value) for name, value in expected[1:])
        ]  # fmt: skip

    scenario(fake, steps)


def test_an_outage_is_reported_with_its_start_and_missed_changes_are_found(fake) -> None:
    fake.put(JOBS, job_body("one"))

    async def steps(jobs, changes) -> None:
        fake.breaks(ClusterError("cannot list jobs: no answer"))
        await until(lambda: jobs.problem)
        since, lists = jobs.problem.since, fake.lists
        await until(lambda: fake.lists > lists + 2)
        assert (jobs.problem.since, jobs.problem.denied) == (since, False)
        assert "no answer" in jobs.problem.text
        assert set(jobs.values) == {"research/one"}, "known values stay"
        fake.objects[JOBS] = {"research/two": job_body("two")}
        fake.breaks(None)
        await until(lambda: jobs.problem is None)
        assert set(jobs.values) == {"research/two"}
        assert [what for what, _ in changes if "/" not in what] == ["known", "problem", "known"]

    scenario(fake, steps)


def test_a_missing_permission_is_reported_until_the_objects_are_listed(fake) -> None:
    fake.breaks(NotAllowed("cannot list jobs: forbidden"))

    async def steps(jobs, changes) -> None:
        assert jobs.problem.denied
        fake.breaks(ClusterError("cannot list jobs: no answer"))
        await until(lambda: "no answer" in jobs.problem.text)
        assert jobs.problem.denied
        fake.breaks(None)
        await until(lambda: jobs.listed)
        assert jobs.problem is None

    scenario(fake, steps)


def test_only_refusals_of_a_minute_without_another_answer_prove_a_missing_permission(fake, monkeypatch) -> None:
    monkeypatch.setattr(reflector, "REFUSED_SECONDS", 0.05)
    fake.breaks(NotAllowed("cannot list jobs: forbidden"))

    async def steps(jobs, changes) -> None:
        assert jobs.problem.denied and not jobs.problem.lasting
        await until(lambda: jobs.problem.lasting)
        assert changes == [("problem", None)] * 2, "the proof is reported"
        fake.breaks(ClusterError("cannot list jobs: no answer"))
        await until(lambda: "no answer" in jobs.problem.text)
        assert not jobs.problem.lasting
        fake.breaks(NotAllowed("cannot list jobs: forbidden"))
        await until(lambda: "forbidden" in jobs.problem.text)
        assert not jobs.problem.lasting, "an attempt that failed otherwise ends the agreement"
        await until(lambda: jobs.problem.lasting)

    scenario(fake, steps)


def test_a_broken_watch_is_resumed_without_a_list(fake) -> None:
    async def steps(jobs, changes) -> None:
        for watches in (2, 3):
            fake._queues[0][1].put_nowait(ClusterError("connection reset"))
            await until(lambda watches=watches: fake.watches == watches and fake._queues)
            fake.put(JOBS, job_body("later", maxReplicas=watches))
            await until(lambda watches=watches: jobs.values == {"research/later": watches})
        assert (fake.lists, jobs.problem) == (1, None)

    scenario(fake, steps)


def test_a_silent_watch_is_replaced(fake, monkeypatch) -> None:
    monkeypatch.setattr(reflector, "SILENT_SECONDS", 0.01)

    async def steps(jobs, changes) -> None:
        await until(lambda: jobs.problem)
        assert "no answer for 0.01 s" in jobs.problem.text
        await until(lambda: fake.lists > 1)

    scenario(fake, steps)


@pytest.mark.parametrize("error", [ValueError("Chunk too big"), KeyError("metadata")])
def test_an_object_that_cannot_be_read_from_the_watch_is_read_by_a_list(fake, error: Exception) -> None:
    async def steps(jobs, changes) -> None:
        fake.objects[JOBS]["research/large"] = job_body("large")
        fake._queues[0][1].put_nowait(error)
        await until(lambda: "research/large" in jobs.values)
        assert fake.lists == 2

    scenario(fake, steps)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_change_comes_again_and_others_come_if_its_callback_raises(fake, deleted: bool) -> None:
    fake.put(JOBS, job_body("one"))

    async def steps(jobs, changes) -> None:
        raised: list[str] = []

        def on_change(key: str, _before: object, after: int | None) -> None:
            if key == "research/one" and len(raised) < 3:
                raised.append(key)
                raise KeyError(key)
            changes.append((key, after))

        jobs._on_change = on_change
        if deleted:
            fake.delete(JOBS, "research/one")
        else:
            fake.put(JOBS, job_body("one", maxReplicas=9))
        fake.put(JOBS, job_body("two", maxReplicas=2))
        await until(lambda: ("research/one", None if deleted else 9) in changes and jobs.problem is None)
        assert changes.index(("research/two", 2)) < changes.index(("research/one", None if deleted else 9))
        assert jobs.values == ({} if deleted else {"research/one": 9}) | {"research/two": 2}

    scenario(fake, steps)


@pytest.mark.parametrize("code", [GONE, 500])
def test_a_refused_watch_restarts_with_a_list(fake, code: int) -> None:
    async def steps(jobs, changes) -> None:
        fake.objects[JOBS]["research/missed"] = job_body("missed")
        fake._queues[0][1].put_nowait({"type": "ERROR", "object": {"code": code, "message": "too old"}})
        await until(lambda: "research/missed" in jobs.values)
        assert jobs.problem is None
        assert ("problem", None) in changes or code == GONE

    scenario(fake, steps)
