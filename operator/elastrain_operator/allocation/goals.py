"""Sizes by marginal speed-up: the next accelerators go to the elastic job for which they add most. Pure.

Each job has a curve of speeds, learned from its own steps (``speedup.py``), here as parts of its speed with an equal
share of the accelerators, which have a utility (``worth.py``). Accelerators go, stride by stride, to the job that
gains most utility for each of them. A stride is an edge of the upper hull of a job's utilities, so a size that is
slower than the one below, such as the first on two nodes, stops no job.

A job that has not trained yet gets at most the workers of one node, and no job more than ``REACH`` times the largest
size that was measured: what is unknown is tried in steps. Fewer workers than were measured are tried, too, if others
gain by that (``trials.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, pairwise
from typing import NamedTuple

from elastrain_operator.allocation import explanations
from elastrain_operator.allocation.grant import Grant, Stop
from elastrain_operator.allocation.room import Room, main_resource
from elastrain_operator.allocation.snapshot import Amounts, Job, Policy, WorkerShape
from elastrain_operator.allocation.trials import Trial, trial
from elastrain_operator.allocation.worth import age_of, stays, utility
from elastrain_resource.sizing import speedup

REACH = 4
"""A job gets at most this multiple of the largest size at which its speed was measured."""
SILENT_SECONDS = 300.0
"""A job of this age without a measured speed reports none: it gets an equal share."""
REVIEW_SECONDS, SOON_SECONDS = 60.0, 5.0
"""Sizes are decided anew after this time even without a change: a job that ages may be resized at a smaller gain. While
a job is young, what it may cost to resize it changes quickly: whenever its age has doubled, but not before 5 s."""
WINDOW = 16
"""Refused strides, of the greatest gain, for which a job may try fewer workers."""

Quotas = Mapping[str, Mapping[str, int]]
"""Namespace → resource → amount that its quota still permits."""


class Stride(NamedTuple):
    """A growth of one job that is granted as a whole."""

    gain: float
    """Utility per accelerator."""
    grant: Grant
    low: int
    high: int
    faster: float
    """Steps per second; progress in samples per second if the job chooses its batch."""
    part: float
    """The same as a part of the speed at ``low``."""


class Decided(NamedTuple):
    """What has come of the strides."""

    taken: list[Stride]
    """In their order: the last one gained least."""
    refused: dict[str, Stride]
    """UID → a job's next stride, for which no accelerators are left."""
    untried: dict[str, int]
    """UID → most workers that the job may try now; only jobs that could have more."""
    trials: dict[str, Stride]
    """UID of a job that tries fewer workers → the stride that another job gets by it."""


class Goals:
    """The best sizes of elastic jobs, for one allocation."""

    def __init__(self, room: Room, policy: Policy, now: datetime) -> None:
        self._room, self._policy, self._now = room, policy, now
        self._known: dict[str, tuple[tuple[int, int, int], list[Stride]]] = {}
        """UID → what a job's strides depend on within the allocation, and the strides."""

    def limit(self, grants: Sequence[Grant], quotas: Quotas) -> None:
        """Limit the ``grants``, elastic jobs of one priority that have their minima, to their best sizes."""
        made = self.set(grants, quotas)
        for grant in grants:
            assert grant.goal is not None
            if grant.goal < grant.limit:
                grant.limit = grant.goal
                refused = made.refused.get(grant.job.uid)
                grant.lacks = refused.high - refused.low if refused is not None else 0
                if grant.hold is None:
                    grant.hold, grant.why = _reason(grant, made)

    def set(self, grants: Iterable[Grant], quotas: Quotas) -> Decided:
        """The best sizes of elastic jobs, beside what is granted so far and the minima that still fit."""
        elastic = [grant for grant in grants if grant.job.elastic]
        budget = Budget(elastic, self._room, quotas)
        strides: list[Stride] = []
        made = Decided([], {}, {}, {})
        for grant in elastic:
            missing = grant.job.min - grant.granted
            grant.goal = grant.granted if missing <= 0 or not budget.take(grant.job, missing) else grant.job.min
            share, node = budget.equal_share(grant.job.kind), self._room.per_node(grant.job.kind)
            most = min(grant.limit, _reach(grant.job, share, node, self._now))
            most -= most % grant.job.group_size
            if most < grant.limit:
                made.untried[grant.job.uid] = most
            # The curve of a job ends at twice what could ever run here, whatever its spec and its status say: a stride
            # that lacks room is still known as one.
            known = 2 * budget.most(grant.job.kind)
            strides += self._strides(grant, grant.goal, min(most, known - known % grant.job.group_size), share)
        strides.sort(key=lambda s: (-s.grant.job.priority, -s.gain, s.grant.job.created, s.grant.job.uid, s.low))
        for stride in strides:
            if stride.grant.goal != stride.low:
                continue  # an earlier stride was refused
            if budget.take(stride.grant.job, stride.high - stride.low):
                stride.grant.goal = stride.high
                made.taken.append(stride)
            else:
                made.refused[stride.grant.job.uid] = stride
        if made.refused:
            self._try_fewer(elastic, budget, made)
        return made

    def _try_fewer(self, elastic: Sequence[Grant], budget: Budget, made: Decided) -> None:
        """Jobs try fewer workers where the stride of another job gains more than that costs at best."""
        policy, now, found = self._policy, self._now, list[Trial]()
        for grant in elastic:
            kind = grant.job.kind
            tried = trial(grant, budget.equal_share(kind), self._room.per_node(kind), policy, now)
            if tried is not None:
                found.append(tried)
        waiting = {uid: stride for uid, stride in made.refused.items() if stride.grant.job.trains}
        for tried in sorted(found, key=lambda t: (t.loss, t.grant.job.created, t.grant.job.uid)):
            giver = tried.grant
            if giver.goal != giver.job.size:
                continue  # it has got more
            wanted = [s for s in islice(waiting.values(), WINDOW) if _may_take(s, tried)]
            stride = next((s for s in wanted if budget.swap(giver.job, tried.size, s)), None)
            if stride is not None:
                giver.goal, stride.grant.goal = tried.size, stride.high
                made.trials[giver.job.uid] = stride
                waiting.pop(stride.grant.job.uid)
                waiting.pop(giver.job.uid, None)

    def _strides(self, grant: Grant, start: int, most: int, equal: int) -> list[Stride]:
        """The strides of one job from ``start`` to ``most`` workers. ``equal``: its equal share."""
        depends, job, policy = (start, most, equal), grant.job, self._policy
        before = self._known.get(job.uid)
        if before is not None and before[0] == depends:
            return before[1]
        found: list[Stride] = []
        if most > start:
            speeds = speedup.curve(job.measured, self._room.per_node(job.kind), max(most, equal), job.batches)
            counts = stays(job, policy, self._now)
            parts = [s / speeds[equal] * (1.0 if w == job.size else counts) for w, s in enumerate(speeds[: most + 1])]
            values = [utility(job, part, policy) for part in parts]
            for low, high in _hull(values, range(start, most + 1, job.group_size)):
                faster = speeds[high] - speeds[low]
                gain = _slope(values, low, high) / grant.step
                found.append(Stride(gain, grant, low, high, faster, faster / speeds[low] if low else 1.0))
        self._known[job.uid] = depends, found
        return found


def _may_take(stride: Stride, tried: Trial) -> bool:
    """Whether a stride that was refused may have accelerators of a job that tries fewer."""
    taker, giver = stride.grant, tried.grant.job
    other = taker.job.uid != giver.uid and taker.job.priority >= giver.priority
    return other and stride.gain * taker.step * (stride.high - stride.low) > tried.loss


def _reason(grant: Grant, made: Decided) -> tuple[Stop | None, str]:
    """Why the goal is not more; None: no accelerator is left, and no other job has taken one above its minimum."""
    gets = made.trials.get(grant.job.uid)
    if gets is not None:
        return Stop.UNTRIED, explanations.trial(grant.job, grant.goal or 0, _worth(gets))
    refused = made.refused.get(grant.job.uid)
    if refused is not None:
        others = (s for s in reversed(made.taken) if s.grant is not grant and s.gain >= refused.gain)
        winner = next(others, None)
        if winner is None:
            return None, ""
        return Stop.OTHERS_GAIN, explanations.others_gain(_worth(refused), _worth(winner))
    most = made.untried.get(grant.job.uid)
    if most is not None and grant.goal == most:
        tried = speedup.largest(grant.job.measured)
        return Stop.UNTRIED, explanations.untried(grant.job, most, tried)
    return Stop.NO_GAIN, explanations.no_gain()


def _worth(stride: Stride) -> explanations.Gain:
    job, workers, effective = stride.grant.job, stride.high - stride.low, stride.grant.job.batches is not None
    each = None if not job.measured else 1.0 if effective else job.samples
    samples = None if each is None else each * stride.faster
    return explanations.Gain(job, workers, samples, stride.part, effective)


def review(jobs: Iterable[Job], now: datetime) -> float:
    """Seconds until sizes are decided anew even without a change."""
    youngest = min((age_of(j, now) for j in jobs if j.elastic and j.trains), default=REVIEW_SECONDS)
    return min(max(youngest, SOON_SECONDS), REVIEW_SECONDS)


@dataclass(slots=True, eq=False)
class _Pool:
    """The accelerators that one kind of worker could use."""

    amount: int
    """Of one worker."""
    left: int
    total: int
    """With those that the jobs have."""
    jobs: int = 0
    shared: list[_Pool] = field(default_factory=list)
    """The pools, this one included, whose accelerators a worker of this kind uses."""


class Budget:
    """The accelerators that are left. A granted worker uses those of each kind of worker that could use its node."""

    def __init__(self, grants: Sequence[Grant], room: Room, quotas: Quotas) -> None:
        kinds = list(dict.fromkeys(g.job.kind for g in grants))
        main = {kind: main_resource(kind.demand) for kind in kinds}
        nodes = {kind: frozenset(room.open(kind.place)) for kind in kinds}
        self._pools: dict[WorkerShape, _Pool] = {}
        for kind in kinds:
            amount = max(dict(kind.demand).get(main[kind], 1), 1)
            total = room.slots(kind) * amount
            self._pools[kind] = _Pool(amount, total, total)
        for kind, pool in self._pools.items():
            pool.shared = [self._pools[k] for k in kinds if main[k] == main[kind] and nodes[kind] <= nodes[k]]
        self._quotas = {namespace: dict(left) for namespace, left in quotas.items()}
        for grant in grants:
            pool = self._pools[grant.job.kind]
            for other in pool.shared:
                other.total += grant.granted * pool.amount
                other.jobs += 1

    def equal_share(self, kind: WorkerShape) -> int:
        """Workers of a job if all jobs that compete for these nodes had as many accelerators."""
        pool = self._pools[kind]
        return max(math.ceil(pool.total / pool.jobs / pool.amount), 1)

    def most(self, kind: WorkerShape) -> int:
        """Workers of a job if it had all accelerators of these nodes."""
        pool = self._pools[kind]
        return max(pool.total // pool.amount, 1)

    def take(self, job: Job, workers: int) -> bool:
        """Use the accelerators of so many workers; False: they are not all left."""
        pool, quota = self._pools[job.kind], self._quotas.get(job.namespace, {})
        need, bounded = workers * pool.amount, _bounded(job.kind.demand, quota) if quota else ()
        if any(other.left < need for other in pool.shared):
            return False
        if any(workers * amount > quota[resource] for resource, amount in bounded):
            return False
        for other in pool.shared:
            other.left -= need
        for resource, amount in bounded:
            quota[resource] -= workers * amount
        return True

    def swap(self, giver: Job, size: int, stride: Stride) -> bool:
        """Shrink a job to ``size`` and take the accelerators of a stride; False: that is not enough for it."""
        freed = giver.size - size
        self.take(giver, -freed)
        if self.take(stride.grant.job, stride.high - stride.low):
            return True
        self.take(giver, freed)
        return False


def _bounded(demand: Amounts, quota: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(resource, amount) for resource, amount in demand if resource in quota]


def _reach(job: Job, equal: int, node: int, now: datetime) -> int:
    """Most workers that the job may try."""
    tried = speedup.largest(job.measured)
    if tried:
        return max(REACH * tried, job.size)
    silent = job.trains and age_of(job, now) > SILENT_SECONDS
    return max(equal if silent else node, job.min, job.size)


def _hull(values: Sequence[float], sizes: Iterable[int]) -> list[tuple[int, int]]:
    """The rising edges of the upper hull of the ``values`` of these sizes, in their order."""
    corners: list[int] = []
    for i in sizes:
        while len(corners) > 1 and _slope(values, corners[-1], i) >= _slope(values, corners[-2], corners[-1]):
            corners.pop()
        corners.append(i)
    return [(a, b) for a, b in pairwise(corners) if values[b] > values[a]]


def _slope(values: Sequence[float], low: int, high: int) -> float:
    return (values[high] - values[low]) / (high - low)
