"""``logs``: prints the output of all workers of a job, once or continuously."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from elastrain_cli.client import AsyncJobs, ClusterError, Worker
from elastrain_cli.client.asynchronous import ENDED
from elastrain_cli.cluster import logline
from elastrain_cli.cluster.output import Place, answers
from elastrain_cli.shell import view

Show = Callable[[str], Text]
"""Formats a line."""


@answers
def logs(place: Place, name: str, *, follow: bool, tail: int, raw: bool) -> int:
    """Print the logs and return the exit code. ``raw``: print the agents' lines unchanged."""
    show = logline.unchanged if raw else logline.readable

    async def run() -> None:
        async with await AsyncJobs.connect(namespace=place.namespace, context=place.context) as jobs:
            await jobs.get(name)  # raises if there is no such job
            workers = sorted(await jobs.workers(name), key=lambda w: w.phase != "Failed")
            if not workers:
                print(f"{name}: has no workers; elastrain explain {name}", file=sys.stderr)  # noqa: T201
            if follow:
                await _follow(jobs, name, tail, show)
            else:
                for worker in workers:
                    await _print_log(jobs, worker, show, follow=False, tail=tail)

    asyncio.run(run())
    return 0


async def _follow(jobs: AsyncJobs, name: str, tail: int, show: Show) -> None:
    """Print the logs of all workers, later joiners included, until the job ends."""
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        async for job in jobs.watch(name):
            for worker in await jobs.workers(name):
                if worker.name not in followed and worker.phase != "Pending":
                    printing = _print_log(jobs, worker, show, follow=True, tail=tail)
                    followed[worker.name] = asyncio.create_task(printing)
            if view.phase_of(job) in ENDED:
                break
        await asyncio.gather(*followed.values())
    finally:
        for task in followed.values():
            task.cancel()


async def _print_log(jobs: AsyncJobs, worker: Worker, show: Show, *, follow: bool, tail: int) -> None:
    console = Console(soft_wrap=True, highlight=False)
    try:
        async for line in jobs.logs(worker.name, follow=follow, tail=tail):
            for row in show(line.text).split("\n", allow_blank=True):
                console.print(Text.assemble((f"{line.worker} │ ", "cyan"), row))
    except ClusterError as error:  # the container has not started; the other logs follow
        print(f"{worker.name} │ no log: {worker.reason or worker.phase} ({error})", file=sys.stderr)  # noqa: T201
