"""The product's ``allocate`` as a policy of the kit's simulator: an adapter, without rules of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from elastrain.sizing.speedup import Batches, Measured
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Snapshot, Worker, WorkerShape

GPU = "nvidia.com/gpu"
KIND = WorkerShape(((GPU, 1), ("pods", 1)))
START = datetime(2030, 1, 1, tzinfo=UTC)
ROUNDS = 4
"""Workers that leave free their nodes within the same decision: on a cluster, seconds later."""


class Product:
    """Sizes by ``allocate`` for the jobs of the kit. It sees what a job has run, and nothing of the rest."""

    def __init__(self, policy: Policy, nodes: int, per_node: int) -> None:
        self._policy = policy
        self._nodes = tuple(Node(f"n{i:02}", {GPU: per_node, "pods": 110}) for i in range(nodes))
        self._resized: dict[str, datetime] = {}
        self._seen: object = None
        self._again = 0.0

    def __call__(self, jobs: Sequence[Any], now: float) -> dict[Any, int]:
        """The kit's interface: simulated jobs → GPUs of each. Like the operator, it decides if something has changed,
        or at the time that the last decision has named."""
        seen = [(j.name, j.nodes, len(j.seen)) for j in jobs]
        if seen != self._seen or now >= self._again:
            sizes = self._decided(jobs, now)
            self._seen = seen if all(sizes[j] == len(j.nodes) for j in jobs) else None
            return sizes
        return {j: len(j.nodes) for j in jobs}

    def _decided(self, jobs: Sequence[Any], now: float) -> dict[Any, int]:
        moment = START + timedelta(seconds=now)
        views = [self.view(job) for job in jobs]
        for _ in range(ROUNDS):
            made = allocate(Snapshot(self._nodes, tuple(views)), self._policy, moment)
            after = [_obey(v, made.shares[v.uid].size or 0, made.shares[v.uid].release) for v in views]
            self._again = now + (made.again if made.again is not None else float("inf"))
            if [v.size for v in after] == [v.size for v in views]:
                break
            views = after
        for job, view in zip(jobs, views, strict=True):
            if view.size != len(job.nodes):
                self._resized[job.name] = moment
        return {job: view.size for job, view in zip(jobs, views, strict=True)}

    def view(self, job: Any) -> Job:
        """A simulated job as the operator would see it."""
        workers = tuple(
            Worker(f"{job.name}-{i}", f"n{node:02}", KIND.demand, trains=True) for i, node in enumerate(job.nodes)
        )
        return Job(
            uid=job.name, namespace="bench", name=job.name, min=1, cap=job.cap, kind=KIND,
            created=(START + timedelta(seconds=job.submitted)).timestamp(), workers=workers, size=len(job.nodes),
            trains=bool(job.nodes), resized=self._resized.get(job.name), pause=job.delay,
            rescales=max(job.restarts, 0), measured=measured(job), batches=batches(job),
        )  # fmt: skip


def measured(job: Any) -> tuple[Measured, ...]:
    """Times of whole steps, accumulation included, as the operator keeps them."""
    return tuple(Measured(gpus, nodes, seconds, batch) for (gpus, nodes, batch), seconds in job.seen.items())


def batches(job: Any) -> Batches | None:
    """The application's own batch and multiples of it, up to the largest that was measured, with the noise that the
    present batch shows; None: the job's batch is fixed."""
    if job.target is not None:
        return None
    app, known = job.app, job.batch or job.app.init
    square, variance = app.noise_at(known, job.epoch)
    noise = float(f"{app.init * variance / max(square, 1e-9 * variance):.2g}")
    return Batches(app.init, app.max_batch, noise, app.min_local, app.max_local)


def _obey(job: Job, size: int, release: frozenset[str]) -> Job:
    workers = [w for w in job.workers if w.name not in release][:size]
    workers += [Worker(f"{job.name}+{i}", demand=KIND.demand) for i in range(len(workers), size)]
    return replace(job, workers=tuple(workers), size=size)
