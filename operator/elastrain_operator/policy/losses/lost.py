"""Which workers are lost: ended, terminating or silent without having been asked to leave."""

from __future__ import annotations

from collections.abc import Iterable

from elastrain_operator.model import Cause, Coordination, Loss, Pod
from elastrain_operator.policy.losses import causes


def losses(pods: Iterable[Pod], members: Coordination | None, leaving: frozenset[str]) -> tuple[Loss, ...]:
    """All lost workers among ``pods``; ``members`` is None if membership is unknown (never treated as empty)."""
    found = (_loss(p, members, p.name in leaving) for p in pods)
    return tuple(loss for loss in found if loss)


def _loss(pod: Pod, members: Coordination | None, asked_to_leave: bool) -> Loss | None:
    if pod.ending:
        loss = causes.judge(pod)
        # The operator may kill a leaving worker at its deadline; an error of the script still counts.
        return loss if loss and (not asked_to_leave or loss.cause is Cause.USER) else None
    if asked_to_leave or not pod.started:
        return None  # a pod that never ran held no state
    if pod.terminating:
        return causes.disrupted(pod)
    return causes.unreachable(pod) if is_silent(pod, members) else None


def is_silent(pod: Pod, members: Coordination | None) -> bool:
    """The pod is no longer Ready, and the member's lease has expired.

    One sign alone is not sufficient: a pod is not Ready for many reasons, and a member may be restarting its ranks.
    """
    if not pod.went_unready or not pod.started or pod.ending or members is None:
        return False
    return members.member_of(pod.name) is None
