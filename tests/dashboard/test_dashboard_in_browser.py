"""The page as a person meets it: in a real Chromium, fed by a cluster that is told what it has."""

# ruff: noqa: E501 - objects and JavaScript on one line, as a person would type them
from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness import browser

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
        await asyncio.sleep(5.2)  # for the eyes only: charts are drawn with the next frame, ages every 5 s
        await page.picture(Path(PICTURES) / f"{name}.png", whole=True)


@pytest.fixture
def filled(fake, body, running):
    """Five jobs in all the states that there are, on four nodes."""
    moment = datetime.now(UTC)

    def ago(**since: float) -> str:
        return (moment - timedelta(**since)).isoformat(timespec="seconds")

    conditions = [
        {"type": "Running", "status": "True", "reason": "Training", "message": "generation 3 trains", "lastTransitionTime": ago(minutes=40)},
        {"type": "Grown", "status": "False", "reason": "NoRoom", "message": "not grown: 0 nvidia.com/gpu idle, 1 needed for the next worker", "lastTransitionTime": ago(minutes=3)},
        {"type": "CheckpointHealthy", "status": "True", "reason": "Saved", "message": "step 41,000 at /checkpoints/<script>document.title='owned'</script>", "lastTransitionTime": ago(minutes=30)},
    ]  # fmt: skip
    last = {
        "from": 4, "to": 3, "reason": "Lost", "pauseSeconds": 0.92, "lostSteps": 0, "time": ago(minutes=2),
        "phases": {"detect": 0.021, "decide": 0.06, "connect": 0.31, "transfer": 0.0, "first_step": 0.53},
    }  # fmt: skip
    status = {
        **running, "conditions": conditions, "lastRescale": last, "readyReplicas": 3, "desiredReplicas": 4, "step": 41800,
        "generation": {"number": 5, "size": 3, "reason": "Lost"}, "restarts": {"user": 0, "infrastructure": 1, "preemption": 0},
        "progress": {"step": 41800, "of": 100000, "epoch": 3, "samplesPerSecond": 5120.5, "loss": 2.1345, "eta": (moment + timedelta(hours=3.2)).isoformat()},
        "acceleratorSeconds": {"training": 88300.0, "rescaling": 310.0, "waiting": 2400.0, "redone": 120.0, "held": 12},
        "lastFailure": {
            "time": ago(minutes=2), "worker": "llama-2", "rank": 9, "cause": "infrastructure", "reason": "RankKilled",
            "message": "rank 9 was killed by signal 9 (SIGKILL)", "logTail": "step 41774 loss 2.1391\nstep 41775 loss 2.1388",
        },
    }  # fmt: skip
    fake.put("elastictrainingjobs", body("job", "llama", minReplicas=2, maxReplicas=8, status=status))
    fake.put("elastictrainingjobs", body("job", "digits", status={
        **running, "readyReplicas": 3, "conditions": [], "acceleratorSeconds": {"training": 300.0, "rescaling": 1.0, "waiting": 29.0, "redone": 0.0, "held": 3},
    }))  # fmt: skip
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "BackoffLimitExceeded",
        "message": "exit code 1 in rank 0 (worker resnet-1): RuntimeError: CUDA out of memory",
        "lastTransitionTime": ago(minutes=8),
    }
    fake.put(
        "elastictrainingjobs",
        body(
            "job",
            "resnet",
            "vision",
            status={
                "phase": "Failed",
                "step": 900,
                "conditions": [failed],
                "completionTime": ago(minutes=8),
                "desiredReplicas": 4,
            },
        ),
    )
    waits = {
        "type": "Grown",
        "status": "False",
        "reason": "NoRoom",
        "message": "waits: 4 workers must start together (minReplicas), there is room for 1; 1 nvidia.com/gpu idle, 2 needed for the next worker (nprocPerNode 2)",
        "lastTransitionTime": ago(minutes=4),
    }
    fake.put(
        "elastictrainingjobs",
        body(
            "job",
            "vit-large",
            "vision",
            minReplicas=4,
            maxReplicas=16,
            status={"phase": "Pending", "desiredReplicas": 4, "conditions": [waits]},
        ),
    )
    done = {
        "type": "Succeeded",
        "status": "True",
        "reason": "Finished",
        "message": "all steps are done",
        "lastTransitionTime": ago(minutes=50),
    }
    fake.put("elastictrainingjobs", body("job", "bert-base", "vision", status={
        "phase": "Succeeded", "step": 5000, "progress": {"step": 5000, "of": 5000, "loss": 0.0213}, "conditions": [done], "completionTime": ago(minutes=50), "desiredReplicas": 0,
        "acceleratorSeconds": {"training": 9310.0, "rescaling": 44.0, "waiting": 400.0, "redone": 0.0},
    }))  # fmt: skip
    for n, name in enumerate(("gpu-a", "gpu-b", "gpu-c", "gpu-d")):
        fake.put("nodes", body("node", name, gpus=8, ready=n < 3))
    for ordinal, node in ((0, "gpu-a"), (1, "gpu-b"), (3, "gpu-c")):
        fake.put("pods", body("pod", "llama", ordinal, node, gpus=4))
    for ordinal in range(3):
        fake.put("pods", body("pod", "digits", ordinal, "gpu-b"))
    told = [
        ("TargetSet", "4 workers wanted (min 2, max 8)", 41, "Normal"),
        ("Rescaled", "from 8 to 12 ranks (Grow), pause 0.34 s (connect 210 ms, transfer 88 ms, first step 250 ms), 0 steps lost", 35, "Normal"),
        ("Rescaled", "from 12 to 8 ranks (Drain), pause 0.21 s (connect 150 ms, transfer 0 ms, first step 208 ms), 0 steps lost", 20, "Normal"),
        ("Rescaled", "from 8 to 16 ranks (Grow), pause 0.41 s (connect 260 ms, transfer 121 ms, first step 287 ms), 0 steps lost", 12, "Normal"),
        ("WorkerLost", "llama-2: rank 9 was killed by signal 9 (SIGKILL) (infrastructure: RankKilled)\nstep 41775 loss 2.1388", 2, "Warning"),
    ]  # fmt: skip
    for reason, message, minutes, kind in told:
        fake.put("events", body("event", "llama", reason, message, ago(minutes=minutes), kind))
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


def test_a_job_shows_its_rescales_and_what_other_people_wrote_is_only_text(filled, stage) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(filled) as s:
            s.clock.append(datetime.now(UTC) - timedelta(minutes=30))
            changed(filled, progress={"step": 41800, "of": 100000, "loss": 2.6})
            await page.open(f"{s.url}#/jobs/{JOB}")
            await page.until("document.querySelectorAll('#rescales tbody tr').length === 4")
            for n in range(0, 60, 1 if PICTURES else 15):  # half an hour, with a rescale in it
                s.clock[0] += timedelta(seconds=30)
                progress = {
                    "step": 41800 + 50 * n,
                    "of": 100000,
                    "loss": round(2.6 - 0.5 * (n / 60) ** 0.5 + (n % 3) * 0.01, 4),
                }
                changed(
                    filled, step=progress["step"], progress=progress, readyReplicas=2 if n < 20 else 4 if n < 56 else 3
                )
                await page.until(f"document.querySelector('.facts').innerText.includes('{progress['step']:,} /')")
            s.clock.clear()
            last = {"from": 12, "to": 16, "reason": "Grow", "pauseSeconds": 0.37, "lostSteps": 0, "time": datetime.now(UTC).isoformat(), "phases": {"connect": 0.2, "transfer": 0.1, "first_step": 0.27}}  # fmt: skip
            changed(filled, lastRescale=last, readyReplicas=4)
            await page.until("document.querySelectorAll('#rescales tbody tr').length === 5")
            first = await page.text("#rescales tbody tr")
            assert "12 → 16" in first
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


def test_everything_is_reached_by_the_keyboard(filled, stage) -> None:
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
            assert "training 3, wanted 4" in await page.text("figure .readout")
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


def test_the_page_says_what_it_cannot_know(fake, body, running, stage, away) -> None:
    async def scenario(page: browser.Page) -> None:
        async with stage(fake) as s:
            await page.open(s.url)
            await page.until("document.querySelector('.empty')?.innerText.includes('No jobs yet')")
            await picture(page, "empty")
            await page.open(f"{s.url}#/jobs/research/digits")
            await page.until("document.body.innerText.includes('There is no such job')")
            await picture(page, "missing")
            fake.put("elastictrainingjobs", body("job", status=running))
            await page.until("document.querySelector('.facts').innerText.includes('120 / 1,000')")
            fake.breaks(away)
            await page.until("document.getElementById('banner').innerText.includes('cannot be read since')")
            assert await page.ask("document.body.dataset.stale") == "true"
            assert "120 / 1,000" in await page.text(".facts"), "what was known is still there"
            await picture(page, "away")
            fake.breaks(None)
            await page.until("document.getElementById('banner').hidden && document.body.dataset.stale === 'false'")
            assert page.complaints == []
            await s.client.close()
            await page.until("document.getElementById('banner').innerText.includes('No connection to the dashboard')")

    run(scenario)
