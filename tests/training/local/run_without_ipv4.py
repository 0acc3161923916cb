"""A whole job of local mode where the machine has no IPv4 address; run in a network namespace by
``test_ipv6_only.py``. Prints the families of all sockets that were seen, as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from elastrain_audit.judge import verify
from elastrain_cli.local.runner import LocalJob

PATIENCE = 120.0


def wait(job: LocalJob, what: str, condition: Callable[[], object]) -> None:
    """Until ``condition`` holds. Raises ``TimeoutError``."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: {job.status()}")
        time.sleep(0.1)


def trains(job: LocalJob, size: int, beyond: int) -> bool:
    generation, progress = job.generation(), job.progress()
    if generation is None or progress is None or len(generation.members) != size:
        return False
    return progress.generation == generation.number and progress.step > beyond


def main(manifest: Path) -> None:
    with LocalJob(manifest, lease_ttl=2) as job:

        def step() -> int:
            progress = job.progress()
            return progress.step if progress is not None else 0

        wait(job, "two workers train", lambda: trains(job, 2, 2))
        job.scale(3)
        wait(job, "a third has the state of the others", lambda: trains(job, 3, step() - 1))
        job.kill_worker("v6-0", "worker")
        wait(job, "a worker replaces the killed one", lambda: "v6-3" in workers(job) and trains(job, 3, 0))
        job.stop_worker("v6-1")
        wait(job, "a worker replaces the drained one", lambda: "v6-4" in workers(job) and trains(job, 3, 0))
        reached = step()
        wait(job, "they train on", lambda: step() > reached + 3)
        seen = sorted({socket.family.name for p in tree() for socket in p.net_connections(kind="inet")})
        addresses = sorted({m.address for m in job.members().values()})
        audit = job.audit_dir
    verdict = verify(audit)
    print(
        json.dumps({"families": seen, "addresses": addresses, "problems": verdict.problems, "redone": verdict.redone})
    )


def workers(job: LocalJob) -> set[str]:
    generation = job.generation()
    return {m.worker for m in generation.members} if generation is not None else set()


def tree() -> list[psutil.Process]:
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
