"""Divides the capacity above the minima between elastic jobs of one priority: weighted max-min fairness.

The method is progressive filling (Bertsekas & Gallager, "Data Networks", 2nd ed., 6.5.2): the job with the least gets
the next worker, until no job can get another. A job's amount is its dominant share of the cluster (Ghodsi et al.,
"Dominant Resource Fairness", NSDI 2011) above its minimum, first per namespace by weight, then per job. Among equal
jobs, one that already holds a worker keeps it, so that a fair division remains stable.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from elastrain_operator.allocation.grant import Grant
from elastrain_operator.allocation.room import May

GiveOne = Callable[[Grant, May | None], bool]
"""Grant a job one more replica, displacing workers if permitted (None: never); False: no room."""


class Tier:
    """The elastic jobs of one priority during progressive filling."""

    def __init__(
        self,
        grants: Iterable[Grant],
        weights: Mapping[str, int],
        all_grants: Mapping[str, Grant],
        *,
        leaving: bool,
        goals: bool = False,
    ) -> None:
        """``leaving``: workers are leaving anyway: their room can be promised; ``goals``: each job gives what it holds
        above its goal, and nothing else."""
        self._all = all_grants
        self._mine = {s.job.uid: s for s in grants}
        self._weights = {s.job.namespace: weights.get(s.job.namespace, 1) for s in self._mine.values()}
        self._level = dict.fromkeys(self._weights, 0)
        """Amount granted to each namespace above its minima."""
        self._held = dict.fromkeys(self._weights, 0)
        """The same if its jobs kept all workers that they hold."""
        self._richest = dict.fromkeys(self._weights, 0)
        """Upper bound, per namespace, of what its largest job would have after losing one worker."""
        for grant in self._mine.values():
            self._count(grant)
        self._beyond = sum(s.beyond_goal for s in self._mine.values()) if goals else None
        """Workers that the jobs hold above their goals; None: they have no goals."""
        self._others = leaving or any(s.loose for uid, s in all_grants.items() if uid not in self._mine)

    def _count(self, grant: Grant) -> None:
        namespace = grant.job.namespace
        self._level[namespace] += grant.level
        self._held[namespace] += grant.held_level
        self._richest[namespace] = max(self._richest[namespace], grant.held_level - grant.step)

    def lost(self, grant: Grant, workers: int = 1) -> None:
        """So many workers of a job were displaced; negative: that was undone."""
        if grant.job.uid in self._mine:
            self._held[grant.job.namespace] -= workers * grant.step
            if self._beyond is not None:
                self._beyond -= workers

    def fill(self, place: GiveOne) -> None:
        """Grant one replica after another to the job with the least."""
        queues: dict[str, list[tuple[int, bool, float, str]]] = {}
        for grant in self._mine.values():
            queues.setdefault(grant.job.namespace, []).append(_key(grant))
        for queue in queues.values():
            heapq.heapify(queue)
        heap = [self._place(namespace, queue) for namespace, queue in queues.items()]
        heapq.heapify(heap)
        while heap:
            namespace = heapq.heappop(heap)[-1]
            queue = queues[namespace]
            grant = self._mine[heapq.heappop(queue)[-1]]
            if grant.granted < grant.limit and self._give(grant, place):
                heapq.heappush(queue, _key(grant))
            if queue:
                heapq.heappush(heap, self._place(namespace, queue))

    def _give(self, grant: Grant, place: GiveOne) -> bool:
        namespace, level, held = grant.job.namespace, grant.level, grant.held_level
        given = place(grant, self._may(grant) if self._worth_asking(grant) else None)
        self._level[namespace] += grant.level - level
        self._held[namespace] += grant.held_level - held
        return given

    def _place(self, namespace: str, queue: Sequence[tuple[int, bool, float, str]]) -> tuple[float, bool, str]:
        return (self._level[namespace] / self._weights[namespace], queue[0][1], namespace)

    def _worth_asking(self, taker: Grant) -> bool:
        """Whether any worker leaves or can be displaced at all: a cheap test that avoids most searches."""
        home = taker.job.namespace
        if self._beyond is not None:
            return self._others or self._beyond > 0
        if self._others or self._richest[home] > taker.level:
            return True
        mine = self._level[home] / self._weights[home]
        return any(self._held[n] / w > mine for n, w in self._weights.items() if n != home)

    def _may(self, taker: Grant) -> May:
        """A job of the same priority loses a worker only if it then still has more than the taker had before. Both
        sides converge, so no worker moves back and forth."""
        home = taker.job.namespace
        mine = self._level[home] / self._weights[home]

        def allowed(uid: str, picked: Sequence[str]) -> bool:
            giver = self._mine.get(uid)
            if giver is None:
                return True  # of a lower priority, or the worker leaves anyway
            if self._beyond is not None:
                return giver.beyond_goal > picked.count(uid)
            there = giver.job.namespace
            if there == home:
                return giver.held_level - (picked.count(uid) + 1) * giver.step > taker.level
            taken = sum(self._mine[u].step for u in picked if u in self._mine and self._mine[u].job.namespace == there)
            return (self._held[there] - taken - giver.step) / self._weights[there] > mine

        return allowed


def _key(grant: Grant) -> tuple[int, bool, float, str]:
    return (grant.level, grant.next_loose() is None, grant.job.created, grant.job.uid)
