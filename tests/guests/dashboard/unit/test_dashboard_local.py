"""A job of this machine in the place of an API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from elastrain.api import names
from elastrain.api.records import Progress, Rescale
from elastrain_cli.local.status import LocalStatus, WorkerStatus
from elastrain_dashboard.board import Board
from elastrain_dashboard.local import Machine
from local_jobs import JOB

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEY = f"{JOB.namespace}/digits"
START = Rescale(generation=1, from_size=0, to_size=1, reason="Start", step=0, pause_seconds=1.0)
GROWN = Rescale(generation=2, from_size=1, to_size=2, reason="Grow", step=60, pause_seconds=0.31)
LOST = Rescale(generation=3, from_size=2, to_size=1, reason="Lost", step=61, pause_seconds=0.04)


def status(**fields) -> LocalStatus:
    worker = WorkerStatus(name="digits-0", pid=7, phase="ready", member="digits-0.x", node="here")
    return LocalStatus(
        **{"job": "digits", "phase": "Running", "min": 1, "max": 4, "desired": 1, "workers": (worker,), **fields}
    )


def progress(*rescales: Rescale, step: int) -> Progress:
    return Progress(generation=1, world_size=1, members=1, step=step, total_steps=100, rescales=(START, *rescales))


def pages(*statuses: LocalStatus) -> list[dict]:
    """The page of the job after each status, as a board makes it from what it has listed and watched."""
    now = [statuses[0]]

    async def follow() -> list[dict]:
        board = Board(Machine(JOB, lambda: now[0], lambda: NOW), (JOB.namespace,), NOW, retry_delays=(0.01,))
        following = asyncio.create_task(board.run())
        shown = []
        for now[0] in statuses:
            async with asyncio.timeout(10):
                while (page := board.job(KEY, figures=False)) is None or page["step"] != now[0].progress.step:
                    await asyncio.sleep(0.02)
                    board.tick(NOW)
            shown.append(page)
        following.cancel()
        return shown

    return asyncio.run(follow())


def test_two_rescales_between_two_looks_are_both_on_the_page_and_the_start_is_none() -> None:
    before, after = pages(
        status(progress=progress(step=50)),
        status(progress=progress(GROWN, LOST, step=70), generation=None),
    )
    assert before["rescales"] == []
    assert [(r["from"], r["to"], r["reason"], r["pause"]) for r in after["rescales"]] == [
        (2, 1, "Lost", 0.04), (1, 2, "Grow", 0.31),
    ]  # fmt: skip
    assert [e["reason"] for e in after["events"]].count("Rescaled") == 2, "each is told once"


def test_the_page_has_the_workers_and_the_words_of_the_terminal() -> None:
    (page,) = pages(status(progress=progress(step=50)))
    assert [(w["name"], w["phase"], w["node"]) for w in page["workers"]] == [("digits-0", "Running", "here, pid 7")]
    assert "digits-0 started (pid 7)" in [e["message"] for e in page["events"]]
    assert (page["phase"], page["step"], page["of"]) == ("Running", 50, 100)


def test_the_end_of_the_job_is_told_from_the_last_look_and_not_from_the_first() -> None:
    clock = [NOW]
    now = [status(progress=progress(step=50))]
    machine = Machine(JOB, lambda: now[0], lambda: clock[0])

    async def told() -> str:
        ([body], _) = await anext(machine.list_pages(names.PLURAL, "", {}))
        return body["status"]["progress"]["eta"]

    rate = {"step_seconds": 1.0}
    now[0] = status(progress=progress(step=50).model_copy(update=rate))
    first = asyncio.run(told())
    clock[0] += timedelta(minutes=1)
    now[0] = status(progress=progress(step=60).model_copy(update=rate))
    assert (first, asyncio.run(told())) == ("2030-01-01T00:00:50+00:00", "2030-01-01T00:01:40+00:00")


def test_a_failed_job_of_this_machine_is_not_explained_by_commands_for_a_cluster() -> None:
    (page,) = pages(status(phase="Failed", message="digits-0: ScriptFailed: KeyError: 1", progress=progress(step=50)))
    assert page["explain"] == [{"text": "the job failed: digits-0: ScriptFailed: KeyError: 1", "change": ""}]


def test_a_watch_says_that_its_objects_are_old_once_they_have_changed() -> None:
    now = [status(progress=progress(step=1))]
    machine = Machine(JOB, lambda: now[0], lambda: NOW)

    async def watched() -> dict:
        ((_, version),) = [page async for page in machine.list_pages(names.PLURAL, "", {})]
        now[0] = status(progress=progress(step=2))
        return await anext(machine.changes(names.PLURAL, "", {"resourceVersion": version}))

    assert asyncio.run(watched())["object"]["code"] == 410
