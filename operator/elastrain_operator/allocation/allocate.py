"""Shares the cluster's accelerators between jobs. Pure: same snapshot, same answer, no side effects.

The rules, in the order in which workers are granted (docs/capacity.md has a worked example):

1. A job that trains keeps its workers up to ``minReplicas``. No job is preempted below its minimum.
2. Jobs below their minimum get it, by priority, then by age: all of it or nothing, so that no job holds accelerators
   without training. They may take what other jobs, of any priority, hold above their minima. A job that does not fit
   does not block the jobs behind it.
3. The rest goes to the highest priority first, which may take what lower priorities hold above their minima; within a
   priority first to jobs with a fixed ``replicas``, by age, then to elastic jobs in fair shares (``fair.py``).

An improvement must be worth its cost: an elastic job that was resized recently keeps its size (hysteresis), and a job
grows only if the expected gain exceeds its own measured pause (``worth.py``). Neither delays rule 2 or a higher
priority. If other workers must leave first, their room is promised and granted when they have left; until then a job's
size is what fits now.

Where a replica is a group of workers, all of this is of whole groups (``granting.py``).

Warm spares use the remaining room: any worker may take it before another worker has to leave.

A grant that does not become bound pods expires (``promise.py``), and no worker leaves for a job of which the API server
has not admitted a pod. If no existing node can take another worker, a few stay Pending for an autoscaler to add nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from elastrain_operator.allocation import explanations, trials, worth
from elastrain_operator.allocation.fair import Tier
from elastrain_operator.allocation.goals import Budget, Goals, review
from elastrain_operator.allocation.grant import Grant, Stop
from elastrain_operator.allocation.granting import Granting
from elastrain_operator.allocation.match import lets_go, selects, why_left
from elastrain_operator.allocation.quotas import Quotas
from elastrain_operator.allocation.room import Idle, May, Room
from elastrain_operator.allocation.snapshot import (
    Allocation,
    Job,
    NodeRules,
    Policy,
    Share,
    Sharing,
    Snapshot,
    Worker,
    WorkerShape,
)
from elastrain_operator.allocation.worth import Worth

ROUNDS = 4
"""Most repetitions of the sharing because the growth of some jobs does not pay."""
SIGNALS = 100
"""Most workers of one job that are Pending for an autoscaler at once: as many new nodes are enough to begin with, and
more follow when these are bound. A minimum that no cluster can have costs no more."""


def allocate(snapshot: Snapshot, policy: Policy, now: datetime) -> Allocation:
    """Each job's share now. Executed by each job's own plan; ``now`` is timezone-aware."""
    vain: dict[str, str] = {}
    looks = 0
    for _ in range(ROUNDS):
        sharing = _Allocator(snapshot, policy, now, vain)
        sharing.run()
        looks += sharing.room.looks
        fresh = sharing.not_worth_it()
        if not fresh:
            break
        vain |= fresh
    return Allocation(sharing.answer(fresh), sharing.again(), looks, sharing.lacking)


class _Allocator:
    """One pass over the rules."""

    def __init__(self, snapshot: Snapshot, policy: Policy, now: datetime, vain: dict[str, str]) -> None:
        self.room = Room(snapshot, now)
        self._snapshot = snapshot
        self._policy = policy
        self._now = now
        self._vain = vain
        self._by_goals = policy.sharing is not Sharing.EQUAL
        totals: dict[str, int] = {}
        for node in snapshot.nodes:
            for resource, amount in node.room.items():
                totals[resource] = totals.get(resource, 0) + max(amount, 0)
        self._quotas = Quotas(policy.quotas, snapshot.quotas, snapshot.jobs)
        self._grants = {job.uid: self._grant_of(job, totals) for job in snapshot.jobs}
        self._queue = sorted(self._grants.values(), key=_order)
        self._granting = Granting(self.room, self._quotas, self._grants)
        self._goals = Goals(self.room, policy, now)
        self._idle: dict[WorkerShape, Idle] = {}
        self._troubled: dict[NodeRules, tuple[frozenset[str], frozenset[str]]] = {}

    def _grant_of(self, job: Job, totals: dict[str, int]) -> Grant:
        grant = Grant.of(job, totals)
        if job.elastic and job.trains and job.size:
            recent = worth.thaws(job, self._policy, self._now) is not None
            tries = self._by_goals and trials.lasts(job, self._now)
            if job.uid in self._vain or recent or tries:
                grant.limit = min(job.cap, max(job.size, job.min))
                grant.hold = Stop.VAIN if job.uid in self._vain else Stop.UNTRIED if tries else Stop.RECENT
                grant.why = explanations.trial_lasts(job) if tries else ""
        if job.usable is not None and job.usable < grant.limit:
            grant.limit, grant.hold = job.usable, Stop.UNUSED
        if job.quota_room is not None and max(job.quota_room, job.size) < grant.limit:
            grant.limit, grant.hold = max(job.quota_room, job.size), Stop.QUOTA
        return grant

    def run(self) -> None:
        self._reserve()
        self._keep_minima()
        if self._by_goals:  # so that minima take the workers of jobs which are to shrink anyway
            self._goals.set(self._queue, self._quotas.left())
        self._let_in()
        for priority in sorted({s.job.priority for s in self._queue}, reverse=True):
            self._share_out([s for s in self._queue if s.job.priority == priority and s.let_in and not s.coming])
        if self._policy.pending:
            self._ask_for_minima()

    def _reserve(self) -> None:
        """Room for the pods that Kueue has admitted; spares leave for it, workers do not."""
        left = [count for _, count in self._snapshot.reserved]
        for n, (kind, _) in enumerate(self._snapshot.reserved):
            while left[n] and (self.room.place(kind) or self._granting.displace(kind, lambda _uid, _picked: False)):
                left[n] -= 1
        self.lacking = tuple(left)

    # ---- rule 1 ------------------------------------------------------------------------------------------------------
    def _keep_minima(self) -> None:
        for grant in self._queue:
            if grant.job.trains:
                grant.let_in = True
                while grant.kept + grant.holes < grant.job.min and self._granting.keep(grant, bounded=False):
                    pass

    # ---- rule 2 ------------------------------------------------------------------------------------------------------
    def _let_in(self) -> None:
        failed: dict[WorkerShape, tuple[int, int]] = {}
        for grant in self._queue:
            if grant.job.trains:
                while grant.granted < grant.floor and self._granting.grant(grant, _any_but(grant)):
                    pass
                continue
            if grant.floor < grant.job.min:
                grant.stop = Stop.UNUSED
                continue
            least, reached = failed.get(grant.job.kind, (grant.job.min + 1, 0))
            if grant.job.min >= least and not grant.placed:
                grant.stop, grant.reached = Stop.MINIMUM, reached  # room has only become less since
            elif not self._try(grant, self._take_minimum) and grant.stop is not Stop.QUOTA and grant.job.admitted:
                failed[grant.job.kind] = (min(least, grant.job.min), grant.reached)

    def _take_minimum(self, grant: Grant) -> bool:
        while grant.granted < grant.job.min and self._granting.grant(grant, _any_but(grant)):
            pass
        grant.coming = grant.waits > 0
        return grant.granted >= grant.job.min

    def _try(self, grant: Grant, take: Callable[[Grant], bool]) -> bool:
        """All or nothing: admit a job by ``take``, or undo all of it."""
        reached = grant.reached

        def taken(grant: Grant) -> bool:
            nonlocal reached
            done = take(grant)
            reached = max(reached, grant.granted)
            return done

        grant.let_in = self._granting.attempt(grant, taken)
        grant.reached = 0 if grant.let_in else reached
        return grant.let_in

    # ---- rule 3 ------------------------------------------------------------------------------------------------------
    def _share_out(self, grants: Sequence[Grant]) -> None:
        """The jobs of one priority; workers of lower priorities are still loose."""
        fixed = [s for s in grants if not s.job.elastic]
        for grant in fixed:
            self._keep_all(grant)
        for grant in fixed:
            while grant.granted < grant.limit and self._granting.grant(grant, _any_but(grant)):
                pass
        elastic = [s for s in grants if s.job.elastic]
        budget = Budget(elastic, self.room, {})
        for grant in elastic:
            share = budget.equal_share(grant.job.kind)
            if grant.hold in (Stop.RECENT, Stop.UNTRIED) or not (
                self._by_goals or worth.may_give(grant.job, self._policy, share)
            ):
                self._keep_all(grant)
        if self._by_goals:
            self._goals.limit(elastic, self._quotas.left())
        leaving = bool(self._snapshot.leaving)
        self._granting.tier = Tier(elastic, self._policy.weights, self._grants, leaving=leaving, goals=self._by_goals)
        self._granting.tier.fill(self._granting.grant)
        self._granting.tier = None

    def _keep_all(self, grant: Grant) -> None:
        while grant.granted < grant.limit and self._granting.keep(grant):
            pass

    # ---- nodes that an autoscaler may add ----------------------------------------------------------------------------
    def _ask_for_minima(self) -> None:
        """Jobs that wait for their minimum: they start what fits into room that no other job has taken, and the missing
        workers stay Pending, unless a pod meant for other room could be bound instead."""
        for grant in self._queue:
            job = grant.job
            if grant.let_in or grant.stop in (Stop.QUOTA, Stop.UNUSED) or not job.may_wait:
                continue
            self._try(grant, self._take_what_fits)

    def _take_what_fits(self, grant: Grant) -> bool:
        while grant.granted < grant.job.min and self._granting.grant_worker(grant, None, at_once=True):
            pass
        size = grant.job.group_size
        most = (grant.granted + SIGNALS) // size * size - grant.granted  # no part of a group waits
        signals = min(grant.job.min - grant.granted, most)
        if signals <= 0 or grant.stop is Stop.QUOTA or self.room.could_bind(grant.job.kind):
            return False
        permitted = self._granting.use_quota(grant, signals)
        grant.awaits = signals if permitted else 0
        return permitted

    def _pending(self, grant: Grant, reason: Stop) -> int:
        """Workers beyond its size that an admitted job keeps Pending."""
        job = grant.job
        growing = grant.let_in and not grant.awaits and reason in (Stop.NO_ROOM, Stop.NO_NODE)
        if not (growing and self._policy.pending and job.may_wait):
            return 0
        self.room.begin()
        if job.group_size > 1:
            self._granting.fill_up(grant)  # its pods are bound to that room
        wanted = -(-min(self._policy.pending, SIGNALS) // job.group_size) * job.group_size
        more, most = 0, min(wanted, job.cap - self._size(grant)) if job.group_size <= SIGNALS else 0
        if not self.room.could_bind(job.kind):
            while more < most and self._granting.use_quota(grant, job.group_size):
                more += job.group_size
        self.room.commit() if more else self.room.rollback()
        return more

    # ---- does it pay? ------------------------------------------------------------------------------------------------
    def not_worth_it(self) -> dict[str, str]:
        """Elastic jobs whose growth would gain less than their pause costs: UID → message."""
        found = {}
        for grant in self._queue:
            job = grant.job
            checked = grant.hold in (Stop.RECENT, Stop.VAIN, Stop.UNUSED)
            if job.elastic and not checked and job.trains and 0 < job.size < grant.granted:
                node = self.room.per_node(job.kind)
                value: Worth = worth.growth(job, job.size, grant.granted, self._policy, node)
                if not value.pays:
                    found[job.uid] = explanations.vain(job, grant.granted, value)
        return found

    def again(self) -> float | None:
        """Seconds until the first job may be resized again, or a leaving pod is overdue; None: not relevant."""
        dues = [held.due for held in self._snapshot.leaving if held.due and held.due > self._now]
        thaws = [worth.thaws(s.job, self._policy, self._now) for s in self._queue if s.job.elastic]
        at_most = all(s.granted >= s.job.cap for s in self._queue)
        times = [(t - self._now).total_seconds() for t in (*dues, *(() if at_most else thaws)) if t]
        if self._by_goals and not at_most:
            times.append(review((s.job for s in self._queue), self._now))
        return min(times, default=None)

    # ---- the answer --------------------------------------------------------------------------------------------------
    def answer(self, revoked: dict[str, str]) -> dict[str, Share]:
        """``revoked``: jobs whose growth does not pay, found in the last round: they keep their size."""
        shares = {grant.job.uid: self._share(grant, revoked) for grant in self._queue}
        for grant in self._queue:
            if grant.job.spares and grant.job.trains:
                uid = grant.job.uid
                shares[uid] = self._with_spares(grant, shares[uid])
        for grant in [g for g in self._queue if g.job.evicts]:
            uid, size = grant.job.uid, grant.job.group_size
            more = size if grant.job.trains and self._granting.places(grant.job, size) else 0  # for a roll-out
            shares[uid] = grant.bounded(shares[uid], more)
        return shares

    def _with_spares(self, grant: Grant, share: Share) -> Share:
        """The remaining room: for existing spares first, then for new ones. Quotas count spares as well."""
        job = grant.job
        size, kept, spares = job.group_size, set[str](), 0

        def another(replica: Sequence[Worker]) -> bool:
            permitted = self._quotas.refusal(job.namespace, job.kind.demand, size) is None
            if spares >= job.spares or not permitted or not self._granting.places(job, size - len(replica)):
                return False
            self._quotas.use(job.namespace, job.kind.demand, size)
            return True

        for replica in grant.spare_replicas():
            if another(replica):
                spares += size
                kept |= {w.name for w in replica}
        while another(()):
            spares += size
        return replace(share, spares=spares, release=share.release - kept)

    def _share(self, grant: Grant, revoked: dict[str, str]) -> Share:
        job, size = grant.job, self._size(grant)
        if job.uid in revoked:
            size = min(size, max(job.size, job.min))
        going, troubled = self._trouble(job.kind.place)
        reason, message = self._why(grant, size)
        if job.uid in revoked:
            reason, message = Stop.VAIN, revoked[job.uid]
        if reason in _BY_NEED:
            message += job.barred + explanations.altered(job) + self._faulty_nodes(job.kind.place)
            message += self.room.overdue(job.kind.place) + (explanations.no_signal(job) if self._policy.pending else "")
        message += self._leaving(job, going)
        return Share(
            size=size,
            reason=reason.value,
            message=message,
            generation=job.generation,
            release=frozenset(w.name for w in job.workers if w.node and w.name not in grant.stays),
            replace=self._replaceable(grant, going),
            pending=self._pending(grant, reason),
            awaiting=grant.awaits,
            obstacle=job.obstacle if reason is Stop.UNUSED else "",
            probe=not job.admitted and job.usable is None and size < job.cap,
            shaky=frozenset(w.name for w in job.workers if w.node in troubled or w.ends),
        )

    def _size(self, grant: Grant) -> int:
        """Desired workers now; promised room counts when it is free."""
        if grant.job.trains:
            at_once = self._by_goals and grant.job.elastic and grant.waits  # it grows once, when all of it is free
            return max(grant.whole(grant.kept if at_once else grant.kept + grant.fresh), grant.job.min)
        return grant.whole(grant.kept + grant.fresh + grant.awaits) if grant.let_in and not grant.coming else 0

    def _why(self, grant: Grant, size: int) -> tuple[Stop, str]:
        job, quota = grant.job, self._granting.refused.get(grant.job.uid, "")
        if grant.awaits:
            return Stop.NODES, explanations.nodes(grant)
        if size >= job.cap:
            return Stop.AT_MAX, explanations.at_max(job, size)
        if job.unused and (grant.stop is Stop.UNUSED or not job.admitted or grant.hold is Stop.UNUSED):
            return Stop.UNUSED, explanations.unused(job, size)
        idle = self._idle_for(job.kind)
        if not size:
            return Stop.MINIMUM, explanations.minimum(grant, idle, quota)
        if grant.waits:
            grant.stop = Stop.OTHERS_LEAVE
        elif grant.hold and grant.granted >= grant.limit:
            return grant.hold, grant.why or self._why_held(grant)
        elif grant.stop is not Stop.QUOTA:
            grant.stop = Stop.NO_ROOM if idle.nodes else Stop.NO_NODE
        return grant.stop or Stop.NO_ROOM, explanations.not_grown(grant, idle, quota)

    def _why_held(self, grant: Grant) -> str:
        match grant.hold:
            case Stop.QUOTA:
                return f"not grown: {self._quotas.shortage(grant.job, grant.granted)}"
            case Stop.VAIN:
                return self._vain[grant.job.uid]
        return explanations.recent(worth.rest(grant.job, self._policy))

    def _idle_for(self, kind: WorkerShape) -> Idle:
        if kind not in self._idle:
            self._idle[kind] = self.room.idle(kind)
        return self._idle[kind]

    def _replaceable(self, grant: Grant, going: frozenset[str]) -> frozenset[str]:
        """Workers on departing nodes and devices, as many as find room elsewhere, while at least the minimum
        continues to train."""
        if not (going or any(w.ends for w in grant.job.workers)) or not grant.let_in:
            return frozenset()
        replicas = grant.kept_replicas()
        least = grant.job.min // grant.job.group_size
        spare = max(sum(all(w.trains for w in r) for r in replicas) - least, 0)
        left, chosen = len(replicas) - least, set[str]()
        for replica in [r for r in replicas if any(w.node in going or w.ends for w in r)]:
            trains = all(w.trains for w in replica)
            if trains and not spare:
                continue
            if left <= 0 or not self._granting.places(grant.job, grant.job.group_size):
                break
            spare -= trains
            left -= 1
            chosen |= {w.name for w in replica}
        return frozenset(chosen)

    def _leaving(self, job: Job, going: frozenset[str]) -> str:
        """The nodes that the job's workers should leave, in its message."""
        left = {w.node for w in job.workers if w.node in going}
        nodes = [(n.name, why_left(n, job.kind.place)) for n in self._snapshot.nodes if n.name in left] if left else []
        nodes += dict.fromkeys((w.node, w.ends) for w in job.workers if w.ends and w.node not in left)
        return explanations.leaves(nodes) if nodes else ""

    def _faulty_nodes(self, place: NodeRules) -> str:
        """The nodes that would take such workers, were they not sick, in the message of a job that needs room."""
        return explanations.faulty_nodes(
            [(n.name, n.closed_by) for n in self._snapshot.nodes if n.sick and selects(place, n)]
        )

    def _trouble(self, place: NodeRules) -> tuple[frozenset[str], frozenset[str]]:
        """Nodes that these workers should leave, and the same together with nodes that are not ready."""
        if place not in self._troubled:
            self.room.looks += len(self._snapshot.nodes)
            going = frozenset(n.name for n in self._snapshot.nodes if lets_go(n, place))
            self._troubled[place] = (going, going | {n.name for n in self._snapshot.nodes if not n.ready})
        return self._troubled[place]


_BY_NEED = frozenset({Stop.MINIMUM, Stop.NO_ROOM, Stop.NO_NODE, Stop.NODES})
"""Reasons that follow from what a worker needs."""


def _order(grant: Grant) -> tuple[int, bool, float, str]:
    """The queue: by priority; training jobs before jobs to be admitted; then the oldest."""
    job = grant.job
    return (-job.priority, not job.trains, job.created, job.uid)


def _any_but(grant: Grant) -> May:
    """All loose workers of other jobs may be displaced: jobs with a better claim already have their workers."""
    own = grant.job.uid
    return lambda uid, _: uid != own
