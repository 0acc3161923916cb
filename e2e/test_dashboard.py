"""The dashboard of the chart, read in a real browser while a real job is rescaled."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from harness import browser, release
from harness.commands import environment, kubectl
from harness.example import digits
from harness.jobs import RESCALE, Job

pytestmark = [pytest.mark.alone, pytest.mark.nightly]
Submit = Callable[[dict[str, Any]], Job]


@pytest.fixture
def dashboard(installed: None) -> Iterator[None]:
    """The release with a dashboard on the control plane, where the image is; afterwards as other tests want it."""
    place = release.values()["operator"]
    release.install(
        dashboard={"enabled": True, "nodeSelector": place["nodeSelector"], "tolerations": place["tolerations"]}
    )
    yield
    release.install(dashboard={"enabled": False})


@contextlib.asynccontextmanager
async def forwarded() -> AsyncIterator[str]:
    """Its Service at a free port of this machine, by ``kubectl port-forward``."""
    process = await asyncio.create_subprocess_exec(
        "kubectl", "port-forward", "-n", release.NAMESPACE, "svc/elastrain-dashboard", ":80",
        env=environment(), stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found, line
        yield f"http://127.0.0.1:{found[1]}/"
    finally:
        process.kill()
        await process.wait()


def test_a_rescale_and_its_phases_are_read_in_the_browser(dashboard: None, submit: Submit) -> None:
    job = submit(digits("shown", gpus=1, replicas=1))
    job.wait_size(1)

    async def scenario() -> None:
        async with forwarded() as address, browser.page() as page:
            await page.open(f"{address}#/jobs/{job.namespace}/{job.name}")
            await page.until("document.querySelector('.facts')?.innerText.includes('1 of 1')", 30)
            await page.ask("window.stays = true")

            job.scale(2)

            row = "document.querySelector('#rescales tbody tr')?.innerText"
            await page.until(f"{row}?.includes('1 → 2') && {row}.includes('first step')", RESCALE)
            await page.until("document.querySelectorAll('#workers tbody .phase.running').length === 2", 30)
            await page.until("document.querySelector('.facts').innerText.includes('Loss')", 30)
            assert await page.ask("window.stays"), "the page was loaded again"
            assert job.workers.keys() <= set((await page.text("#workers")).split())
            await page.ask("location.hash = '#/accelerators'")
            await page.until("document.querySelector('.lead')?.innerText.includes('2 of 4 nvidia.com/gpu')", 30)
            assert page.complaints == []

    asyncio.run(asyncio.wait_for(scenario(), 240))
    kubectl("delete", "-n", job.namespace, f"etj/{job.name}", "--wait=false")
