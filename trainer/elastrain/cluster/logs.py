"""``logs``: what all workers of a job print, now or as they go on."""

from __future__ import annotations

import asyncio
import sys

from rich.console import Console
from rich.text import Text

from elastrain.client import AsyncJobs, ClusterError, Worker
from elastrain.client.asynchronous import ENDED
from elastrain.cluster import view
from elastrain.cluster.manners import Place, answers


@answers
def logs(place: Place, name: str, *, follow: bool, tail: int) -> int:
    async def run() -> None:
        async with await AsyncJobs.connect(namespace=place.namespace, context=place.context) as jobs:
            await jobs.get(name)  # says so if there is none
            workers = sorted(await jobs.workers(name), key=lambda w: w.phase != "Failed")
            if not workers:
                print(f"{name}: has no workers now; elastrain explain {name}", file=sys.stderr)  # noqa: T201
            if follow:
                await _follow(jobs, name, tail)
            else:
                for worker in workers:
                    await _print_log(jobs, worker, follow=False, tail=tail)

    asyncio.run(run())
    return 0


async def _follow(jobs: AsyncJobs, name: str, tail: int) -> None:
    """The logs of all workers as they are written, of those that join later, too; until the job ends."""
    followed: dict[str, asyncio.Task[None]] = {}
    try:
        async for job in jobs.watch(name):
            for worker in await jobs.workers(name):
                if worker.name not in followed and worker.phase != "Pending":
                    followed[worker.name] = asyncio.create_task(_print_log(jobs, worker, follow=True, tail=tail))
            if view.phase_of(job) in ENDED:
                break
        await asyncio.gather(*followed.values())
    finally:
        for task in followed.values():
            task.cancel()


async def _print_log(jobs: AsyncJobs, worker: Worker, *, follow: bool, tail: int) -> None:
    console = Console(soft_wrap=True, highlight=False)
    try:
        async for line in jobs.logs(worker.name, follow=follow, tail=tail):
            console.print(Text.assemble((f"{line.worker} │ ", "cyan"), Text.from_ansi(line.text)))
    except ClusterError as error:  # its container has not started: the others' logs are still wanted
        print(f"{worker.name} │ no log: {worker.reason or worker.phase} ({error})", file=sys.stderr)  # noqa: T201
