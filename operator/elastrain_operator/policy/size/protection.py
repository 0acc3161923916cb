"""The workers that hold the training state: the disruption budget and the marks for autoscalers protect them. Pure.

All ranks of a generation hold the same state; a worker outside of it holds none, or an older one. Parallel drains, or a
consolidation of nodes, could evict all holders of the only copy of a model. The budget names the holders by their
ordinals, so that it never blocks the eviction of a worker that holds nothing, and moves on with the state. The last
holder is not held back if a checkpoint has been written: an evicted worker saves the state before it leaves.

Cluster autoscaler removes no node with pods of a custom controller unless their annotation permits it; Karpenter
removes any node unless an annotation forbids it. The budget covers drains one after the other; the annotations keep an
autoscaler from starting a drain that the budget would then block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from elastrain.api.records import Phase, Progress
from elastrain_operator.facts import UNSCHEDULABLE, Coordination, DisruptionBudget, Mark, Pod
from elastrain_operator.pod.defaults import decides_evictions
from elastrain_operator.policy.size import replicas
from elastrain_resource import durability
from elastrain_resource.job import JobSpec


def holders(pods: Iterable[Pod], seen: Coordination | None) -> frozenset[str] | None:
    """Workers (pod names) whose memory holds the newest training state; None: unknown, so nothing may follow from it.

    Empty: the job has committed no step yet, or its state is lost. ``seen``: None also if etcd has lost its data. A
    joiner counts once its generation has committed a step: until then it may still receive the state.
    """
    if seen is None:
        return None
    if seen.progress is None:
        return None if any(m.generation for m in seen.members) else frozenset()
    number = _trained(seen.progress)
    if number is None:
        return frozenset()
    newest = seen.generation
    placed = newest.members if newest and newest.number == number else seen.earlier(number)
    if not placed:
        return None
    # By id: a worker of which a rank was restarted registers as another member. Its other ranks may hold the state.
    ids = {m.id for m in placed} | {m.id for m in seen.members if m.holds}
    live = {p.name for p in pods if not p.ending and not p.over}
    return frozenset(m.worker for m in seen.members if m.id in ids and m.worker in live)


def staying(pods: Collection[Pod], seen: Coordination | None) -> frozenset[str] | None:
    """The holders that neither leave by themselves nor were asked to. None: unknown."""
    held = holders(pods, seen)
    if held is None or seen is None:
        return None
    leaving = {m.worker for m in seen.members if m.phase is Phase.LEAVING} | {p.name for p in pods if p.terminating}
    return held - leaving - set(seen.target.leaving if seen.target else ())


def last_holders(holding: Collection[str], pods: Iterable[Pod]) -> frozenset[str]:
    """Those of the ``holding`` workers that hold the last copy as far as one node's drain is concerned: all of them if
    they share one node, which may be the only worker; else none. Workers without a node hold nothing."""
    nodes = {p.node for p in pods if p.name in holding}
    return frozenset(holding) if len(nodes) == 1 else frozenset()


def _trained(progress: Progress) -> int | None:
    """Number of the newest generation that has committed a step; None: none has."""
    if progress.rescales:  # the first commit of a generation adds its rescale
        return progress.rescales[-1].generation
    return progress.generation if progress.step else None


def disruption_budget(spec: JobSpec, pods: Collection[Pod], seen: Coordination | None) -> DisruptionBudget | None:
    """The budget of a job that has not ended; without ordinals: it needs none. None: unknown, so it stays as it is.

    ``seen``: None also if etcd has lost its data.
    """
    if not spec.protect_state:
        return DisruptionBudget()
    stay = staying(pods, seen)
    if stay is None or seen is None:
        return None
    size, holders = spec.group_size, [p for p in pods if p.name in stay]
    whole = [group for group in replicas.of(holders) if len(group) == size]
    if (len(whole) == 1 or len(stay) == 1) and _has_saved(spec, seen.progress):
        return DisruptionBudget()
    held = [p for group in whole for p in group] or holders  # of no whole group: workers of several hold it together
    # One eviction less than there are groups leaves one of them whole, whichever workers are evicted.
    least = 1 if size == 1 else len(held) - max(len(whole) - 1, 0)
    return DisruptionBudget(tuple(sorted(p.ordinal for p in held)), least)


def expected(wanted: int, pods: Iterable[Pod], silent: Collection[str], coming: int) -> int:
    """How many workers the job is to have, for budgets of users that count from it: those that it has, or that come.

    ``wanted``: the most; ``silent``: workers (names) that are lost with their node; ``coming``: pods that are created
    now. One for which no node has room counts only once it has one: no drain waits for it. One that was evicted counts
    until it is gone and its replacement is there, so that the next eviction waits for that.
    """
    there = [p for p in pods if not (p.over or p.ending or p.name in silent or _has_no_room(p))]
    return min(wanted, len(there) + coming)


def _has_no_room(pod: Pod) -> bool:
    return not pod.node and pod.trouble is not None and pod.trouble.reason == UNSCHEDULABLE


def _has_saved(spec: JobSpec, progress: Progress | None) -> bool:
    """Whether checkpoints outlive the workers, and the last save has succeeded."""
    state = progress.checkpoint if progress else None
    return state is not None and state.step > 0 and not state.error and not durability.problem(spec)


def marks(template: Mapping[str, Any], pods: Collection[Pod], budget: DisruptionBudget | None) -> tuple[Mark, ...]:
    """The workers whose annotations have to change. ``budget``: None: the holders of the state are unknown, so that all
    annotations stay; without ordinals: no worker has to be kept.

    If one node has all holders, one of them keeps it: a node with one such pod is not removed.
    """
    if budget is None or decides_evictions(template):
        return ()
    live = sorted((p for p in pods if not (p.over or p.ending or p.terminating)), key=lambda p: p.ordinal)
    held = [p.name for p in live if p.ordinal in budget.ordinals]
    if 1 < budget.least == len(held):  # of the last group, all
        keepers = held
    else:
        holders = last_holders(held, live)
        keepers = [p.name for p in live if p.name in holders][:1]
    return tuple(Mark(p.name, p.uid, p.name in keepers) for p in live if p.kept is not (p.name in keepers))
