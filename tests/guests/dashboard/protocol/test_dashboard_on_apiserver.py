"""The command `elastrain dashboard` on a real API server, read in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from harness import browser

pytestmark = pytest.mark.apiserver
COMMAND = [sys.executable, "-m", "elastrain_cli.main", "dashboard", "--port", "0"]


@contextlib.asynccontextmanager
async def dashboard(kubeconfig: Path | str, *options: str) -> AsyncIterator[str]:
    """Run the command; yields the address that it prints. It must exit with 0 at Ctrl-C."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *options, env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout
        async with asyncio.timeout(60):
            line = (await process.stdout.readline()).decode()
        found = re.match(r"http://127\.0\.0\.1:\d+/\S*", line)
        assert found, line
        yield found[0]
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(15):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def rescaled(start: int, end: int) -> dict[str, object]:
    return {
        "from": start, "to": end, "reason": "Grow", "pauseSeconds": 0.31, "lostSteps": 0,
        "time": datetime.now(UTC).isoformat(), "phases": {"connect": 0.02, "transfer": 0.05, "first_step": 0.26},
    }  # fmt: skip


def test_a_rescale_is_seen_in_the_browser_when_the_operator_writes_it(cluster, manifest) -> None:
    browser.program()  # or skip
    cluster.kubectl("create", "-f", "-", document=manifest())
    cluster.says("digits", phase="Running", readyReplicas=1, desiredReplicas=1, step=7, observedGeneration=1)

    async def scenario() -> None:
        async with dashboard(cluster.kubeconfig, "-n", cluster.namespace) as address, browser.page() as page:
            await page.open(address)
            await page.until("document.querySelector('table.jobs tbody')?.innerText.includes('1 of 1')")
            assert "key=" not in await page.ask("location.href")
            await page.ask("document.querySelector('table.jobs a').click()")
            await page.until("document.querySelector('.facts')?.innerText.includes('1 of 1')")
            cluster.says(
                "digits", readyReplicas=3, desiredReplicas=3, step=40, lastRescale=rescaled(1, 3),
                progress={"of": 100, "loss": 0.25},
            )  # fmt: skip
            await page.until("document.querySelector('#rescales tbody tr')?.innerText.includes('1 → 3')")
            for words in ("3 of 3", "40 / 100", "0.2500"):
                assert words in await page.text(".facts")
            cluster.kubectl("delete", "etj", "digits")
            await page.until("document.getElementById('banner').innerText.includes('This job was deleted')")
            assert page.complaints == []

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_the_charts_rights_are_enough_for_it(cluster, manifest, rendered, tmp_path: Path) -> None:
    cluster.kubectl("create", "-f", "-", document=manifest())
    (role,) = [m for m in rendered("dashboard.enabled=true", "watchNamespaces={x}") if m["kind"] == "Role" and m["metadata"]["name"].endswith(".dashboard")]  # fmt: skip  # noqa: E501
    cluster.kubectl("create", "-f", "-", document={**role, "metadata": {"name": "reads"}})
    cluster.kubectl("create", "serviceaccount", "reader")
    cluster.kubectl("create", "rolebinding", "reads", "--role=reads", f"--serviceaccount={cluster.namespace}:reader")
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", "reader").strip()}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))

    async def scenario() -> None:
        async with dashboard(kubeconfig, "--no-key", "-n", cluster.namespace) as address:

            def answer() -> dict[str, object]:
                with urllib.request.urlopen(f"{address}api/jobs", timeout=10) as response:
                    return dict(json.load(response))

            async with asyncio.timeout(20):
                while not (found := await asyncio.to_thread(answer))["jobs"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert found["health"]["problems"] == []

    asyncio.run(asyncio.wait_for(scenario(), 100))


def test_each_user_of_the_cluster_sees_what_its_rights_allow(cluster, manifest) -> None:
    """TokenReview and SubjectAccessReview on the real API server."""
    cluster.kubectl("create", "-f", "-", document=manifest())
    for user in ("sees", "sees-not"):
        cluster.kubectl("create", "serviceaccount", user)
    reads = "--resource=elastictrainingjobs.elastrain.dev,pods,events"
    cluster.kubectl("create", "role", "views", "--verb=list", reads)
    cluster.kubectl("create", "rolebinding", "views", "--role=views", f"--serviceaccount={cluster.namespace}:sees")
    tokens = {user: cluster.kubectl("create", "token", user).strip() for user in ("sees", "sees-not")}

    async def scenario() -> None:
        async with dashboard(cluster.kubeconfig, "--authenticate", "--all-namespaces") as address:

            def ask(token: str = "", host: str = "") -> tuple[int, list[str]]:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                request = urllib.request.Request(
                    f"{address}api/jobs", headers={**headers, **({"Host": host} if host else {})}
                )
                try:
                    with urllib.request.urlopen(request, timeout=10) as response:
                        return response.status, [row["namespace"] for row in json.load(response)["jobs"]]
                except urllib.error.HTTPError as error:
                    return error.code, []

            async with asyncio.timeout(30):
                while await asyncio.to_thread(ask, tokens["sees"]) != (200, [cluster.namespace]):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            assert await asyncio.to_thread(ask, tokens["sees-not"]) == (200, [])
            assert await asyncio.to_thread(ask, "forged." + tokens["sees"]) == (401, [])
            assert await asyncio.to_thread(ask) == (401, [])
            assert await asyncio.to_thread(ask, tokens["sees"], "evil.example") == (421, [])

    asyncio.run(asyncio.wait_for(scenario(), 100))


def said(*options: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, *options], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_a_taken_port_is_named_with_the_remedy(cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, words = said("--port", port, KUBECONFIG=cluster.kubeconfig)
    assert code == 2
    assert f"--port {port}: cannot listen there" in words
    assert "0 for any free port" in words


def test_without_a_cluster_it_ends_with_a_message(tmp_path: Path) -> None:
    code, words = said(KUBECONFIG=str(tmp_path / "nowhere"))
    assert code == 3
    assert "there is no kubeconfig" in words and "name it in $KUBECONFIG" in words
