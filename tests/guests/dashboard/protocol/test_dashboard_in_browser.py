"""The page in a real Chromium, with the data of a fake cluster."""

# ruff: noqa: E501 - objects and JavaScript on one line, as a person would type them
from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import scene
from harness import browser

pytestmark = pytest.mark.nightly
PICTURES = os.environ.get("ELASTRAIN_PICTURES")
LABELS_ARE_WHOLE = """(() => {
  const labels = [...document.querySelectorAll("svg.chart text")];
  return labels.length > 0 && labels.every((label) => {
    const picture = label.ownerSVGElement.getBoundingClientRect(), box = label.getBoundingClientRect();
    return box.left >= picture.left && box.right <= picture.right;
  });
})()"""
"""No figure's label is cut."""
"""A folder for screenshots, to be looked at. Absent: none are taken."""


def run(scenario: Callable[[browser.Page], Awaitable[None]]) -> None:
    async def main() -> None:
        async with browser.page() as page:
            await scenario(page)

    browser.program()  # or skip
    asyncio.run(asyncio.wait_for(main(), 100))


async def picture(page: browser.Page, name: str) -> None:
    if PICTURES:
        await asyncio.sleep(5.2)  # for the pictures: charts are drawn with the next frame, ages every 5 s
        await page.picture(Path(PICTURES) / f"{name}.png", whole=True)


@pytest.fixture
def filled(fake):
    """Five jobs in all states, on four nodes."""
    scene.fill(fake, datetime.now(UTC))
    return fake


JOB = "research/llama"


def changed(fake, **status):
    """The job again, with another status."""
    body = fake.objects["elastictrainingjobs"][JOB]
    fake.put("elastictrainingjobs", {**body, "status": {**body["status"], **status}})


async def fits(page: browser.Page) -> None:
    wide = await page.ask("[...document.querySelectorAll('main *, header *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('pre, .unseen, thead')).map(e => e.outerHTML.slice(0, 120))")  # fmt: skip
    assert await page.ask("document.documentElement.scrollWidth <= innerWidth"), wide
    assert wide == []


def test_the_list_shows_what_changes_without_a_reload_and_fits_a_phone(filled, body, running, stage) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(filled) as s:
            await page.open(s.url)
            await page.until("document.querySelectorAll('table.jobs tbody tr').length === 5")
            await page.ask("window.stays = true")
            row = "[...document.querySelectorAll('table.jobs tbody tr')].find(r => r.innerText.includes('llama')).innerText"
            shown = await page.ask(row)
            for words in (
                "Running",
                "3 of 4",
                "41,800 / 100,000",
                "2.135",
                "96.9 %",
                "not grown: 0 nvidia.com/gpu idle",
            ):
                assert words in shown.replace("\n", " "), words
            await page.until("document.querySelector('.tiles').innerText.includes('15 of 32')")
            await picture(page, "jobs")
            changed(filled, readyReplicas=4, phase="Rescaling")
            await page.until(f"{row}.includes('4 of 4') && {row}.includes('Rescaling')")
            assert await page.ask("window.stays"), "the page was loaded again"
            assert "llama is Rescaling" in await page.ask("document.getElementById('announce').textContent")
            await page.look(browser.PHONE)
            await fits(page)
            await picture(page, "jobs-phone")
            await page.look(browser.PHONE, dark=True)
            await picture(page, "jobs-phone-dark")
            filled.put("elastictrainingjobs", body("job", "x" * 63, "n" * 63, status={**running, "step": 10**12}))
            await page.until("document.querySelectorAll('table.jobs tbody tr').length === 6")
            await fits(page)
            filled.delete("elastictrainingjobs", f"{'n' * 63}/{'x' * 63}")
            await page.until("document.querySelectorAll('table.jobs tbody tr').length === 5")
            await page.look(dark=True)
            await picture(page, "jobs-dark")
            assert page.complaints == []

    run(scenario)


def test_a_job_shows_its_rescales_and_users_text_is_never_markup(filled, stage) -> None:
    async def scenario(page: browser.Page) -> None:
        begin = datetime.now(UTC) - timedelta(minutes=30)
        async with stage(filled, started=begin) as s:
            s.clock.append(begin)
            changed(filled, step=41800, progress={"of": 100000, "loss": 2.6})
            await page.open(f"{s.url}#/jobs/{JOB}")
            await page.until("document.querySelectorAll('#rescales tbody tr').length === 4")
            for n in range(0, 60, 1 if PICTURES else 15):  # half an hour, with a rescale in it
                s.clock[0] += timedelta(seconds=30)
                step = 41800 + 50 * n
                progress = {
                    "of": 100000,
                    "loss": round(2.6 - 0.5 * (n / 60) ** 0.5 + (n % 3) * 0.01, 4),
                }
                changed(
                    filled,
                    step=step,
                    progress=progress,
                    readyReplicas=3 if n < 20 else 2 if n < 36 else 4 if n < 56 else 3,
                )
                await page.until(f"document.querySelector('.facts').innerText.includes('{step:,} /')")
            s.clock.clear()
            last = {"from": 12, "to": 16, "reason": "Grow", "pauseSeconds": 0.37, "lostSteps": 0, "time": datetime.now(UTC).isoformat(), "phases": {"connect": 0.2, "transfer": 0.1, "first_step": 0.27}}  # fmt: skip
            progress |= {"samples": 2_860_000, "effectiveSamples": 2_710_000}
            batch = {"samples": 128, "base": 64, "noiseScale": 1100}
            changed(filled, lastRescale=last, readyReplicas=4, batch=batch, progress=progress)
            await page.until("document.querySelectorAll('#rescales tbody tr').length === 5")
            first = await page.text("#rescales tbody tr")
            assert "12 → 16" in first
            figures = await page.text(".facts")
            assert "128 samples, noise scale 1,100, efficiency 0.95" in figures
            assert "2,710,000 of 2,860,000" in figures
            assert "first step 270 ms" in first
            assert "12 to 16 ranks (Grow)" in await page.ask("document.getElementById('announce').textContent")
            assert "<script>" in await page.text("#conditions")
            assert await page.ask("document.title") == "llama · elastrain"
            assert await page.ask("document.scripts.length") == 1
            await page.until("document.querySelectorAll('svg.chart path.stroke').length >= 3")
            await picture(page, "job")
            await page.until(LABELS_ARE_WHOLE)
            await page.look(browser.PHONE)
            await fits(page)
            await page.until(LABELS_ARE_WHOLE)
            await picture(page, "job-phone")
            await page.look(dark=True)
            await picture(page, "job-dark")
            filled.delete("elastictrainingjobs", JOB)
            await page.until("document.getElementById('banner').innerText.includes('This job was deleted')")
            assert page.complaints == []

    run(scenario)


def test_everything_is_reachable_by_keyboard(filled, stage) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(filled) as s:
            await page.open(s.url)
            await page.until("document.querySelectorAll('table.jobs tbody tr').length === 5")
            await page.press("/")
            assert await page.ask("document.activeElement.id") == "filter"
            await page.send("Input.insertText", text="llam")
            await page.until("document.querySelectorAll('table.jobs tbody tr').length === 1")
            for _ in range(2):  # over the choice of states to the job
                await page.press("Tab")
            assert await page.ask("document.activeElement.innerText") == "llama"
            await page.press("Enter")
            await page.until("document.activeElement?.id === 'title' && location.hash === '#/jobs/research/llama'")
            await page.until("document.querySelectorAll('svg.chart path.stroke').length >= 2")
            for _ in range(30):
                await page.press("Tab")
                if await page.ask("document.activeElement.matches('svg.chart')"):
                    break
            await page.press("ArrowLeft")
            assert "training 3, desired 4" in await page.text("figure .readout")
            tables = await page.ask(
                "[...document.querySelectorAll('table')].every(t => t.caption.innerText && t.querySelectorAll('th[scope=col]').length > 1)"
            )
            assert tables, "every table has a caption and headers"
            assert await page.ask("document.querySelectorAll('main h1').length") == 1
            assert page.complaints == []

    run(scenario)


def test_accelerators_are_shown_by_job_and_by_node(filled, stage) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(filled) as s:
            await page.open(f"{s.url}#/accelerators")
            await page.until("document.querySelector('.lead')?.innerText.includes('15 of 32')")
            assert "research/digits" in await page.text(".figure .legend")
            await page.ask("document.querySelector('input[value=byNode]').click()")
            await page.until("document.querySelector('.figure .legend').innerText.includes('gpu-b')")
            assert "research/llama ×4, research/digits ×3" in await page.text("table.nodes")
            assert "7 of 8" in await page.text("table.nodes")
            await page.ask("document.querySelector('input[value=byJob]').click()")
            await picture(page, "accelerators")
            await page.look(browser.PHONE)
            await fits(page)
            await picture(page, "accelerators-phone")
            assert page.complaints == []

    run(scenario)


def test_the_page_shows_what_is_unknown(fake, body, running, stage, away) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(fake) as s:
            await page.open(s.url)
            await page.until("document.querySelector('.empty')?.innerText.includes('No jobs yet')")
            await picture(page, "empty")
            await page.open(f"{s.url}#/jobs/research/digits")
            await page.until("document.body.innerText.includes('No such job')")
            await picture(page, "missing")
            fake.put("elastictrainingjobs", body("job", status=running))
            await page.until("document.querySelector('.facts').innerText.includes('120 / 1,000')")
            fake.breaks(away)
            await page.until("document.getElementById('banner').innerText.includes('cannot be read since')")
            assert await page.ask("document.body.dataset.stale") == "true"
            assert "120 / 1,000" in await page.text(".facts"), "known values are still shown"
            await picture(page, "away")
            fake.breaks(None)
            await page.until("document.getElementById('banner').hidden && document.body.dataset.stale === 'false'")
            assert page.complaints == []
            await s.client.close()
            await page.until("document.getElementById('banner').innerText.includes('No connection to the dashboard')")

    run(scenario)
