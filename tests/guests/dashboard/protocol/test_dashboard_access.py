"""Who may read a dashboard, and what each user sees."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from elastrain_cli.client import ClusterError
from elastrain_dashboard import accelerators, access, server
from elastrain_dashboard.access import EVERYTHING, Guard, View


def run(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))


@dataclass
class Reviews:
    """The API server's answers: tokens, and what each user may list where (empty: everywhere)."""

    tokens: dict[str, str]
    rights: set[tuple[str, str, str]] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    down: bool = False

    def allow(self, user: str, namespace: str, *resources: str) -> None:
        self.rights |= {(user, r, namespace) for r in resources or ("elastictrainingjobs", "pods", "events")}

    async def call(self, method: str, path: str, what: str, *, body: Any = None) -> dict[str, Any]:
        if self.down:
            raise ClusterError("no answer")
        spec = body["spec"]
        self.asked.append(path.rpartition("/")[2])
        if path.endswith("tokenreviews"):
            name = self.tokens.get(spec["token"])
            user = {"username": name, "groups": ["team"], "extra": {"scopes": ["a"]}}
            return {"status": {"authenticated": bool(name), **({"user": user} if name else {})}}
        attributes = spec["resourceAttributes"]
        assert (spec["groups"], spec["extra"], attributes["verb"]) == (["team"], {"scopes": ["a"]}, "list")
        return {"status": {"allowed": (spec["user"], attributes["resource"], attributes["namespace"]) in self.rights}}


@pytest.fixture
def reviews() -> Reviews:
    made = Reviews({"token-of-a": "a", "token-of-admin": "admin", "token-of-none": "none"})
    made.allow("a", "research")
    made.allow("admin", "")
    made.allow("admin", "", "nodes")
    return made


@pytest.fixture
def two(fake, body, running):
    """A job in each of two namespaces."""
    for name, namespace in (("digits", "research"), ("secret-plan", "vision")):
        fake.put("elastictrainingjobs", body("job", name, namespace, status=running))
    return fake


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer token-of-{user}"}


async def jobs(s, **headers: str) -> list[str]:
    """Names of the jobs that are shown, once the dashboard has read the cluster."""
    while True:
        answer = await (await s.client.get("/api/jobs", headers=headers)).json()
        if answer["health"]["listed"]:
            return [row["name"] for row in answer["jobs"]]
        await asyncio.sleep(0.01)


# ---- users -----------------------------------------------------------------------------------------------------------
def test_each_user_sees_the_namespaces_that_its_rights_allow(two, stage, reviews) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            assert await jobs(s, **bearer("admin")) == ["digits", "secret-plan"]
            assert await jobs(s, **bearer("a")) == ["digits"]
            assert await jobs(s, **bearer("none")) == []
            assert (await s.client.get("/api/jobs/research/digits", headers=bearer("a"))).status == 200
            hidden = await s.client.get("/api/jobs/vision/secret-plan", headers=bearer("a"))
            absent = await s.client.get("/api/jobs/vision/nothing", headers=bearer("a"))
            assert (hidden.status, absent.status) == (404, 404), "it does not say which jobs there are"
            devices = await (await s.client.get("/api/accelerators", headers=bearer("a"))).text()
            assert "secret-plan" not in devices

    run(scenario)


@pytest.mark.parametrize("path", ["/api/jobs", "/api/jobs/research/digits", "/api/accelerators", "/api/stream"])
@pytest.mark.parametrize(
    "headers", [{}, bearer("nobody"), {"Authorization": "Basic eDp5"}, {"Cookie": "elastrain-session=x"}]
)
def test_nothing_is_read_without_a_user(two, stage, reviews, path: str, headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            assert (await s.client.get(path, headers=headers)).status == 401
            assert (await s.client.get("/healthz")).status == 200

    run(scenario)


def test_a_browser_logs_in_once_by_a_token(two, stage, reviews) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            sent = await s.client.get("/", allow_redirects=False)
            assert (sent.status, sent.headers["Location"]) == (303, "login")
            assert "password" in await (await s.client.get("/login")).text()
            refused = await s.client.post("/login", data={"token": "wrong"}, allow_redirects=False)
            assert refused.headers["Location"] == "login#refused"
            done = await s.client.post("/login", data={"token": "token-of-a"}, allow_redirects=False)
            cookie = done.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "token-of-a" not in cookie
            assert await jobs(s) == ["digits"]
            assert (await s.client.post("/logout", allow_redirects=False)).status == 303
            assert (await s.client.get("/api/jobs")).status == 401

    run(scenario)


def test_a_form_of_another_site_logs_nobody_in(two, stage, reviews) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            foreign = {"Origin": "https://evil.example"}
            assert (await s.client.post("/login", data={"token": "token-of-a"}, headers=foreign)).status == 403

    run(scenario)


def test_a_stream_shows_only_what_its_user_sees(two, stage, reviews, body, running) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            await jobs(s, **bearer("admin"))
            assert (await s.client.get("/api/stream?job=vision/secret-plan", headers=bearer("a"))).status == 403
            response = await s.client.get("/api/stream", headers=bearer("a"))
            two.put("elastictrainingjobs", body("job", "secret-plan", "vision", status={**running, "step": 99}))
            two.put("elastictrainingjobs", body("job", "digits", "research", status={**running, "step": 77}))
            seen = ""
            while '"step":77' not in seen:
                seen += (await response.content.readline()).decode()
            assert "secret-plan" not in seen

    run(scenario)


def test_a_stream_ends_when_its_user_loses_a_right(two, stage, reviews, monkeypatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(access, "REVIEW_SECONDS", 0.0)
        monkeypatch.setattr(server, "REVIEW_SECONDS", 0.0)
        async with stage(two, reviews=reviews, heartbeat=0.02) as s:
            await jobs(s, **bearer("a"))
            response = await s.client.get("/api/stream", headers=bearer("a"))
            await response.content.readline()
            reviews.rights.clear()
            await response.content.read()  # to its end
            assert await jobs(s, **bearer("a")) == []

    run(scenario)


def test_an_outage_of_the_api_server_shows_nothing_to_a_new_user(two, stage, reviews) -> None:
    async def scenario() -> None:
        async with stage(two, reviews=reviews) as s:
            assert await jobs(s, **bearer("a")) == ["digits"]
            reviews.down = True
            assert (await s.client.get("/api/jobs", headers=bearer("admin"))).status == 503
            assert await jobs(s, **bearer("a")) == ["digits"], "the last answers count for a while"

    run(scenario)


# ---- answers of the API server ---------------------------------------------------------------------------------------
def test_answers_count_for_a_minute(reviews) -> None:
    async def scenario() -> None:
        now = [0.0]
        guard = Guard(reviews, lambda: {"research", "vision"}, lambda: now[0])
        user = await guard.user("token-of-a")
        assert await guard.view(user) == View(frozenset({"research"}), nodes=False)
        asked = len(reviews.asked)
        assert await guard.view(await guard.user("token-of-a")) == View(frozenset({"research"}), nodes=False)
        assert len(reviews.asked) == asked
        reviews.tokens.clear()
        now[0] = access.REVIEW_SECONDS + 1
        assert await guard.user("token-of-a") is None

    run(scenario)


def test_sessions_are_bounded(reviews) -> None:
    async def scenario() -> None:
        guard = Guard(reviews, set, lambda: 0.0)
        first = await guard.log_in("token-of-a")
        for _ in range(access.MOST_SESSIONS):
            last = await guard.log_in("token-of-a")
        assert guard.token_of(first) == ""
        assert guard.token_of(last) == "token-of-a"

    run(scenario)


@pytest.mark.parametrize("missing", ["elastictrainingjobs", "pods", "events"])
def test_a_namespace_is_shown_only_to_users_that_may_list_all_that_its_page_shows(reviews, missing: str) -> None:
    async def scenario() -> None:
        reviews.rights.discard(("a", missing, "research"))
        guard = Guard(reviews, lambda: {"research"}, lambda: 0.0)
        assert (await guard.view(await guard.user("token-of-a"))).namespaces == frozenset()

    run(scenario)


def test_accelerators_of_other_namespaces_are_summed_up() -> None:
    resource = {
        "resource": "nvidia.com/gpu", "total": 8, "held": 6, "nodesLeftOut": 0,
        "jobs": [{"key": "vision/b", "count": 4}, {"key": "research/a", "count": 2}],
        "nodes": [{"name": "n", "jobs": [{"key": "vision/b", "count": 4}]}],
    }  # fmt: skip
    parts = {"vision/b": [4, 4], "vision/c": [1, 0], "research/a": [2, 2]}
    series = {"byJob": {"time": [0, 5], "total": [8, 8], "parts": parts}, "byNode": {"time": [0], "parts": {"n": [6]}}}
    shown = {"resources": [resource], "history": {"nvidia.com/gpu": series}, "nodesKnown": True}
    assert accelerators.seen(shown, EVERYTHING) == shown
    found = accelerators.seen(shown, View(frozenset({"research"}), nodes=False))
    assert found["resources"][0]["jobs"] == [{"key": "research/a", "count": 2}]
    assert (found["resources"][0]["nodes"], found["nodesKnown"]) == ([], False)
    assert found["history"]["nvidia.com/gpu"]["byJob"]["parts"] == {"research/a": [2, 2], "others": [5, 4]}
    assert "vision" not in json.dumps(found)
    with_nodes = accelerators.seen(shown, View(frozenset({"research"}), nodes=True))
    assert with_nodes["resources"][0]["nodes"] == [{"name": "n", "jobs": []}]


# ---- hosts -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200), ("localhost:8090", 200), ("[::1]:8090", 200), ("10.0.0.7", 200),
        ("dash.example", 200), ("DASH.example:80", 200),
        ("evil.example", 421), ("dash.example.evil.example", 421), ("localhost.evil.example:8090", 421), ("", 421),
    ],
)  # fmt: skip
def test_it_answers_only_for_its_own_names(two, stage, host: str, status: int) -> None:
    """Otherwise a foreign page reads it through a name of its own that it points at this address."""

    async def scenario() -> None:
        async with stage(two, hosts=("dash.example",)) as s:
            answer = await s.client.get("/api/jobs", headers={"Host": host})
            assert answer.status == status
            if status == 421:
                assert "--host" in await answer.text()

    run(scenario)
