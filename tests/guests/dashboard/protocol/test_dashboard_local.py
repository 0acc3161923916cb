"""``elastrain run --dashboard``: the page of a job on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrain.api.records import Progress
from elastrain_cli.local.status import LocalStatus
from elastrain_dashboard.local import LocalDashboard
from harness import browser
from local_jobs import JOB

ROOT = Path(__file__).parents[4]
STATUS = LocalStatus(
    job="digits", phase="Running", min=1, max=4, desired=1,
    progress=Progress(generation=1, world_size=1, members=1, step=41, total_steps=100),
)  # fmt: skip


def test_the_page_is_of_this_machine_asks_for_its_key_and_ends_with_the_job() -> None:
    with LocalDashboard(JOB, lambda: STATUS) as served, LocalDashboard(JOB, lambda: STATUS) as another:
        assert served.url.startswith("http://127.0.0.1:")
        assert another.url.partition("?")[0] != served.url.partition("?")[0], "a port in use is no error"
        page, _, rest = served.url.partition("?key=")
        key, _, place = rest.partition("#")
        assert place == f"/jobs/{JOB.namespace}/digits"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{page}api/jobs", timeout=10)
        reader = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        reader.open(f"{page}?key={key}", timeout=10).close()
        with reader.open(f"{page}api/stream?job={JOB.namespace}/digits", timeout=10) as stream:
            line = next(line for line in stream if b'"step":41' in line)
        assert json.loads(line.removeprefix(b"data: "))["job"]["phase"] == "Running"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(page, timeout=10)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """``elastrain run --dashboard`` of an example, and its environment."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200"}
    options = ("--dashboard", "--plain", "--state-dir", str(tmp_path / "state"))
    endless = ("--env", "EPOCHS=100000", "--env", "STEP_SECONDS=0.1")
    command = [
        sys.executable,
        "-m",
        "elastrain",
        "run",
        str(ROOT / "examples/04-five-lines/job.yaml"),
        *options,
        *endless,
    ]
    with (tmp_path / "out").open("w") as out, subprocess.Popen(command, env=environment, stdout=out) as run:
        yield run, environment
        run.kill()


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_page_follows_a_job_through_a_rescale_to_its_end(job, tmp_path) -> None:
    run, environment = job
    out = tmp_path / "out"

    async def address() -> str:
        async with asyncio.timeout(30):
            while not (found := re.search(r"^dashboard: (\S+)$", out.read_text(), re.M)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return found[1]

    def scale(workers: int) -> None:
        command = [sys.executable, "-m", "elastrain", "scale", "five-lines", str(workers)]
        subprocess.run(command, env=environment, check=True, timeout=60)

    async def scenario() -> None:
        async with browser.page() as page:
            await page.open(await address())
            await page.until("document.querySelector('.facts')?.innerText.includes('2 of 2')", within=90)
            await page.ask("window.stays = true")
            await asyncio.to_thread(scale, 3)
            await page.until("document.querySelector('#rescales tbody tr')?.innerText.includes('2 → 3')", within=60)
            await page.until("document.querySelectorAll('#workers tbody tr').length === 3")
            assert "Grow" in await page.text("#rescales tbody tr")
            assert not await page.ask("document.body.innerText.includes('NaN')")
            if folder := os.environ.get("ELASTRAIN_PICTURES"):
                await asyncio.sleep(10)
                await page.picture(Path(folder) / "local.png", whole=True)
                await page.look(browser.PHONE)
                await page.picture(Path(folder) / "local-phone.png", whole=True)
            run.send_signal(signal.SIGINT)
            await page.until("document.querySelector('.head').innerText.includes('Stopped')")
            await page.until("document.getElementById('banner').innerText.includes('No connection to the dashboard')")
            assert await page.ask("window.stays"), "the page was loaded again"

    browser.program()  # or skip
    asyncio.run(asyncio.wait_for(scenario(), 240))
    assert run.wait(30) == 130
