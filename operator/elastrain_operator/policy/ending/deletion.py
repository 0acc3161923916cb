"""A job that is being deleted and still exists, since a finalizer holds it: what happens to its pods. Pure.

Kubernetes' garbage collector deletes a job's pods only when the job itself is gone, and a foreign finalizer may hold it
for days. The deletion cannot be taken back, so the workers leave at once, as they would without that finalizer.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.api.job import ConditionType
from elastrain.api.names import headcount
from elastrain_operator.model import Deletion, Pod
from elastrain_operator.policy.report.conditions import Claim

ORPHAN = "orphan"
"""The finalizer of ``kubectl delete --cascade=orphan``: its user keeps the pods."""


def deletions(pods: Sequence[Pod], finalizers: Sequence[str]) -> tuple[Deletion, ...]:
    """Pods to delete now. Ended ones stay for ``kubectl logs``: they hold nothing, and go with the job."""
    if ORPHAN in finalizers:
        return ()
    return tuple(Deletion(p.name, p.uid, "the job is being deleted") for p in pods if not p.over and not p.terminating)


def claim(pods: Sequence[Pod], finalizers: Sequence[str]) -> Claim:
    """The condition PodsReady of such a job."""
    live = sum(not p.over for p in pods)
    text = "the job is being deleted"
    if live and ORPHAN in finalizers:
        text += f"; {headcount(live)} kept, by --cascade=orphan"
    elif live:
        text += f"; {headcount(live)} leaving"
    if finalizers:
        text += f"; its object remains until these finalizers are removed: {', '.join(finalizers)}"
    return Claim(ConditionType.PODS_READY, "False", "JobDeleted", text)
