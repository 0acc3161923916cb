"""Which workers are lost: gone, going, or silent, without having been asked to leave."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain_operator.model import Cause, Coordination, Loss, Pod
from elastrain_operator.policy.losses import causes


def losses(pods: Iterable[Pod], members: Coordination | None, leaving: frozenset[str]) -> tuple[Loss, ...]:
    """All lost workers among ``pods``; ``members`` is None where membership is not known (never taken for empty)."""
    found = (_loss(p, members, p.name in leaving) for p in pods)
    return tuple(loss for loss in found if loss)


def _loss(pod: Pod, members: Coordination | None, asked_to_leave: bool) -> Loss | None:
    if pod.ending:
        loss = causes.judge(pod)
        # A leaving worker can be killed by the operator at its deadline; a script's error is still an error.
        return loss if loss and (not asked_to_leave or loss.cause is Cause.USER) else None
    if asked_to_leave or not pod.started:
        return None  # a pod that never ran took nothing with it
    if pod.terminating:
        return causes.disrupted(pod)
    return causes.unreachable(pod) if is_silent(pod, members) else None


def is_silent(pod: Pod, members: Coordination | None) -> bool:
    """Neither node nor agent answers: the pod was Ready and is not, and etcd has let the member's lease expire.

    One sign alone is not enough: a pod is not Ready for many reasons, and a member may be restarting its ranks.
    """
    if not pod.went_unready or not pod.started or pod.ending or members is None:
        return False
    return members.member_of(pod.name) is None
