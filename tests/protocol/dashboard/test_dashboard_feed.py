"""A list kept current by a watch, through failures of either."""

from __future__ import annotations

import asyncio

import pytest

from conditions import until
from elastrain.client import ClusterError, NotAllowed
from elastrain.dashboard import facts
from elastrain.dashboard.feed import Feed, Resource


def scenario(fake, steps) -> Feed:
    """Run ``steps(feed, changes)`` beside a feed of jobs."""

    async def main() -> Feed:
        changes: list[tuple[str, bool]] = []
        resource = Resource("/apis/x/elastictrainingjobs", "jobs")
        feed = Feed(
            fake, resource, parse=facts.job, on_change=lambda key, _, after: changes.append((key, after is not None)),
            retry_delays=(0.01,),
        )  # fmt: skip
        running = asyncio.create_task(feed.run())
        try:
            await until(lambda: feed.listed or feed.problem)
            await steps(feed, changes)
        finally:
            running.cancel()
        return feed

    return asyncio.run(main())


def test_each_change_is_reported_once(fake, body) -> None:
    fake.put("elastictrainingjobs", body("job", "old"))

    async def steps(feed, changes) -> None:
        await until(lambda: fake.watches)
        await until(lambda: fake._queues)
        fake.put("elastictrainingjobs", body("job", "new"))
        fake.put("elastictrainingjobs", body("job", "new"))  # only its version differs
        fake.delete("elastictrainingjobs", "research/old")
        await until(lambda: "research/old" not in feed.values)
        assert changes == [("research/old", True), ("research/new", True), ("research/old", False)]

    scenario(fake, steps)


def test_an_outage_is_reported_with_its_start_and_missed_changes_are_found(fake, body, away: ClusterError) -> None:
    fake.put("elastictrainingjobs", body("job", "one"))

    async def steps(feed, changes) -> None:
        await until(lambda: fake._queues)
        fake.breaks(away)
        await until(lambda: feed.problem)
        since = feed.problem.since
        lists = fake.lists
        await until(lambda: fake.lists > lists + 2)
        assert feed.problem.since == since
        assert "no answer" in feed.problem.text
        assert set(feed.values) == {"research/one"}, "known values stay"
        fake.objects["elastictrainingjobs"] = {"research/two": body("job", "two")}
        fake.breaks(None)
        await until(lambda: feed.problem is None)
        assert set(feed.values) == {"research/two"}

    scenario(fake, steps)


def test_a_missing_permission_is_reported_as_such(fake) -> None:
    fake.breaks(NotAllowed("cannot list jobs: forbidden"))

    async def steps(feed, changes) -> None:
        assert feed.problem.denied

    scenario(fake, steps)


@pytest.mark.parametrize("error", [ValueError("Chunk too big"), KeyError("metadata")])
def test_an_object_that_cannot_be_read_from_the_watch_is_read_by_a_list(fake, body, error: Exception) -> None:
    async def steps(feed, changes) -> None:
        await until(lambda: fake._queues)
        fake.objects["elastictrainingjobs"]["research/large"] = body("job", "large")
        lists = fake.lists
        fake._queues[0][1].put_nowait(error)
        await until(lambda: "research/large" in feed.values)
        assert fake.lists > lists

    scenario(fake, steps)


def test_an_expired_watch_restarts_with_a_list(fake, body) -> None:
    async def steps(feed, changes) -> None:
        await until(lambda: fake._queues)
        fake.objects["elastictrainingjobs"]["research/missed"] = body("job", "missed")
        fake._queues[0][1].put_nowait({"type": "ERROR", "object": {"code": 410}})
        await until(lambda: "research/missed" in feed.values)
        assert feed.problem is None

    scenario(fake, steps)
