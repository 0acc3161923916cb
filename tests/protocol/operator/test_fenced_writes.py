"""Writes of an operator that no longer leads: they are not sent, or the API server refuses them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
import pytest
import yaml
from aiohttp import web

from elastrain_operator.kube.access import Access
from elastrain_operator.kube.client import ApiError, Kube, NotLeading

WRITES: dict[str, Callable[[Kube], Awaitable[object]]] = {
    "status": lambda kube: kube.patch_status("ns", "job", {"phase": "Running"}),
    "job": lambda kube: kube.delete_job("ns", "job", "uid"),
    "new pod": lambda kube: kube.create_pod("ns", {"metadata": {"name": "job-0"}}),
    "pod": lambda kube: kube.delete_pod("ns", "job-0", "uid"),
    "event": lambda kube: kube.create_event("ns", {}),
    "count of an event": lambda kube: kube.patch_event("ns", "event", {}),
}


class Tenure:
    """Has each of ``left`` seconds left in turn, and then has ended."""

    def __init__(self, *left: float) -> None:
        self.left = list(left)

    def seconds_left(self, what: str) -> float:
        if not self.left:
            raise NotLeading(what)
        return self.left.pop(0)


def connected(server: str, tenure: Tenure | None = None, **access: Any) -> Kube:
    return Kube(Access(kopf.ConnectionInfo(server=server, **access)), tenure)


def run(scenario: Callable[[Callable[..., Awaitable[Kube]], list[str]], Awaitable[None]]) -> None:
    """Run ``scenario(connect, requests)`` beside a server that records requests and answers no writes."""

    async def main() -> None:
        requests: list[str] = []

        async def answer(request: web.Request) -> web.Response:
            requests.append(request.method)
            if request.method != "GET":
                await asyncio.sleep(60)
            return web.json_response({"metadata": {"resourceVersion": "1"}})

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        kubes: list[Kube] = []

        async def connect(*left: float) -> Kube:
            kubes.append(connected(server, Tenure(*left)))
            return kubes[-1]

        try:
            async with asyncio.timeout(8):
                await scenario(connect, requests)
        finally:
            for kube in kubes:
                await kube.close()
            await runner.cleanup()

    asyncio.run(main())


def test_nothing_is_written_after_the_tenure_and_reads_continue():
    async def scenario(connect, requests):
        kube = await connect()
        for write in WRITES.values():
            with pytest.raises(NotLeading):
                await write(kube)
        assert requests == []
        assert await kube.get_job("ns", "job")

    run(scenario)


@pytest.mark.parametrize(("write_name", "write"), WRITES.items(), ids=WRITES.keys())
def test_no_write_outlasts_the_tenure_or_is_retried_after_it(write_name, write):
    async def scenario(connect, requests):
        kube = await connect(0.2)  # then it has ended; an attempt would take 10 s otherwise
        with pytest.raises(ApiError if "event" in write_name else NotLeading):  # one attempt only
            await write(kube)
        assert len(requests) == 1

    run(scenario)


@pytest.mark.apiserver
def test_a_status_based_on_an_old_version_is_refused(cluster, shared_operators):
    for operator in shared_operators:
        operator.stop()  # it would write the status, too

    async def scenario() -> None:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        server, token = config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]
        kube = connected(server, token=token, insecure=True)
        try:
            first = cluster.job("stale")["metadata"]["resourceVersion"]
            second = await kube.patch_status(cluster.namespace, "stale", {"phase": "Running"}, first)
            assert second == cluster.job("stale")["metadata"]["resourceVersion"] != first
            with pytest.raises(ApiError) as refused:
                await kube.patch_status(cluster.namespace, "stale", {"phase": "Pending"}, first)
            assert refused.value.code == 409
            assert cluster.status("stale")["phase"] == "Running"

            cluster.call("DELETE", cluster.job_path("stale"))
            cluster.create_job("stale", maxReplicas=1)
            with pytest.raises(ApiError) as refused:
                await kube.patch_status(cluster.namespace, "stale", {"phase": "Running"}, second)
            assert refused.value.code == 409
            assert "phase" not in cluster.status("stale"), "another job has the name now"
        finally:
            await kube.close()

    cluster.create_job("stale", maxReplicas=1)
    asyncio.run(scenario())
