"""The answers to a browser, from a dashboard over a fake cluster."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path

import pytest

from elastrain_dashboard import server, stream
from elastrain_dashboard.access import EVERYTHING


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))


class Listener:
    """A browser's stream, message by message."""

    def __init__(self, response) -> None:
        self._content = response.content

    async def next(self, event: str):
        """Data of the next message of kind ``event``."""
        async with asyncio.timeout(10):
            while True:
                kind = (await self._content.readline()).decode().removeprefix("event: ").strip()
                assert kind, "the stream has ended"
                data = json.loads((await self._content.readline()).decode().removeprefix("data: "))
                await self._content.readline()
                if kind == event:
                    return data


@pytest.fixture
def filled(fake, body, running):
    fake.put("elastictrainingjobs", body("job", status=running))
    fake.put("pods", body("pod", "digits", 0))
    fake.put("pods", body("pod", "digits", 1, "node-b"))
    fake.put("nodes", body("node", "node-a"))
    fake.put("nodes", body("node", "node-b"))
    fake.put(
        "events",
        body(
            "event",
            "digits",
            "Rescaled",
            "from 2 to 1 ranks (Lost), pause 0.90 s (detect 21 ms), 0 steps lost",
            "2030-01-01T00:05:00Z",
            "Warning",
        ),
    )
    return fake


async def listed(stage) -> None:
    async with asyncio.timeout(10):
        while not (await (await stage.client.get("/api/jobs")).json())["health"]["listed"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/static/app.js",
        "/static/style.css",
        "/api/jobs",
        "/api/accelerators",
        "/api/jobs/a/b",
        "/healthz",
        "/nothing",
        "/static/../server.py",
        "/static/%2e%2e/server.py",
    ],
)
def test_every_answer_forbids_the_browser_to_run_its_content(fake, stage, path: str) -> None:
    async def scenario() -> None:
        async with stage(fake) as s:
            answer = await s.client.get(path)
            assert server.HEADERS.items() <= dict(answer.headers).items()
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            if "server.py" in path or path == "/nothing":
                assert answer.status == 404

    run(scenario)


@pytest.mark.parametrize("path", ["/", "/api/jobs", "/api/stream", "/static/app.js", "/api/jobs/research/digits"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_no_verb_writes(fake, stage, method: str, path: str) -> None:
    async def scenario() -> None:
        async with stage(fake) as s:
            assert (await s.client.request(method, path)).status == 405

    run(scenario)


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/static/icon.svg", "/api/jobs"])
def test_cached_content_is_not_sent_again(filled, stage, path: str) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            first = await s.client.get(path)
            again = await s.client.get(path, headers={"If-None-Match": f'"other", W/{first.headers["ETag"]}'})
            assert (first.status, again.status, await again.read()) == (200, 304, b"")
            assert server.HEADERS.items() <= dict(again.headers).items()

    run(scenario)


def test_large_answers_are_compressed_if_the_client_accepts_it(filled, stage) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            s.client.session._auto_decompress = False
            small = await s.client.get("/static/style.css", headers={"Accept-Encoding": "gzip, br"})
            plain = await s.client.get("/static/style.css", headers={"Accept-Encoding": "identity"})
            body = await plain.read()
            assert (small.headers["Content-Encoding"], plain.headers.get("Content-Encoding")) == ("gzip", None)
            assert gzip.decompress(await small.read()) == body

    run(scenario)


def test_jobs_are_available_as_data(filled, stage) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            (row,) = (await (await s.client.get("/api/jobs")).json())["jobs"]
            assert (row["key"], row["ready"], row["desired"]) == ("research/digits", 2, 3)
            job = await (await s.client.get("/api/jobs/research/digits")).json()
            assert [r["reason"] for r in job["rescales"]] == ["Grow", "Lost"], "of status and events, the newest first"
            assert job["figures"]["loss"] == [0.4321]
            assert [w["name"] for w in job["workers"]] == ["digits-0", "digits-1"]
            devices = await (await s.client.get("/api/accelerators")).json()
            assert [(r["resource"], r["held"], r["total"]) for r in devices["resources"]] == [("nvidia.com/gpu", 2, 8)]
            gone = await s.client.get("/api/jobs/research/other")
            assert (gone.status, await gone.json()) == (404, {"error": "no job research/other"})

    run(scenario)


def test_a_change_is_pushed_to_the_browser(filled, stage, body, running) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            overview = Listener(await s.client.get("/api/stream"))
            page = Listener(await s.client.get("/api/stream?job=research/digits"))
            assert (await overview.next("jobs"))["all"] is True
            assert "figures" in (await page.next("job"))["job"]
            filled.put("elastictrainingjobs", body("job", status={**running, "readyReplicas": 3}))
            assert [r["ready"] for r in (await overview.next("jobs"))["rows"]] == [3]
            assert (await page.next("job"))["job"]["ready"] == 3
            filled.put("pods", body("pod", "digits", 2, "node-b"))
            assert len((await page.next("job"))["job"]["workers"]) == 3
            devices = await overview.next("accelerators")
            assert devices["resources"]
            assert "now" not in devices, "of all events `now` is the server's time"
            filled.delete("elastictrainingjobs", "research/digits")
            await page.next("gone")
            while not (gone := (await overview.next("jobs"))["gone"]):
                pass
            assert gone == ["research/digits"]

    run(scenario)


def test_a_missing_job_is_reported_once_it_exists(fake, stage, body) -> None:
    async def scenario() -> None:
        async with stage(fake) as s:
            await listed(s)
            page = Listener(await s.client.get("/api/stream?job=research/digits"))
            assert (await page.next("health"))["listed"] is True
            fake.put("elastictrainingjobs", body("job"))
            assert (await page.next("job"))["job"]["name"] == "digits"

    run(scenario)


def test_pods_that_outlive_their_job_cause_no_update(filled, stage, body) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            page = Listener(await s.client.get("/api/stream?job=research/digits"))
            filled.delete("elastictrainingjobs", "research/digits")
            await page.next("gone")
            filled.delete("pods", "research/digits-1")
            filled.put("elastictrainingjobs", body("job", "digits"))
            job = (await page.next("job"))["job"]
            assert [w["name"] for w in job["workers"]] == ["digits-0"]

    run(scenario)


def test_all_browsers_share_one_watch(filled, stage) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            for _ in range(20):
                await Listener(await s.client.get("/api/stream")).next("health")
            assert (filled.lists, filled.watches) == (4, 4), "of jobs, pods, events and nodes"

    run(scenario)


def test_a_lost_api_server_is_reported_and_known_values_stay(filled, stage, away) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            overview = Listener(await s.client.get("/api/stream"))
            assert (await overview.next("health"))["stale"] is False
            filled.breaks(away)
            while not (health := await overview.next("health"))["stale"]:
                pass
            assert health["problems"][0]["since"]
            assert "no answer" in health["problems"][0]["text"]
            assert len((await (await s.client.get("/api/jobs")).json())["jobs"]) == 1
            assert (await s.client.get("/healthz")).status == 200, "a restart would not help"
            filled.breaks(None)
            while (await overview.next("health"))["stale"]:
                pass

    run(scenario)


def test_a_silent_stream_sends_heartbeats(fake, stage) -> None:
    async def scenario() -> None:
        async with stage(fake, heartbeat=0.05) as s:
            assert (await Listener(await s.client.get("/api/stream")).next("heartbeat"))["now"]

    run(scenario)


def test_excess_browsers_are_asked_to_retry(fake, stage, monkeypatch) -> None:
    monkeypatch.setattr(stream, "MOST_BROWSERS", 1)

    async def scenario() -> None:
        async with stage(fake) as s:
            first = await s.client.get("/api/stream")
            refused = await s.client.get("/api/stream")
            assert (first.status, refused.status) == (200, 503)
            assert refused.headers["Retry-After"]

    run(scenario)


def test_a_browser_that_does_not_read_is_disconnected_and_delays_no_other() -> None:
    async def scenario() -> None:
        hub = stream.Hub()
        with hub.listen("") as slow, hub.listen("") as quick:
            for n in range(stream.MOST_WAITING + 1):
                hub.send("", EVERYTHING, "jobs", {"n": n})
                assert b"data" in quick.get_nowait()
            assert slow.get_nowait() is None
        assert hub.topics == []

    run(scenario)


def test_another_job_of_the_same_name_starts_empty(filled, stage, body, running) -> None:
    async def scenario() -> None:
        async with stage(filled) as s:
            await listed(s)
            again = body("job", status={**running, "step": 1, "lastRescale": None})
            again["metadata"]["uid"] = "another"
            filled.put("elastictrainingjobs", again)
            page = Listener(await s.client.get("/api/stream?job=research/digits"))
            while (await page.next("job"))["job"]["step"] != 1:
                pass
            figures = (await (await s.client.get("/api/jobs/research/digits")).json())["figures"]
            assert figures["step"] == [1]

    run(scenario)


def test_a_job_of_another_version_is_shown_as_one(fake, stage, body) -> None:
    async def scenario() -> None:
        async with stage(fake) as s:
            fake.put("elastictrainingjobs", body("job", cleanPodPolicy="Sometimes", newField=1))
            await listed(s)
            page = Listener(await s.client.get("/api/stream?job=research/digits"))
            assert "another version" in (await page.next("job"))["job"]["why"]

    run(scenario)


# ---- the files -------------------------------------------------------------------------------------------------------
STATIC = Path(server.__file__).with_name("static")


def test_no_text_can_become_markup_and_nothing_comes_from_elsewhere() -> None:
    for file in STATIC.iterdir():
        source = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", source), (
            file
        )
        elsewhere = set(re.findall(r"https?://[^\s\"']+", source)) - {"http://www.w3.org/2000/svg"}
        assert not elsewhere, file
        assert not re.search(r"""["'`]/(static|api)/""", source), "an absolute path fails behind a path prefix"
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)", page), (
        "the policy forbids it inline"
    )


def test_every_referenced_file_exists() -> None:
    named = {
        name for f in STATIC.iterdir() for name in re.findall(r"(?:static|\.)/([\w.]+\.(?:js|css|svg))", f.read_text())
    }
    assert named == {f.name for f in STATIC.iterdir()} - {"index.html", "login.html"}


# ---- the key ---------------------------------------------------------------------------------------------------------
def test_with_a_key_only_its_address_grants_access(filled, stage) -> None:
    async def scenario() -> None:
        async with stage(filled, key="secret") as s:
            for path in ("/", "/api/jobs", "/api/stream", "/static/app.js", "/?key=wrong", "/?key="):
                assert (await s.client.get(path)).status == 403, path
            assert (await s.client.get("/healthz")).status == 200
            entered = await s.client.get("/?key=secret")
            assert (entered.status, str(entered.url)) == (200, s.url), "and the key is no longer in the address"
            (cookie,) = s.client.session.cookie_jar
            assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
            assert (await s.client.get("/api/jobs")).status == 200

    run(scenario)
