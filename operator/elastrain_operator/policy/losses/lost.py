"""Which workers are lost: ended, terminating or silent without having been asked to leave."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastrain_operator.facts import Cause, Coordination, Loss, Pod
from elastrain_operator.policy.losses import causes


def losses(
    pods: Iterable[Pod],
    members: Coordination | None,
    leaving: Collection[str],
    alive: Collection[str] = (),
    gone: Iterable[Pod] = (),
) -> tuple[Loss, ...]:
    """All lost workers; ``members`` is None if membership is unknown (never treated as empty).

    ``leaving``: names of workers that were asked to leave. ``alive``: UIDs of pods that were known without a deletion
    and that the operator has not deleted: if one of them goes, another party has deleted it. ``gone``: pods that no
    longer exist, as last known.
    """
    found = [_loss(p, members, p.name in leaving, p.uid in alive) for p in pods]
    found += [_gone(p, p.name in leaving) for p in gone]
    return tuple(loss for loss in found if loss)


def _loss(pod: Pod, members: Coordination | None, asked_to_leave: bool, was_alive: bool) -> Loss | None:
    if pod.ending:
        return _ended(pod, asked_to_leave)
    if asked_to_leave:
        return None
    if pod.terminating:
        return causes.disrupted(pod) if pod.started or was_alive else None
    return causes.unreachable(pod) if is_silent(pod, members) else None


def _gone(pod: Pod, asked_to_leave: bool) -> Loss | None:
    """A pod that disappeared, perhaps before it was ever seen: it counts and paces its successor like any lost one."""
    if pod.ending:
        return _ended(pod, asked_to_leave)
    return None if asked_to_leave else causes.disrupted(pod)


def _ended(pod: Pod, asked_to_leave: bool) -> Loss | None:
    loss = causes.judge(pod)
    # The operator may kill a leaving worker at its deadline; an error of the script still counts.
    return loss if loss and (not asked_to_leave or loss.cause is Cause.USER) else None


def is_silent(pod: Pod, members: Coordination | None) -> bool:
    """The pod is no longer Ready, and the member's lease has expired.

    One sign alone is not sufficient: a pod is not Ready for many reasons, and a member may be restarting its ranks.
    """
    if not pod.went_unready or not pod.started or pod.ending or members is None:
        return False
    return members.member_of(pod.name) is None
