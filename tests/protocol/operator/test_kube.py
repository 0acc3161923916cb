"""Requests to a small server on loopback: retries, credentials, pages and watches."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import kopf
import pytest
from aiohttp import web

from elastrain_operator.kube import access, repeats
from elastrain_operator.kube import client as kube
from elastrain_operator.kube.access import Access
from elastrain_operator.kube.client import ApiError, Kube, NotLeading

SELECTOR = {"labelSelector": "a=b"}
POD = {"metadata": {"name": "job-0"}}


def run(respond, scenario, log_in=None) -> list[web.Request]:
    """Run ``scenario(kube)`` against a server that answers with ``respond(request)``; returns the requests."""
    seen: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        seen.append(request)
        return await respond(request)

    async def main():
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        info = kopf.ConnectionInfo(server=f"http://127.0.0.1:{port}/", token="old")
        client = Kube(Access(info, log_in or (lambda: info)))
        try:
            await asyncio.wait_for(scenario(client), 20)
        finally:
            await client.close()
            await runner.cleanup()

    asyncio.run(main())
    return seen


async def fine(request: web.Request) -> web.Response:
    return web.json_response({"metadata": {"name": "job-0"}})


def refusal(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "reason": "Word", "message": message}, status=code)


def test_responses_contain_metadata_only():
    async def metadata(request):
        assert "as=PartialObjectMetadata" in request.headers["Accept"]
        return web.json_response({"kind": "PartialObjectMetadata", "metadata": {"uid": "u", "resourceVersion": "7"}})

    async def scenario(client):
        created = await client.create_pod("ns", {**POD, "spec": {"nodeName": "n"}})
        assert created == {"metadata": {"uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}}
        assert await client.patch_status("ns", "job", {"phase": "Running"}) == "7"

    run(metadata, scenario)


def test_body_query_and_credentials_arrive():
    async def scenario(client):
        created = await client.create_pod("ns", POD)
        assert created["metadata"]["name"] == "job-0"

    async def echo(request):
        assert await request.json() == POD
        return await fine(request)

    [request] = run(echo, scenario)
    assert (request.method, request.path) == ("POST", "/api/v1/namespaces/ns/pods")
    assert request.query["fieldValidation"] == "Strict"
    assert request.headers["Authorization"] == "Bearer old"
    assert request.headers["User-Agent"].startswith("elastrain-operator/"), (
        "the audit log identifies the operator by it"
    )
    assert request.content_type == "application/json"


def test_a_request_to_a_busy_api_server_is_retried(monkeypatch):
    monkeypatch.setattr(repeats, "FIRST_WAIT", 0.001)
    answers = [refusal(429, "slow down"), refusal(503, "busy"), None]

    async def respond(request):
        return answers.pop(0) or await fine(request)

    async def scenario(client):
        await client.create_pod("ns", POD)

    assert len(run(respond, scenario)) == 3


def test_attempts_are_bounded(monkeypatch):
    monkeypatch.setattr(repeats, "FIRST_WAIT", 0.001)

    async def busy(_):
        return refusal(503, "busy")

    async def scenario(client):
        with pytest.raises(ApiError, match="busy") as caught:
            await client.create_pod("ns", POD)
        assert caught.value.code == 503

    assert len(run(busy, scenario)) == 4


def test_a_refusal_is_not_retried_and_keeps_the_api_server_s_message():
    async def no(_):
        return refusal(422, "spec.containers: Required value")

    async def scenario(client):
        with pytest.raises(ApiError, match=r"create pod ns/job-0: spec\.containers: Required value") as caught:
            await client.create_pod("ns", POD)
        assert (caught.value.code, caught.value.reason) == (422, "Word")

    assert len(run(no, scenario)) == 1


@pytest.mark.parametrize("code", [404, 409])
def test_a_deletion_succeeds_if_the_object_is_gone_or_another_one_has_its_name(code):
    async def gone(_):
        return refusal(code, "there is another one, or none")

    async def scenario(client):
        await client.delete_pod("ns", "job-0", "uid-0")

    assert len(run(gone, scenario)) == 1


def test_credentials_are_renewed_once_for_all_callers_if_they_are_refused():
    logins: list[int] = []

    def log_in():
        logins.append(1)
        return kopf.ConnectionInfo(server="http://unused", token="new")

    async def respond(request):
        known = request.headers["Authorization"] == "Bearer new"
        return await fine(request) if known else refusal(401, "Unauthorized")

    async def scenario(client):
        await asyncio.gather(*(client.create_pod("ns", POD) for _ in range(5)))

    run(respond, scenario, log_in)
    assert len(logins) == 1


def test_calls_in_flight_are_bounded(monkeypatch):
    monkeypatch.setattr(kube, "IN_FLIGHT", 3)
    now = SimpleNamespace(running=0, most=0)

    async def slow(request):
        now.running += 1
        now.most = max(now.most, now.running)
        await asyncio.sleep(0.01)
        now.running -= 1
        return await fine(request)

    async def scenario(client):
        await asyncio.gather(*(client.create_pod("ns", POD) for _ in range(20)))

    assert len(run(slow, scenario)) == 20
    assert now.most == 3


def test_pods_come_page_by_page():
    async def respond(request):
        if "continue" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [POD]})
        assert request.query["continue"] == "more"
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": [POD, POD]})

    async def scenario(client):
        pages = [
            (len(items), version)
            async for items, version in client.list_pages(kube.pods_path(""), "list pods", SELECTOR)
        ]
        assert pages == [(1, "7"), (2, "7")]

    requests = run(respond, scenario)
    assert [r.path for r in requests] == ["/api/v1/pods"] * 2
    assert requests[0].query["labelSelector"] == "a=b"


def test_events_are_complete_for_any_chunks_of_the_stream():
    bodies = [{"n": n, "pad": "é" * 50} for n in range(9)]
    lines = b"".join(json.dumps({"type": "ADDED", "object": body}).encode() + b"\n" for body in bodies)

    async def respond(request):
        stream = web.StreamResponse()
        await stream.prepare(request)
        for i in range(0, len(lines), 37):
            await stream.write(lines[i : i + 37])
        return stream

    async def scenario(client):
        events = client.changes(kube.pods_path("ns"), "watch pods", {"watch": "true"})
        assert [e["object"] async for e in events] == bodies

    [request] = run(respond, scenario)
    assert request.query["watch"] == "true"


def test_refused_watch_has_the_code_of_the_refusal():
    async def respond(_):
        return refusal(403, "pods is forbidden")

    async def scenario(client):
        with pytest.raises(ApiError, match="pods is forbidden") as caught:
            async for _ in client.changes(kube.pods_path(""), "watch pods", SELECTOR):
                pass
        assert (caught.value.code, caught.value.denied) == (403, True)

    run(respond, scenario)


def test_unreachable_api_server_is_code_0(monkeypatch):
    monkeypatch.setattr(repeats, "FIRST_WAIT", 0.001)

    async def scenario(client):
        client._access.server = "http://127.0.0.1:9"
        with pytest.raises(ApiError, match="cannot read pod ns/job-0") as caught:
            await client.get_pod("ns", "job-0")
        assert caught.value.code == 0

    run(fine, scenario)


# ---- which credentials ---------------------------------------------------------------------------------------------
@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    """``kubeconfig(user, cluster)``: write a kubeconfig and select it."""
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: None)

    def write(user: dict, **cluster) -> None:
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
            "users": [{"name": "u", "user": user}],
        }
        path = tmp_path / "config"
        path.write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(path))

    return write


@pytest.fixture
def client_library(monkeypatch):
    """Replaces the official client, and counts its calls."""
    asked: list[int] = []

    def log_in(**_):
        asked.append(1)
        return kopf.ConnectionInfo(server="https://by-the-client", token="t")

    monkeypatch.setattr(kopf, "login_via_client", log_in)
    return asked


def test_plain_kubeconfig_is_read_without_the_client_library(kubeconfig, client_library):
    kubeconfig({"token": "secret"})
    assert access.login().token == "secret"
    assert not client_library


@pytest.mark.parametrize(
    ("user", "cluster"),
    [({"exec": {"command": "get-token"}}, {}), ({"token": "t"}, {"certificate-authority": "relative/ca.crt"})],
)
def test_client_library_is_used_if_a_kubeconfig_needs_it(kubeconfig, client_library, user, cluster):
    kubeconfig(user, **cluster)
    assert access.login().server == "https://by-the-client"
    assert client_library


def test_login_error_reports_missing_credentials(monkeypatch, tmp_path):
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: None)
    monkeypatch.setattr(kopf, "login_via_client", lambda **_: None)  # as if the package were not installed
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(kopf.LoginError, match="no service account"):
        access.login()


def test_a_call_waits_as_long_as_the_api_server_asks(monkeypatch):
    monkeypatch.setattr(repeats, "FIRST_WAIT", 0.001)
    seen: list[float] = []

    async def respond(request):
        seen.append(asyncio.get_running_loop().time())
        if len(seen) == 1:
            return web.Response(
                status=429, text="Too many requests, please try again later.", headers={"Retry-After": "1"}
            )
        return await fine(request)

    async def scenario(client):
        await client.create_pod("ns", POD)

    run(respond, scenario)
    assert seen[1] - seen[0] >= 0.9


def test_a_webhook_that_fails_is_not_called_again_at_once():
    words = 'failed calling webhook "a.example.com": timeout'

    async def fails(_):
        body = {"reason": "InternalError", "message": words, "details": {"causes": [{"message": words}]}}
        return web.json_response(body, status=500)

    async def scenario(client):
        with pytest.raises(ApiError, match=r"a\.example\.com"):
            await client.create_pod("ns", POD)

    assert len(run(fails, scenario)) == 1


def test_a_creation_outlasts_a_hanging_webhook_while_the_operator_renews_its_lease():
    class Renewed:
        """A lease that is renewed every 0.2 s, and holds for 0.3 s."""

        ended = False

        def seconds_left(self, what):
            if self.ended:
                raise NotLeading(what)
            return 0.3

    tenure = Renewed()

    async def slow(request):
        await asyncio.sleep(0.8)
        return await fine(request)

    async def scenario(client):
        client._tenure = tenure
        await client.create_pod("ns", POD)
        asyncio.get_running_loop().call_later(0.2, lambda: setattr(tenure, "ended", True))
        with pytest.raises(NotLeading):
            await client.create_pod("ns", POD)

    run(slow, scenario)
