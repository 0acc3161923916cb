"""Where workers fit during an allocation: per node, the free room now and later, and the workers that may still leave.

Workers are whole pods, so room is counted per node. A worker has one of three states: *kept* (granted again), *loose*
(exists, and is not granted yet: it may have to leave) or *displaced* (it has to leave, with all workers of its group).
During one allocation room only
shrinks, so a node that is too full for a kind of worker is never examined again: the cost is O(kinds x nodes +
workers). Mutable, used for one allocation; nothing outside it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

from elastrain_operator.allocation.match import takes
from elastrain_operator.allocation.snapshot import (
    PODS,
    Amounts,
    NodeRules,
    Snapshot,
    Worker,
    WorkerShape,
    overdue_words,
)

WINDOW = 16
"""Candidate nodes; the one on which the fewest workers are displaced is chosen."""
SCAN = 64
"""The search ends after this number of nodes on which no worker may be displaced."""

Vector = dict[str, int]
May = Callable[[str, Sequence[str]], bool]
"""(job that would lose one more worker, jobs that already lose one each by the same choice) → whether it may."""
Rank = Callable[[str], tuple[int, ...]]
"""Job → rank; workers of the lowest rank are displaced first."""


class Loose(NamedTuple):
    """A worker that may still leave to make room."""

    uid: str
    worker: Worker
    order: int
    """Its place among its job's workers: the highest leaves first."""


@dataclass(slots=True)
class _Line:
    """The nodes for one kind of worker, in the order in which they are filled."""

    nodes: list[str]
    start: int = 0
    """Nodes before this index are too full."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle amount of a worker's main resource on the nodes that accept it."""

    resource: str
    total: int
    largest: int
    """Most on one node."""
    nodes: int
    """Nodes that accept it, apart from resources."""
    short: str
    """The resource that is short on most of those nodes."""


def main_resource(demand: Amounts) -> str:
    """The resource that a worker is counted in: its extended resource (an accelerator), else CPU, memory or pods."""
    extended = [(-amount, name) for name, amount in demand if "/" in name]
    if extended:
        return min(extended)[1]
    names = [name for name, _ in demand]
    return next((name for name in ("cpu", "memory") if name in names), PODS)


class Room:
    """The room on all nodes."""

    def __init__(self, snapshot: Snapshot, now: datetime) -> None:
        self.looks = 0
        self._undo: list[list[Callable[[], None]]] = []
        """Of each transaction, the outermost first."""
        self._nodes = snapshot.nodes
        self._now: dict[str, Vector] = {n.name: dict(n.room) for n in snapshot.nodes}
        self._loose: dict[str, dict[tuple[str, str], Loose]] = {n.name: {} for n in snapshot.nodes}
        """By node, then by job (UID) and worker (name)."""
        self._groups: dict[tuple[str, str], list[Loose]] = {}
        """By job (UID) and group: its workers on nodes."""
        self._held: dict[str, Vector] = {n.name: {} for n in snapshot.nodes}  # by loose workers
        for job in snapshot.jobs:
            for order, worker in enumerate(job.workers):
                if worker.node in self._now:
                    self._loose[worker.node][job.uid, worker.name] = loose = Loose(job.uid, worker, order)
                    if worker.group:
                        self._groups.setdefault((job.uid, worker.group), []).append(loose)
                    self._change(self._held, worker.node, worker.demand, 1)
                    self._change(self._now, worker.node, worker.demand, -1)
        for held in snapshot.leaving:
            if held.node in self._now:
                self._change(self._now, held.node, held.demand, -1)
        # After all leaving workers have left, minus what has been promised since.
        self._later: dict[str, Vector] = {name: dict(free) for name, free in self._now.items()}
        self._overdue = [held for held in snapshot.leaving if held.due is not None and held.due <= now]
        for held in snapshot.leaving:
            if held.node in self._now and held not in self._overdue:
                self._change(self._later, held.node, held.demand, 1)
        # Where a pod could be bound now or soon, whatever it is meant for: all but the workers that stay.
        self._physical: dict[str, Vector] = {name: dict(free) for name, free in self._later.items()}
        self._taking: dict[NodeRules, list[str]] = {}
        self._lines: dict[tuple[WorkerShape, bool], _Line] = {}
        self._per_node: dict[WorkerShape, int] = {}
        self._with_spares = [n for n in snapshot.nodes if any(x.worker.spare for x in self._loose[n.name].values())]

    # ---- all or nothing ----------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Start a transaction, which may be part of another one."""
        self._undo.append([])

    def commit(self) -> None:
        changes = self._undo.pop()
        if self._undo:
            self._undo[-1] += changes

    def rollback(self) -> None:
        """Undo all changes since ``begin``."""
        for undo in reversed(self._undo.pop()):
            undo()

    @property
    def has_spares(self) -> bool:
        """Whether any node had a spare at the start."""
        return bool(self._with_spares)

    # ---- granting ----------------------------------------------------------------------------------------------------
    def keep(self, worker: Worker, uid: str) -> None:
        """An existing worker of a job stays."""
        self.looks += 1
        self._settle(worker, uid)

    def place(self, kind: WorkerShape, *, at_once: bool = False) -> bool:
        """Take free room for a worker; False: there is none. ``at_once``: its pod is bound before any other's."""
        line = self._line(kind, now=True)
        for i in range(line.start, len(line.nodes)):
            self.looks += 1
            name = line.nodes[i]
            if _has(self._now[name], kind.demand) and _has(self._later[name], kind.demand):
                self._advance(line, i)
                self._change(self._now, name, kind.demand, -1)
                self._change(self._later, name, kind.demand, -1)
                if at_once:
                    self._change(self._physical, name, kind.demand, -1)
                return True
        self._advance(line, len(line.nodes))
        return False

    def could_bind(self, kind: WorkerShape) -> bool:
        """Whether the scheduler could bind a pod of this kind to an existing node now or soon: to free room, to room
        that is promised to others, or where workers leave."""
        names = self._open(kind.place)
        self.looks += len(names)
        return any(_has(self._physical[name], kind.demand) for name in names)

    def displace(self, kind: WorkerShape, may: May, rank: Rank) -> list[Loose] | None:
        """Promise room that other workers have to leave first. Returns the workers displaced for it, which may be none
        if enough are already leaving; None: no node qualifies.

        Of the first nodes that qualify, it chooses the one where the fewest training workers, and the fewest of all,
        have to leave.
        """
        line = self._line(kind, now=False)
        best: tuple[tuple[int, int], str, list[Loose]] | None = None
        found = refused = 0
        for i in range(line.start, len(line.nodes)):
            self.looks += 1
            name = line.nodes[i]
            if not _has(self._later[name], kind.demand, self._held[name]):
                if i == line.start:
                    self._advance(line, i + 1)
                continue
            chosen = self._choose(name, kind.demand, may, rank)
            if chosen is None:
                refused += 1
            else:
                found += 1
                cost = (sum(x.worker.trains for x in chosen), len(chosen))
                if best is None or cost < best[0]:
                    best = (cost, name, chosen)
            if (best and best[0] == (0, 0)) or found >= WINDOW or refused >= SCAN:
                break
        return None if best is None else self._promise(best[1], kind, best[2])

    def give_back(self, kind: WorkerShape, rank: Rank) -> list[Loose] | None:
        """The same with only spares leaving, of any job; None: on no node are they sufficient."""
        for node in self._with_spares:
            self.looks += 1
            spares = [x for x in self._loose[node.name].values() if x.worker.spare]
            if spares and takes(node, kind.place):
                chosen = self._choose(node.name, kind.demand, lambda _uid, _picked: True, rank, only=spares)
                if chosen is not None:
                    return self._promise(node.name, kind, chosen)
        return None

    def _promise(self, node: str, kind: WorkerShape, leaving: list[Loose]) -> list[Loose]:
        for loose in leaving:
            self._settle(loose.worker, loose.uid)
            self._change(self._later, loose.worker.node, loose.worker.demand, 1)
            self._change(self._physical, loose.worker.node, loose.worker.demand, 1)
        self._change(self._later, node, kind.demand, -1)
        return leaving

    def idle(self, kind: WorkerShape) -> Idle:
        """The idle room for a kind of worker, for messages."""
        resource, names = main_resource(kind.demand), self._open(kind.place)
        free = [min(self._now[n].get(resource, 0), self._later[n].get(resource, 0)) for n in names]
        free = [max(f, 0) for f in free]
        lacking = {r: sum(self._now[n].get(r, 0) < amount for n in names) for r, amount in kind.demand}
        short = max(lacking, key=lambda r: (lacking[r], r == resource)) if names and lacking else resource
        self.looks += len(names)
        return Idle(resource, sum(free), max(free, default=0), len(names), short)

    def open(self, place: NodeRules) -> Sequence[str]:
        """Nodes that accept such workers, apart from resources."""
        return self._open(place)

    def overdue(self, place: NodeRules) -> str:
        """The pods that should be gone from those nodes, at the end of a message; empty: there are none."""
        names = self._open(place) if self._overdue else ()
        return overdue_words(held.what for held in self._overdue if held.node in names)

    def slots(self, kind: WorkerShape) -> int:
        """Workers of this kind that would fit if all workers left that are not granted yet."""
        names = self._open(kind.place)
        self.looks += len(names)
        return sum(max(_fits(self._later[n], kind.demand, self._held[n]), 0) for n in names)

    def per_node(self, kind: WorkerShape) -> int:
        """Most workers of this kind on one node; 1 if no node accepts them."""
        if kind not in self._per_node:
            names = set(self._open(kind.place))
            self.looks += len(names)
            self._per_node[kind] = max((_fits(n.room, kind.demand) for n in self._nodes if n.name in names), default=1)
        return max(self._per_node[kind], 1)

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _choose(
        self, node: str, demand: Amounts, may: May, rank: Rank, only: Iterable[Loose] | None = None
    ) -> list[Loose] | None:
        """The workers that have to leave ``node`` for ``demand``, spares first; None: those that may be displaced (if
        ``only`` is given: of these) do not hold enough."""
        later = self._later[node]
        need = {r: amount - later.get(r, 0) for r, amount in demand if amount > later.get(r, 0)}
        chosen: list[list[Loose]] = []
        uids: list[str] = []
        there = self._loose[node].values() if only is None else only
        for loose in sorted(there, key=lambda x: (not x.worker.spare, _rank(x, rank), x.uid, -x.order)):
            if not need:
                break
            useful = any(r in need for r, _ in loose.worker.demand)
            if not useful or any(loose in unit for unit in chosen):
                continue
            unit = self._replica_of(loose)
            working = [x.uid for x in unit if not x.worker.spare]
            if not working or may(loose.uid, [*uids, *working[1:]]):
                chosen.append(unit)
                uids += working
                for r, amount in _freed(unit, node).items():
                    need[r] = need.get(r, 0) - amount
                need = {r: n for r, n in need.items() if n > 0}
        self.looks += len(chosen)
        return None if need else self._spared(chosen, node, demand)

    def _spared(self, chosen: list[list[Loose]], node: str, demand: Amounts) -> list[Loose]:
        """``chosen`` without unneeded replicas: a large worker may have followed small ones."""
        kept = list(chosen)
        for unit in chosen:
            rest = [u for u in kept if u is not unit]
            if _has(self._later[node], demand, _freed((x for u in rest for x in u), node)):
                kept = rest
        return [x for u in kept for x in u]

    def _replica_of(self, loose: Loose) -> list[Loose]:
        """All loose workers of a group."""
        group = self._groups.get((loose.uid, loose.worker.group), [loose])
        return [x for x in group if (x.uid, x.worker.name) in self._loose[x.worker.node]]

    def _settle(self, worker: Worker, uid: str) -> None:
        """A worker is no longer loose."""
        there = self._loose.get(worker.node, {})
        loose = there.pop((uid, worker.name), None)
        if loose is None:
            return  # on a node that is gone
        if self._undo:
            self._undo[-1].append(partial(there.__setitem__, (uid, worker.name), loose))
        self._change(self._held, worker.node, worker.demand, -1)

    def _line(self, kind: WorkerShape, now: bool) -> _Line:
        """Fullest nodes first, so that whole nodes stay free for large workers (best fit)."""
        key = (kind, now)
        if key not in self._lines:
            resource, book = main_resource(kind.demand), self._now
            names = self._open(kind.place)
            self.looks += len(names)
            self._lines[key] = _Line(sorted(names, key=lambda n: (book[n].get(resource, 0), n)))
        return self._lines[key]

    def _open(self, place: NodeRules) -> list[str]:
        if place not in self._taking:
            self.looks += len(self._nodes)
            self._taking[place] = [n.name for n in self._nodes if takes(n, place)]
        return self._taking[place]

    def _advance(self, line: _Line, start: int) -> None:
        if start != line.start:
            if self._undo:
                self._undo[-1].append(partial(setattr, line, "start", line.start))
            line.start = start

    def _change(self, book: dict[str, Vector], node: str, demand: Amounts, sign: int) -> None:
        _add(book[node], demand, sign)
        if self._undo:
            self._undo[-1].append(partial(_add, book[node], demand, -sign))


def _rank(loose: Loose, rank: Rank) -> tuple[int, ...]:
    """Within a priority, workers that do not train are displaced before those that do."""
    priority, *others = rank(loose.uid)
    return (priority, loose.worker.trains, *others)


def _add(vector: Vector, demand: Iterable[tuple[str, int]], sign: int) -> None:
    for resource, amount in demand:
        vector[resource] = vector.get(resource, 0) + sign * amount


def _freed(workers: Iterable[Loose], node: str) -> Vector:
    """What ``node`` gains if these workers leave."""
    freed: Vector = {}
    for loose in workers:
        if loose.worker.node == node:
            _add(freed, loose.worker.demand, 1)
    return freed


def _has(vector: Vector, demand: Amounts, more: Vector | None = None) -> bool:
    if more is None:
        return all(vector.get(resource, 0) >= amount for resource, amount in demand)
    return all(vector.get(resource, 0) + more.get(resource, 0) >= amount for resource, amount in demand)


def _fits(vector: Mapping[str, int], demand: Amounts, more: Mapping[str, int] | None = None) -> int:
    """How often ``demand`` fits."""
    parts = [(vector.get(r, 0) + (more.get(r, 0) if more else 0)) // amount for r, amount in demand if amount]
    return min(parts, default=0)
