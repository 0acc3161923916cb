"""What a job asks, its Workloads and its pods → its size and the writes to its Workloads. Pure.

One Workload, the base, stands for ``minReplicas``; each further replica is a Workload of its own, an extra, with a
lower priority, so that Kueue's ordinary preemption takes extras before the base of any job of the same class, and the
later extras of a large job for the first ones of a small one.

Invariants: a Workload is named after its index, so that no replica ever has two; a pod is created only as a charge of
an admitted Workload; a Workload with a reservation is released or deleted only when no pod is charged to it; at most
``AHEAD`` extras wait in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Charge, PodPlacement
from elastrain_operator.kueue import explain
from elastrain_operator.kueue.workload import (
    AHEAD,
    Activate,
    Change,
    Create,
    Decision,
    Delete,
    Finish,
    Holder,
    Memory,
    Ready,
    Release,
    Request,
    View,
    Workload,
    Write,
)

MISSING_PATIENCE = timedelta(seconds=30)
"""Workers go on for so long without their base Workload: the deletion of Kueue's CRDs looks like that at first."""
BACKOFF = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds until the next extra is queued, by the number of extras in a row that Kueue took back unready."""


def governs(request: Request, workloads: Iterable[Workload]) -> bool:
    """Whether Kueue decides the job's size: it names a queue, or has not given back all Workloads since it did."""
    return bool(request.queue) or any(True for _ in workloads)


def decide(request: Request, view: View, holders: Sequence[Holder], memory: Memory, now: datetime) -> Decision:
    """The decision for one job at ``now``."""
    given = _Input(request, view, tuple(holders), memory, now)
    if view.problem:
        return _unknown(given)
    if request.ended:
        return Decision(Share(0, "Finished", request.ended), unbound=(), writes=tuple(_finish(given)), memory=memory)
    return _go_on(given)


class _Input:
    """The input, and what follows from it."""

    def __init__(
        self, request: Request, view: View, holders: tuple[Holder, ...], memory: Memory, now: datetime
    ) -> None:
        self.request, self.view, self.holders, self.memory, self.now = request, view, holders, memory, now
        self.base = next((w for w in view.workloads if w.index == 0), None)
        self.extras = sorted((w for w in view.workloads if w.index > 0), key=lambda w: w.index)
        self._charged: dict[str, list[Holder]] = {}
        for holder in holders:
            self._charged.setdefault(holder.workload, []).append(holder)

    def pods(self, workload: Workload) -> Sequence[Holder]:
        """Those charged to it."""
        return self._charged.get(workload.name, ())

    @cached_property
    def moves(self) -> bool:
        """Whether the base no longer fits the job: its pods leave, and another one takes its place."""
        base = self.base
        return base is not None and (base.finished or self.is_short or (self.differs and not self.held))

    @cached_property
    def is_short(self) -> bool:
        """Whether the base is for less than ``minReplicas``."""
        return self.base is not None and self.base.count < self.request.minimum * self.request.pods

    @cached_property
    def differs(self) -> bool:
        """Whether the base has another queue, or is for other pods."""
        base, request = self.base, self.request
        return base is not None and (base.shape != request.shape or base.queue != request.queue)

    @cached_property
    def held(self) -> str:
        """Why a running job does not move: its workers would leave, and could not queue again. Empty: it need not."""
        base, request = self.base, self.request
        if base is None or not base.runs or not self.differs or not request.queue or self.is_short:
            return ""
        return explain.closed(request, self.view)

    @property
    def keeps_template(self) -> bool:
        """Whether a pod of the present template has no place: what the base admits is another one."""
        return bool(self.held) and self.base is not None and self.base.shape != self.request.shape

    def placed(self, workload: Workload) -> bool:
        """Whether all its flavors are known. Without them no pod is created; those that exist stay."""
        return all(f in self.view.flavors for f in workload.flavors)

    @cached_property
    def on(self) -> Workload | None:
        """The base, if its pods may exist."""
        base = self.base
        runs = base is not None and base.runs and not self.moves and not self.request.suspend
        return base if runs else None

    @cached_property
    def most(self) -> int:
        """Extras that the job wants."""
        return max(self.request.wanted - self.on.count // self.request.pods, 0) if self.on else 0

    @cached_property
    def fit(self) -> list[Workload]:
        """Extras that the job can use, those that stay longest first."""
        base = self.on
        if base is None:
            return []

        def usable(extra: Workload) -> bool:
            same = extra.queue == base.queue and extra.shape == base.shape and extra.count == self.request.pods
            here = not extra.reserved or extra.flavors == base.flavors
            return same and here and extra.active and not (extra.evicted or extra.finished or extra.going)

        def worth(extra: Workload) -> tuple[bool, bool, int, int]:
            pods = self.pods(extra)
            return (not extra.runs, not pods, -min((p.leaves_first for p in pods), default=0), extra.index)

        return sorted(filter(usable, self.extras), key=worth)

    @cached_property
    def ahead(self) -> int:
        """Extras that may wait in the queue now."""
        queue = self.view.queue
        return 0 if queue is None or self.held or (queue.strict and not self.request.always_ahead) else AHEAD

    @cached_property
    def kept(self) -> list[Workload]:
        """The extras that stay."""
        chosen, waiting = [], 0
        for extra in self.fit[: self.most]:
            if not extra.reserved:
                waiting += 1
                if waiting > self.ahead:
                    continue
            chosen.append(extra)
        return chosen

    @cached_property
    def waiting(self) -> list[Workload]:
        """Kept extras without admission."""
        return [w for w in self.kept if not w.runs]

    @cached_property
    def evicted(self) -> tuple[Workload, ...]:
        """Evicted and not yet counted."""
        return tuple(w for w in self.taken_back if w.uid not in self.memory.evicted)

    @cached_property
    def taken_back(self) -> tuple[Workload, ...]:
        """Evicted Workloads that still hold quota."""
        return tuple(w for w in self.view.workloads if w.evicted and w.reserved)


def _unknown(given: _Input) -> Decision:
    """Nothing starts and nothing stops: the size follows the workers that exist."""
    live = len(given.holders) // given.request.pods
    share = Share(min(given.request.size, live), "CapacityUnknown", explain.unknown(given.request, given.view.problem))
    return Decision(share, memory=given.memory)


def _finish(given: _Input) -> Iterable[Write]:
    """The job has ended: its Workloads follow as soon as no pod is charged to them."""
    for workload in given.view.workloads:
        if workload.going or given.pods(workload):
            continue
        if workload.index:
            yield Delete(workload.name, workload.uid)
        elif not workload.finished:
            yield Finish(workload.name, workload.uid, given.request.ended)


def _go_on(given: _Input) -> Decision:
    memory = _remember(given)
    if memory.missing is not None and given.now < memory.missing + MISSING_PATIENCE:
        until = memory.missing + MISSING_PATIENCE
        size = min(given.request.size, len(given.holders) // given.request.pods)
        return Decision(Share(size, "Evicted", explain.missing(given.request)), memory=memory, again=until)
    running = [w for w in (given.on, *given.kept) if w is not None and w.runs]
    size = sum(w.count for w in running) // given.request.pods
    stay = {w.name for w in running}
    release = frozenset(h.name for h in given.holders if h.workload not in stay)
    taken_back = {w.name for w in given.extras if w.evicted}
    evicted = frozenset(h.name for h in given.holders if h.workload in taken_back)  # leave at any size: others wait
    reason, message = explain.why(
        explain.Admission(given.request, given.view, given.base, given.on, size, given.waiting, given.held)
    )
    return Decision(
        share=Share(size, reason, message, release=release, replace=evicted, keeps_template=given.keeps_template),
        charges=tuple(_charges(given, running)),
        unbound=tuple(_unbound(given, running)),
        writes=(*_base_writes(given), *_extra_writes(given, memory)),
        memory=memory,
        preempted=given.evicted,
        again=memory.until if memory.until and memory.until > given.now else None,
    )


def _remember(given: _Input) -> Memory:
    """What the next pass needs."""
    memory = given.memory
    refused, until = memory.refused, memory.until
    if any(w.ready for w in given.kept):
        refused = 0
    if any(w.index > 0 for w in given.evicted):
        until = given.now + timedelta(seconds=BACKOFF[min(refused, len(BACKOFF) - 1)])
        refused += 1
    lacks_base = (given.base is None or given.base.going) and not given.request.suspend
    runs = any(h.workload == given.request.base for h in given.holders)
    missing = (memory.missing or given.now) if lacks_base and runs else None
    return replace(
        memory, evicted=frozenset(w.uid for w in given.taken_back), refused=refused, until=until, missing=missing
    )


def _charges(given: _Input, running: Iterable[Workload]) -> Iterable[Charge]:
    """Vacant places. A leaving pod holds its own until it is gone."""
    for workload in () if given.keeps_template else filter(given.placed, running):
        vacant = workload.count - len(given.pods(workload))
        for _ in range(vacant):
            yield Charge(workload.name, _placement(given, workload), workload.topology)


def _unbound(given: _Input, running: Iterable[Workload]) -> Iterable[tuple[PodPlacement, int]]:
    """Admitted pods that hold no node's room yet."""
    for workload in filter(given.placed, running):
        missing = workload.count - sum(h.bound for h in given.pods(workload))
        if missing > 0:
            yield _placement(given, workload), missing


def _placement(given: _Input, workload: Workload) -> PodPlacement:
    """The flavors' node labels and tolerations, then the updates of the admission checks."""
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for name in workload.flavors:
        flavor = given.view.flavors[name]
        selector |= dict(flavor.labels)
        tolerations += flavor.tolerations
    updates = workload.updates
    return PodPlacement(
        tuple(sorted((selector | dict(updates.selector)).items())),
        (*tolerations, *updates.tolerations),
        updates.labels,
        updates.annotations,
    )


def _base_writes(given: _Input) -> Iterable[Write]:
    base, request, view = given.base, given.request, given.view
    if base is None:
        asks = request.queue and not request.suspend and not given.holders
        if asks and view.priority is not None and view.queue is not None:
            yield Create(request.base, 0, request.minimum * request.pods, view.priority)
        return
    if base.going:
        return
    empty = not given.pods(base)
    if given.moves:
        if base.reserved or base.finished or not request.queue or not _may_change(given, base):
            if not given.holders:
                yield Delete(base.name, base.uid)
            return
        yield Change(base.name, base.uid, queue=request.queue)
        return
    if request.suspend and (base.active or not base.suspended):
        yield Activate(base.name, base.uid, active=False)
    elif not request.suspend and base.suspended:
        yield Activate(base.name, base.uid, active=True)
    if base.evicted and base.reserved and empty:
        yield Release(base.name, base.uid)
    elif given.on:
        yield from _readiness(given, base)
    yield from _priority(given, base)


def _may_change(given: _Input, base: Workload) -> bool:
    """Whether only the queue differs, which Kueue lets a Workload without reservation change."""
    return base.shape == given.request.shape and base.count >= given.request.minimum * given.request.pods


def _priority(given: _Input, base: Workload) -> Iterable[Write]:
    """A changed class. Kueue itself follows a changed value of the base's class."""
    value, request = given.view.priority, given.request
    if value is None:
        return
    if base.priority_class != request.priority_class and base.priority_class and request.priority_class:
        yield Change(base.name, base.uid, priority=value, priority_class=request.priority_class)
    elif base.priority != value and not base.priority_class:
        yield Change(base.name, base.uid, priority=value)


def _readiness(given: _Input, workload: Workload) -> Iterable[Write]:
    ready = sum(h.ready for h in given.pods(workload)) >= workload.count
    if ready != workload.ready:
        yield Ready(workload.name, workload.uid, ready)


def _extra_writes(given: _Input, memory: Memory) -> Iterable[Write]:
    kept = {w.name for w in given.kept}
    for extra in given.extras:
        if extra.name in kept or extra.going:
            continue
        if not given.pods(extra):
            yield Delete(extra.name, extra.uid)
    base, top = given.on, given.view.priority
    if base is None or top is None:
        return
    for rank, extra in enumerate(sorted(given.kept, key=lambda w: (not w.reserved, w.index)), start=1):
        if extra.priority != top - rung(rank):
            yield Change(extra.name, extra.uid, priority=top - rung(rank))
        if extra.runs:
            yield from _readiness(given, extra)
    if (memory.until is not None and memory.until > given.now) or not given.placed(base):
        return
    missing = min(given.most - len(given.kept), given.ahead - len([w for w in given.kept if not w.reserved]))
    for rank, index in enumerate(_free(given, missing), start=len(given.kept) + 1):
        yield Create(given.request.extra_name(index), index, given.request.pods, top - rung(rank))


def rung(rank: int) -> int:
    """By how much the priority of a job's ``rank``-th extra is below that of its base: 1, 2, 2, 3, 3, 3, 3, 4, …

    An extra preempts only extras of a higher rung, so that jobs of one class come to as many extras as each other
    within a factor of two, and no two take turns. Waiting extras rank last: none preempts one of its own job. The
    rungs of 1,000 extras are 10, so that other classes are rarely met.
    """
    return rank.bit_length()


def _free(given: _Input, number: int) -> Iterable[int]:
    """The lowest indices that no Workload has."""
    taken = {w.index for w in given.view.workloads}
    charged = {h.workload for h in given.holders}
    index = 1
    while number > 0:
        if index not in taken and given.request.extra_name(index) not in charged:
            number -= 1
            yield index
        index += 1
