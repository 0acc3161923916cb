"""When has a job succeeded: with rank 0's script, or with every worker's?"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.api.job import ConditionType, SuccessPolicy
from elastrain_operator.model import Coordination, Pod
from elastrain_operator.policy.ending import verdict as verdicts
from elastrain_operator.policy.ending.verdict import Verdict
from elastrain_operator.policy.losses.causes import judge


def verdict(policy: SuccessPolicy, pods: Sequence[Pod], members: Coordination | None) -> Verdict | None:
    """The end of a job whose training loop has ended well on rank 0's worker; None: not yet.

    Under ``AllWorkers`` every other worker of the last generation has to end as well. What one of them does after the
    loop can not be done again (there is no loop to join any more), so one that fails or is lost then fails the job.
    """
    first = verdicts.success(pods, members)
    if first is None or policy is SuccessPolicy.RANK_ZERO or members is None or members.generation is None:
        return first  # without etcd, all have ended, and well: verdicts.success asks for no less
    there = {p.name: p for p in pods}
    for place in members.generation.members:
        pod = there.get(place.worker)
        why = f"the pod of worker {place.worker} is gone" if pod is None else _failure(pod)
        if why:
            text = f"training finished, but successPolicy is AllWorkers and {why}"
            return Verdict(ConditionType.FAILED, "WorkerFailedAfterTraining", text)
    still = any(not there[place.worker].ending for place in members.generation.members)
    return None if still else first


def _failure(pod: Pod) -> str:
    loss = judge(pod)
    return f"{loss.reason}: {loss.message}" if loss else ""
