"""Whether a job has succeeded: by rank 0's script or by every worker's script."""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.api.job import ConditionType, SuccessPolicy
from elastrain_operator.facts import Coordination, Pod, Verdict
from elastrain_operator.policy.ending import verdict as verdicts
from elastrain_operator.policy.losses.causes import judge


def verdict(policy: SuccessPolicy, pods: Sequence[Pod], members: Coordination | None) -> Verdict | None:
    """The verdict on a job whose training loop has succeeded on rank 0's worker; None: not yet.

    Under ``AllWorkers`` every other worker of the last generation has to succeed as well. Its work after the loop
    cannot be repeated (no loop is left to join), so a worker that fails or is lost then fails the job.
    """
    first = verdicts.success(pods, members)
    if first is None or policy is SuccessPolicy.RANK_ZERO or members is None or members.generation is None:
        return first  # without etcd, verdicts.success requires that all workers have succeeded
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
