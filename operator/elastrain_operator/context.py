"""The observation of a job and the values derived from it, each computed once: the input of all decisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from elastrain.api.job import JobSpec, JobStatus, LastFailure, LossStreak, Withdrawal
from elastrain_operator.model import (
    Coordination,
    DisruptionBudget,
    LoopState,
    Loss,
    Observed,
    Pod,
    Refusal,
    RefusalKind,
    Slot,
    Trouble,
)
from elastrain_operator.policy.ending import verdict as verdicts
from elastrain_operator.policy.losses import arrival, exclusion, failures, pending, restarts, streak, unheard
from elastrain_operator.policy.losses import lost as losses
from elastrain_operator.policy.report import data_loss, progress
from elastrain_operator.policy.size import budget as budgets
from elastrain_operator.policy.size import claims, drain, gang, groups, leaving, rollout, spares, wanted, workers
from elastrain_operator.policy.size import victims as victims_policy
from elastrain_operator.policy.size.gang import Attempt, Gang
from elastrain_operator.policy.size.rollout import Rollout, Scene


@dataclass(frozen=True)
class PlanContext:
    """The input of a plan and what follows from it, each computed once."""

    spec: JobSpec
    status: JobStatus
    observed: Observed
    state: LoopState
    now: datetime
    drain_extra: float

    @cached_property
    def etcd(self) -> Coordination | None:
        """The job's records; None if etcd is unknown."""
        return self.observed.coordination

    @cached_property
    def members(self) -> Coordination | None:
        """The same, but also None while records are missing that members write again: etcd has lost data, and the
        absence of a member proves nothing."""
        return None if data_loss.is_awaited(self.lost_since, self.now) else self.etcd

    @cached_property
    def lost_since(self) -> datetime | None:
        """Since when etcd lacks records that it has had."""
        return data_loss.since(self.state.lost_since, self.status, self.etcd, self.now)

    @cached_property
    def floor(self) -> int:
        """``target.above``; call it only while etcd is known."""
        assert self.etcd is not None
        return data_loss.floor(self.status, self.etcd, self.lost_since is not None)

    @cached_property
    def since(self) -> dict[str, datetime]:
        """When each leaving worker (pod name) was asked."""
        return leaving.since(self.status)

    @cached_property
    def told(self) -> frozenset[str]:
        """Workers already asked to leave (names), whether they still exist or not."""
        return frozenset(self.etcd.target.leaving if self.etcd and self.etcd.target else ()) | self.since.keys()

    @cached_property
    def asked(self) -> frozenset[str]:
        """Workers already asked to leave that still exist (names). The target keeps them until the pod is gone."""
        return self.told & {p.name for p in self.observed.pods}

    @cached_property
    def losses(self) -> tuple[Loss, ...]:
        state = self.state
        ended = losses.losses(self.observed.pods, self.members, self.told, state.alive, state.gone.values())
        return (*ended, *(unheard.loss(p) for p in self.observed.pods if p.uid in self.overdue))

    @cached_property
    def count(self) -> restarts.Count:
        return restarts.count(self.status.restarts, self.status.counted_failures, self.losses, self.observed.pods)

    @cached_property
    def last_failure(self) -> LastFailure | None:
        return failures.last_failure(self.status.last_failure, self.count.fresh, self.now)

    @cached_property
    def unheard(self) -> dict[str, datetime]:
        """Pods (UIDs) that run without training or answering, and since when."""
        idle = self.finishing or self.spec.suspend  # agents may have ended their membership
        running = [
            p for p in self.observed.pods
            if not (p.ending or p.terminating or p.name in self.asked or losses.is_silent(p, self.members))
        ]  # fmt: skip
        return unheard.update(self.state.unheard, running, None if idle else self.members, self.now)

    @cached_property
    def overdue(self) -> frozenset[str]:
        """Those whose time to answer is over (UIDs)."""
        return unheard.overdue(self.unheard, self.now)

    @cached_property
    def silent(self) -> frozenset[str]:
        """Workers whose node and lease are silent, or whose agents have not answered in time (names)."""
        return frozenset(
            p.name for p in self.observed.pods if p.uid in self.overdue or losses.is_silent(p, self.members)
        )

    @cached_property
    def budget(self) -> DisruptionBudget | None:
        """The disruption budget of the job while it has not ended; None: unknown."""
        return budgets.budget(self.spec, self.observed.pods, self.members)

    @cached_property
    def gang(self) -> Gang:
        """Attempts to start the minimum, where the operator does not share the cluster out; unchanged while etcd is
        unknown."""
        share, spec = self.observed.share, self.spec
        if self.members is None:
            return self.state.gang
        shared = share is not None and not share.blind
        if shared or spec.suspend or self.finishing or claims.has_state(self.workers, self.status, self.etcd):
            return Gang()
        bound = sum(bool(p.node) for p in self.workers)
        quota = self.refusal is not None and self.refusal.kind is RefusalKind.QUOTA_EXCEEDED
        holds = bound > 0 or (quota and bool(self.workers))
        return gang.update(
            self.state.gang, Attempt(self.observed.job.uid, spec.min_replicas * spec.group_size, bound, holds), self.now
        )

    @cached_property
    def workers(self) -> tuple[Pod, ...]:
        return workers.active(self.observed.pods, self.asked, self.silent)

    @cached_property
    def units(self) -> tuple[Pod, ...]:
        """What is counted as replicas: the workers, or one pod for each group of several workers."""
        return groups.stand_ins(self.workers, self.spec.group_size, rollout.version(self.spec.template))

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """Where groups lack a worker that is to be created now."""
        staying = [p for p in self.workers if p not in self.victims and p not in self.withdrawn]
        return groups.slots(staying, self.observed.pods, self.spec.group_size, 0)

    @cached_property
    def troubles(self) -> dict[str, Trouble]:
        """Why workers (pod names) do not train, whether it is to be reported yet or not."""
        return arrival.troubles(self.workers, self.members, self.exclusions.nodes)

    @cached_property
    def desired(self) -> int:
        """Desired replicas now; none while a minimum that could not be bound is released."""
        if self.gang.until is not None:
            return 0
        return wanted.wanted(self.spec, self.status, self.observed.share)

    @cached_property
    def spares(self) -> int:
        """Desired warm spares now, beside the desired workers."""
        old = self.status.generation
        in_force = progress.in_force(old, self.members)[0] if self.members else old
        return spares.wanted(self.spec, self.desired, len(self.units), in_force, self.observed.share)

    @cached_property
    def beyond(self) -> int:
        """Replicas that may exist beyond the desired ones: spares, and those that wait for an autoscaler's nodes."""
        share = self.observed.share
        return self.spares + (share.pending if share and share.size is not None and self.desired else 0)

    @cached_property
    def refusal(self) -> Refusal | None:
        """The standing refusal of a pod of the present spec, if it is about this job."""
        refusal = self.state.refusal
        current = refusal and refusal.generation == self.observed.job.generation and refusal.kind.lasts
        return refusal if current else None

    @property
    def is_admitted(self) -> bool:
        """Whether the API server has admitted a pod of the present template in a dry run."""
        return self.state.admitted == rollout.version(self.spec.template)

    @property
    def must_probe(self) -> bool:
        """Whether the allocator waits for the API server's answer about a pod of the job."""
        share = self.observed.share
        return bool(share and share.probe) and not self.finishing and not (self.is_admitted and self.refusal is None)

    @property
    def is_undecided(self) -> bool:
        """Whether the job is new and the allocator has not answered yet: it does within about a second."""
        share, new = self.observed.share, self.status.desired_replicas is None and not self.observed.pods
        return new and share is not None and share.size is None and not share.blind and not self.spec.suspend

    @cached_property
    def victims(self) -> tuple[Pod, ...]:
        """Workers to be asked to leave now; none while etcd is unknown or the job is finishing."""
        if self.members is None or self.finishing:
            return ()
        chosen = groups.with_mates(self.rollout.leave, self.workers)
        others = [p for p in self.workers if p not in chosen]
        most, minimum = self.desired + self.rollout.extra, self.spec.min_replicas
        more = victims_policy.choose(others, most, minimum, self.members, self.observed.share, spares=self.beyond)
        return (*chosen, *more)

    @cached_property
    def rollout(self) -> Rollout:
        """Actions for workers of another version of the template."""
        if self.members is None or self.finishing:
            return Rollout()
        refusal = self.state.refusal
        if self.observed.seats is not None:
            refusal = refusal or Refusal(
                RefusalKind.QUOTA_EXCEEDED, "", self.now, generation=self.observed.job.generation
            )
        return rollout.rollout(
            Scene(
                workers=self.units,
                pods=self.observed.pods,
                version=rollout.version(self.spec.template),
                desired=self.desired,
                minimum=self.spec.min_replicas,
                at_a_time=self.spec.max_unavailable,
                leaving=len(groups.of(p for p in self.observed.pods if p.name in self.asked and not p.over)),
                refusal=refusal if refusal and refusal.generation == self.observed.job.generation else None,
                members=self.members,
                now=self.now,
                spares=self.beyond,
            )
        )

    @cached_property
    def step(self) -> int | None:
        """Committed steps, as last reported."""
        return self.etcd.progress.step if self.etcd and self.etcd.progress else self.status.step

    @cached_property
    def streak(self) -> LossStreak | None:
        return streak.update(self.status.loss_streak, self.count.fresh, self.step, self.now)

    @cached_property
    def late(self) -> tuple[Pod, ...]:
        """Workers that have not started in time and are withdrawn; if they are needed, a verdict comes first."""
        workers = [p for p in self.workers if p not in self.victims and p.name not in self.signals]
        return pending.late(workers, self.spec.pending_deadline_seconds, self.now)

    @cached_property
    def withdrawn(self) -> tuple[Pod, ...]:
        """These, and their whole groups, which hold resources in vain; not workers that train for another group."""
        trains = [p for p in self.workers if self.members is None or self.members.trains(p.name)]
        return tuple(p for p in groups.with_mates(self.late, self.workers) if p not in trains)

    @cached_property
    def signals(self) -> frozenset[str]:
        """Workers (names) that stay Pending beyond the desired number, for an autoscaler to see."""
        waiting = sorted((p for p in self.workers if not p.node), key=lambda p: -p.ordinal)
        size = self.spec.group_size
        more = min(len(self.workers) - self.desired * size, (self.beyond - self.spares) * size)
        return frozenset(p.name for p in waiting[: max(more, 0)])

    @cached_property
    def withdrawal(self) -> Withdrawal | None:
        fresh = pending.withdraw(self.late, self.spec.pending_deadline_seconds, self.now)
        return fresh or pending.continued(self.status.withdrawal, self.units, self.spec.min_replicas, self.now)

    @cached_property
    def exclusions(self) -> exclusion.NodeExclusions:
        """Nodes that new workers avoid, including losses of this pass."""
        old, cooldown = self.status, self.spec.node_cooldown_seconds
        return exclusion.update(old.excluded_nodes, old.node_losses, self.count.fresh, cooldown, self.now)

    @cached_property
    def finishing(self) -> bool:
        return verdicts.finishing(self.observed.pods, self.etcd)

    @cached_property
    def leaving(self) -> frozenset[str]:
        started = {p.name for p in self.withdrawn if p.started}
        return self.asked | {p.name for p in self.victims} | started

    @cached_property
    def start(self) -> datetime | None:
        """Since when the job has been active, as batch/v1 counts it: from creation or from the end of a suspension."""
        if self.spec.suspend:
            return None
        return datetime.fromisoformat(self.status.start_time) if self.status.start_time else self.now

    def due(self, pod: Pod) -> datetime:
        """When a leaving worker is deleted in any case."""
        return drain.deadline(pod, self.since.get(pod.name, self.now), self.drain_extra)
