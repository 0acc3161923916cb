"""The job's PodDisruptionBudget: of the workers that hold the training state, one stays; of groups, a whole one. Pure.

Parallel drains, or a consolidation of nodes, could otherwise evict all holders of the only copy of a model. The budget
names the holders by their ordinals, so that it never blocks the eviction of a worker that holds nothing (a joiner, a
spare, a pod that does not start). It moves on with the state: an evicted worker leaves at a step boundary, its
replacement receives the state, and the next holder may be evicted.

The last holder is not held back if a checkpoint has been written: an evicted worker saves the state before it leaves.
Without one, its eviction waits until another worker holds the state, the job ends, or ``spec.protectState`` is false.
"""

from __future__ import annotations

from collections.abc import Collection

from elastrain.api.job import JobSpec
from elastrain.api.records import Progress
from elastrain_operator.facts import Coordination, DisruptionBudget, Pod
from elastrain_operator.policy.report import durability
from elastrain_operator.policy.size import groups
from elastrain_operator.policy.size.holders import staying


def budget(spec: JobSpec, pods: Collection[Pod], seen: Coordination | None) -> DisruptionBudget | None:
    """The budget of a job that has not ended; without ordinals: it needs none. None: unknown, so it stays as it is.

    ``seen``: None also if etcd has lost its data.
    """
    if not spec.protect_state:
        return DisruptionBudget()
    stay = staying(pods, seen)
    if stay is None or seen is None:
        return None
    size, holders = spec.group_size, [p for p in pods if p.name in stay]
    whole = [group for group in groups.of(holders) if len(group) == size]
    if (len(whole) == 1 or len(stay) == 1) and _has_saved(spec, seen.progress):
        return DisruptionBudget()
    held = [p for group in whole for p in group] or holders  # of no whole group: workers of several hold it together
    # One eviction less than there are groups leaves one of them whole, whichever workers are evicted.
    least = 1 if size == 1 else len(held) - max(len(whole) - 1, 0)
    return DisruptionBudget(tuple(sorted(p.ordinal for p in held)), least)


def _has_saved(spec: JobSpec, progress: Progress | None) -> bool:
    """Whether checkpoints outlive the workers, and the last save has succeeded."""
    state = progress.checkpoint if progress else None
    return state is not None and state.step > 0 and not state.error and not durability.problem(spec)
