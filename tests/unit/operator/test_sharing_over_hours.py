"""Hours of jobs that come, train and end, sized by measured speed. The messages of the assertions are the promises."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.allocation.allocate import allocate
from elastrain_operator.allocation.snapshot import Job, Node, Policy, Sharing, Snapshot, Worker, WorkerShape
from elastrain_operator.allocation.worth import FREE_RESCALES, RESCALE_SECONDS
from elastrain_resource.sizing.speedup import Batches, Measured, learned

START = datetime(2030, 1, 1, tzinfo=UTC)
GPU = "nvidia.com/gpu"
ONE = WorkerShape(((GPU, 1), ("pods", 1)))
TICK = 60.0
NODES = tuple(Node(f"n{i}", {GPU: 4, "pods": 99}) for i in range(3))
GPUS = 12
BASE = 64
"""Samples of a fixed batch, and the smallest of the others."""


@dataclass
class Trained:
    """A job whose step takes ``fixed`` + (1 - ``fixed``) / workers seconds, with noise in what it reports."""

    name: str
    came: float
    fixed: float
    left: float
    """Steps; of a job that chooses its batch, in the progress of one of the smallest batch."""
    noise: float | None = None
    """Noise scale of its gradients; None: its batch is fixed."""
    size: int = 0
    pause: float = 0.0
    rescales: int = -1
    forced: int = 0
    """Rescales in decisions in which a job came."""
    seen: dict[int, Measured] = field(default_factory=dict)
    """By workers: the newest."""
    resized: datetime | None = None

    @property
    def batches(self) -> Batches | None:
        return None if self.noise is None else Batches(BASE, 32 * BASE, self.noise)

    @property
    def batch(self) -> int | None:
        known = tuple(self.seen.values())
        return None if self.batches is None else learned(known).best_batch(self.size, spans=False, batches=self.batches)

    def seconds(self) -> float:
        return self.fixed + (1 - self.fixed) * (self.batch or BASE) / BASE / self.size

    def progress(self) -> float:
        """Per second."""
        batch = self.batch or BASE
        return batch / BASE * (self.batches.efficiency(batch) if self.batches else 1.0) / self.seconds()

    def train(self, noise: float) -> None:
        waits = min(self.pause, TICK)
        self.pause -= waits
        if self.size and waits < TICK:
            self.left -= (TICK - waits) * self.progress()
            self.seen[self.size] = Measured(self.size, 1, self.seconds() * (1 + noise), self.batch)

    def view(self, nodes: list[str], pause: float) -> Job:
        workers = tuple(Worker(f"{self.name}-{i}", nodes.pop(), ONE.demand, trains=True) for i in range(self.size))
        return Job(
            self.name, "ns", self.name, 1, 12, ONE, created=START.timestamp() + self.came, workers=workers,
            size=self.size, trains=self.size > 0, resized=self.resized, pause=pause, rescales=max(self.rescales, 0),
            measured=tuple(self.seen.values()), batches=self.batches,
        )  # fmt: skip


NOISE = st.none() | st.floats(1.0, 1e5)
JOB = st.tuples(st.integers(0, 60), st.floats(0.01, 0.9), st.floats(100, 20_000), NOISE)
COMING = st.lists(JOB, min_size=1, max_size=10)


@examples(30)
@given(COMING, st.sampled_from([1.0, 30.0]), st.sampled_from([Sharing.BALANCED, Sharing.EFFICIENT]), st.randoms())
def test_jobs_start_at_once_are_rescaled_rarely_and_never_hold_more_than_the_cluster_has(
    coming, pause, sharing, random
):
    policy = Policy(sharing=sharing, pause=pause, startup=0.0)
    waiting = [Trained(f"j{i}", came * TICK, *how) for i, (came, *how) in enumerate(coming)]
    jobs: list[Trained] = []
    for tick in range(240):
        now = tick * TICK
        for job in jobs:
            job.train(random.uniform(-0.03, 0.03))
        jobs = [j for j in jobs if j.left > 0]
        came = [j for j in waiting if j.came <= now]
        waiting = [j for j in waiting if j.came > now]
        jobs += came
        _decide(jobs, policy, now, bool(came))
        assert sum(j.size for j in jobs) <= GPUS, "never more than the cluster has"
        assert all(j.size >= 1 for j in jobs), "a job that fits beside the minima of the others starts at once"
        for job in jobs:
            most = FREE_RESCALES + 1 + (now - job.came) / RESCALE_SECONDS + job.forced
            assert job.rescales <= most, (
                "a job is rescaled for an improvement at most 12 times an hour, and 6 times more"
            )
    assert not waiting


def _decide(jobs: list[Trained], policy: Policy, now: float, forced: bool) -> None:
    """One decision, in rounds: workers that leave free their room."""
    moment = START + timedelta(seconds=now)
    before = [j.size for j in jobs]
    starts = [j for j in jobs if not j.size]
    for _ in range(4):
        nodes = [n.name for n in NODES for _ in range(4)]
        views = [j.view(nodes, policy.pause) for j in jobs]
        views = [replace(v, trains=v.trains and j not in starts) for v, j in zip(views, jobs, strict=True)]
        shares = allocate(Snapshot(NODES, tuple(views)), policy, moment).shares
        after = [shares[j.name].size or 0 for j in jobs]
        if after == [j.size for j in jobs]:
            break
        for job, size in zip(jobs, after, strict=True):
            job.size = size
    for job, old in zip(jobs, before, strict=True):
        if job.size != old:
            job.resized, job.pause, job.rescales = moment, policy.pause, job.rescales + 1
            job.forced += forced and old > 0


FIXED = st.lists(st.floats(0.01, 0.9), min_size=2, max_size=6)


@examples(60)
@given(FIXED, st.lists(st.integers(1, 6), min_size=6, max_size=6), st.sampled_from([1.0, 30.0]))
def test_no_growth_of_a_job_that_knows_its_speeds_costs_more_than_it_gains(fixed, held, pause):
    jobs = [Trained(f"j{i}", -7200.0, f, 1e9, size=held[i]) for i, f in enumerate(fixed)]
    while sum(j.size for j in jobs) > GPUS:
        max(jobs, key=lambda j: j.size).size -= 1
    for job in jobs:
        job.seen = {w: Measured(w, 1, job.fixed + (1 - job.fixed) / w) for w in range(1, 13)}
    before = {j.name: j.seconds() for j in jobs}
    sizes = {j.name: j.size for j in jobs}
    policy = Policy(sharing=Sharing.EFFICIENT, pause=pause, startup=0.0)
    _decide(jobs, policy, 0.0, forced=False)
    for job in jobs:
        if job.size > sizes[job.name]:
            gain = policy.horizon * (before[job.name] / job.seconds() - 1)
            assert gain > pause, "a growth gains more within the horizon than its pause costs"
