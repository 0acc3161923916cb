"""The steps from an observation to a plan, in their order: each is a value, and reads only those before it. Pure.

:mod:`elastrain_operator.job.plan` takes them one after the other; each decision itself is a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from elastrain_operator.facts import (
    Charge,
    Coordination,
    DisruptionBudget,
    Loss,
    Observed,
    Pod,
    Refusal,
    RefusalKind,
    Slot,
    Trouble,
)
from elastrain_operator.job.state import LoopState
from elastrain_operator.pod.admitted import Admitted
from elastrain_operator.policy import ending
from elastrain_operator.policy.losses import counting, data_loss, exclusion, pacing, starting
from elastrain_operator.policy.report import training
from elastrain_operator.policy.size import leavers, protection, replicas, rollout, sizes
from elastrain_operator.policy.size.rollout import Rollout
from elastrain_resource.job import JobSpec, JobStatus, LastFailure, LossStreak, Withdrawal


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of a plan."""

    spec: JobSpec
    status: JobStatus
    observed: Observed
    state: LoopState
    now: datetime
    version: str
    """Of the present template."""

    @property
    def is_undecided(self) -> bool:
        """Whether the job is new and the allocator has not answered yet: it does within about a second. That it cannot,
        since the cluster is unknown, is an answer."""
        share, new = self.observed.share, self.status.desired_replicas is None and not self.observed.pods
        return new and share is not None and share.size is None and not share.is_answer and not self.spec.suspend


# ---- 1: what may be believed ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Known:
    """What may be believed."""

    etcd: Coordination | None
    """The job's records; None if etcd is unknown."""
    members: Coordination | None
    """The same, but also None while records are missing that members write again: etcd has lost data, and the absence
    of a member proves nothing."""
    lost_since: datetime | None
    """Since when etcd lacks records that it has had."""
    floor: int
    """``target.above``; 0 while etcd is unknown."""
    since: Mapping[str, datetime]
    """When each leaving worker (pod name) was asked."""
    all_leaving: frozenset[str]
    """Workers already asked to leave (names), whether they still exist or not."""
    draining: frozenset[str]
    """Those that still exist. The target keeps them until the pod is gone."""
    finishing: bool
    """The training loop has ended; scripts are ending."""
    step: int | None
    """Committed steps, as last reported."""
    start: datetime | None
    """Since when the job has been active, as batch/v1 counts it: from creation or from the end of a suspension."""

    def is_leaving(self, pod: Pod, now: datetime) -> bool:
        """Whether a worker that was asked to leave still has its place."""
        return pod.name in self.draining and not leavers.has_left(pod, self.members, now)


def known(facts: Facts) -> Known:
    """Which records count, and what they say of the job as a whole."""
    status, etcd, now = facts.status, facts.observed.coordination, facts.now
    lost_since = data_loss.since(facts.state.lost_since, status, etcd, now)
    since = leavers.leaving_since(status)
    all_leaving = frozenset(etcd.target.leaving if etcd and etcd.target else ()) | since.keys()
    start = datetime.fromisoformat(status.start_time) if status.start_time else now
    return Known(
        etcd=etcd,
        members=None if data_loss.is_awaited(lost_since, now) else etcd,
        lost_since=lost_since,
        floor=data_loss.floor(status, etcd, lost_since is not None) if etcd else 0,
        since=since,
        all_leaving=all_leaving,
        draining=all_leaving & {p.name for p in facts.observed.pods},
        finishing=ending.finishing(facts.observed.pods, etcd),
        step=etcd.progress.step if etcd and etcd.progress else status.step,
        start=None if facts.spec.suspend else start,
    )


# ---- 2: who is lost ------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Lost:
    """Who is lost, each counted once, and what follows from it."""

    silent_agents: Mapping[str, datetime]
    """Pods (UIDs) that run without training or answering, and since when."""
    overdue: frozenset[str]
    """Those whose time to answer is over (UIDs)."""
    silent: frozenset[str]
    """Workers whose node and lease are silent, or whose agents have not answered in time (names)."""
    losses: tuple[Loss, ...]
    count: counting.Count
    last_failure: LastFailure | None
    streak: LossStreak | None
    exclusions: exclusion.NodeExclusions
    """Nodes that new workers avoid, including losses of this pass."""


def lost(facts: Facts, known: Known) -> Lost:
    """The lost workers, and what their losses add up to."""
    spec, status, state, now, pods = facts.spec, facts.status, facts.state, facts.now, facts.observed.pods
    idle = known.finishing or spec.suspend  # agents may have ended their membership
    silenced = {p.name for p in pods if counting.is_silent(p, known.members)}
    running = [p for p in pods if not (p.ending or p.terminating or p.name in known.draining or p.name in silenced)]
    quiet = starting.update_silent(state.silent_agents, running, None if idle else known.members, now)
    overdue = starting.overdue_agents(quiet, now)
    found = counting.losses(pods, known.members, known.all_leaving, state.alive, state.disappeared.values())
    every = (*found, *(starting.silent_loss(p) for p in pods if p.uid in overdue))
    count = counting.count(status.restarts, status.counted_failures, every, pods)
    return Lost(
        silent_agents=quiet,
        overdue=overdue,
        silent=frozenset(silenced) | {p.name for p in pods if p.uid in overdue},
        losses=every,
        count=count,
        last_failure=counting.last_failure(status.last_failure, count.fresh, now),
        streak=counting.update_streak(status.loss_streak, count.fresh, known.step, now),
        exclusions=exclusion.update(
            status.excluded_nodes, state.node_losses, count.fresh, spec.node_cooldown_seconds, now
        ),
    )


# ---- 3: who counts -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class There:
    """Who counts as a worker."""

    workers: tuple[Pod, ...]
    units: tuple[Pod, ...]
    """What is counted as replicas: the workers, or one pod for each group of several workers."""
    troubles: dict[str, Trouble]
    """Why workers (pod names) do not train, whether it is to be reported yet or not."""
    budget: DisruptionBudget | None
    """The disruption budget of the job while it has not ended; None: unknown."""


def there(facts: Facts, known: Known, lost: Lost) -> There:
    """The workers, one by one and as replicas."""
    pods = facts.observed.pods
    workers = replicas.active(pods, known.draining, lost.silent)
    return There(
        workers=workers,
        units=replicas.stand_ins(workers, facts.spec.group_size, facts.version),
        troubles=starting.troubles(workers, known.members, lost.exclusions.nodes),
        budget=protection.disruption_budget(facts.spec, pods, known.members),
    )


# ---- 5: how many ---------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Size:
    """How many replicas are wanted."""

    refusal: Refusal | None
    """The standing refusal of a pod of the present spec, if it is about this job."""
    desired: int
    """Desired replicas now."""
    spares: int
    """Desired warm spares now, beside the desired workers."""
    beyond: int
    """Replicas that may exist beyond the desired ones: spares, and those that wait for an autoscaler's nodes."""


def size(facts: Facts, known: Known, there: There) -> Size:
    """How many workers the job should have."""
    spec, share, refusal = facts.spec, facts.observed.share, facts.state.refusal
    current = refusal and refusal.generation == facts.observed.job.generation and refusal.kind.lasts
    refusal = refusal if current else None
    desired = sizes.desired_replicas(spec, facts.status, share)
    old = facts.status.generation
    in_force = training.in_force(old, known.members)[0] if known.members else old
    wanted_spares = sizes.desired_spares(spec, desired, len(there.units), in_force, share)
    pending_too = share.pending if share and share.size is not None and desired else 0
    return Size(refusal, desired, wanted_spares, wanted_spares + pending_too)


# ---- 6: who leaves -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Leave:
    """Who leaves."""

    rollout: Rollout
    """Actions for workers of another version of the template."""
    victims: tuple[Pod, ...]
    """Workers to be asked to leave now; none while etcd is unknown or the job is finishing."""
    signals: frozenset[str]
    """Workers (names) that stay Pending beyond the desired number, for an autoscaler to see."""
    withdrawn: tuple[Pod, ...]
    """Workers that have not started in time, and their whole groups, which hold resources in vain; not workers that
    train for another group. If they are needed, a verdict comes first. Also
    Pending workers without a place for which the scheduler would evict another job's."""
    withdrawal: Withdrawal | None
    leaving: frozenset[str]
    """All workers (names) that are asked to leave, those of this pass included."""


def leave(facts: Facts, known: Known, there: There, size: Size) -> Leave:
    """The workers that leave: by a roll-out, as a surplus, or since they do not start."""
    spec, now, workers = facts.spec, facts.now, there.workers
    renewal = _rollout(facts, known, there, size)
    victims = _victims(facts, known, there, size, renewal)
    signals = _signals(spec.group_size, there, size)
    apart = signals.union(p.name for p in victims)
    stay = [p for p in workers if p.name not in apart]
    late = starting.late_workers(stay, spec.pending_deadline_seconds, now)
    trains = {p.name for p in workers if known.members is None or known.members.trains(p.name)}
    withdrawn = tuple(p for p in replicas.with_whole_replicas(late, workers) if p.name not in trains)
    withdrawal = starting.withdrawal_of(late, spec.pending_deadline_seconds, now)
    waiting = sorted((p for p in stay if not p.node and p not in withdrawn), key=lambda p: -p.ordinal)
    withdrawn += tuple(waiting[: max(-(sizes.free_places(workers, facts.observed.share) or 0), 0)])
    return Leave(
        rollout=renewal,
        victims=victims,
        signals=signals,
        withdrawn=withdrawn,
        withdrawal=withdrawal
        or starting.continued_withdrawal(facts.status.withdrawal, there.units, spec.min_replicas, now),
        leaving=known.draining | {p.name for p in victims} | {p.name for p in withdrawn if p.started},
    )


def avoiding(facts: Facts, lost: Lost, leave: Leave) -> Lost:
    """``lost``, with the nodes on which workers that leave could not start."""
    known, spec = lost.exclusions, facts.spec
    stuck = starting.stuck_losses(leave.victims, facts.now)
    made = exclusion.update(known.excluded, known.losses, stuck, spec.node_cooldown_seconds, facts.now)
    return replace(lost, exclusions=made) if stuck else lost


def _victims(facts: Facts, known: Known, there: There, size: Size, renewal: Rollout) -> tuple[Pod, ...]:
    if known.members is None or known.finishing:
        return ()
    chosen = replicas.with_whole_replicas(renewal.leave, there.workers)
    named = {p.name for p in chosen}
    others = [p for p in there.workers if p.name not in named]
    most, minimum = size.desired + renewal.extra, facts.spec.min_replicas
    more = leavers.choose(others, most, minimum, known.members, facts.observed.share, spares=size.beyond)
    return (*chosen, *more)


def _signals(group_size: int, there: There, size: Size) -> frozenset[str]:
    waiting = sorted((p for p in there.workers if not p.node), key=lambda p: -p.ordinal)
    more = min(len(there.workers) - size.desired * group_size, (size.beyond - size.spares) * group_size)
    return frozenset(p.name for p in waiting[: max(more, 0)])


def _rollout(facts: Facts, known: Known, there: There, size: Size) -> Rollout:
    if known.members is None or known.finishing:
        return Rollout()
    observed, spec, refusal = facts.observed, facts.spec, facts.state.refusal
    places = sizes.free_places(there.workers, observed.share)
    # No pod is created beyond Kueue's quota, nor beyond the room if others were evicted for it.
    if observed.charges is not None or (places is not None and places < spec.group_size):
        refusal = refusal or Refusal(RefusalKind.QUOTA_EXCEEDED, "", facts.now, generation=observed.job.generation)
    held = observed.share.message if observed.share and observed.share.keeps_template else ""
    made = rollout.rollout(
        rollout.RolloutInput(
            workers=there.units,
            pods=observed.pods,
            version=facts.version,
            desired=size.desired,
            minimum=spec.min_replicas,
            at_a_time=0 if held else spec.max_unavailable,
            leaving=len(replicas.of(p for p in observed.pods if known.is_leaving(p, facts.now))),
            refusal=refusal if refusal and refusal.generation == observed.job.generation else None,
            members=known.members,
            share=observed.share,
            now=facts.now,
            spares=size.beyond,
        )
    )
    return replace(made, stopped=held) if held else made


# ---- 7: who comes, and when ----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Come:
    """Who comes, and when."""

    paced: datetime | None
    """When losses let the next worker be created; None: now."""
    wait: datetime | None
    """The same, also by refusals of pods."""
    create: tuple[int, ...]
    """Ordinals of the pods to create now."""
    slots: tuple[Slot, ...]
    """Their places in groups."""
    charges: tuple[Charge, ...]
    """Kueue's places of them."""
    admitted: Admitted | None
    """The pod of the present template that the API server has last admitted in a dry run; None: none."""
    asks: bool
    """The API server is asked to admit a pod, in a dry run: the allocator waits for its answer."""


def come(  # noqa: PLR0917 - all earlier steps
    facts: Facts, known: Known, lost: Lost, there: There, size: Size, leave: Leave
) -> Come:
    """The workers to create now, or when the next one comes."""
    observed, state, share = facts.observed, facts.state, facts.observed.share
    paced = pacing.after_losses(
        facts.spec,
        lost.count.restarts,
        last=lost.last_failure,
        streak=lost.streak,
        withdrawal=leave.withdrawal,
        pods=observed.pods,
        now=facts.now,
    )
    wait = pacing.latest((paced, pacing.after_refusal(state.refusal, observed.job.generation)), facts.now)
    waits = share is not None and not share.is_answer  # nor is it known yet whether others are evicted for it
    none = wait is not None or known.etcd is None or known.finishing or waits
    slots, charges = ((), ()) if none else _missing(facts, there, size, leave)
    create = replicas.ordinals(len(slots), state.open_ordinals, observed.pods, facts.status.next_ordinal, state.refusal)
    known_pod = state.admitted if state.admitted and state.admitted.version == facts.version else None
    is_known = known_pod is not None and known_pod.is_recent(facts.now) and size.refusal is None
    asks = bool(share and share.probe) and not known.finishing and not is_known
    return Come(
        paced=paced,
        wait=wait,
        create=create,
        slots=slots[: len(create)],
        charges=charges[: len(create)],
        admitted=known_pod,
        asks=asks and wait is None and not create,
    )


def _missing(facts: Facts, there: There, size: Size, leave: Leave) -> tuple[tuple[Slot, ...], tuple[Charge, ...]]:
    """A slot for each pod to create now, and if Kueue decides the job's size, a charge for each slot."""
    observed, group_size = facts.observed, facts.spec.group_size
    more = max(size.desired + size.beyond - len(there.units), 0) or leave.rollout.create
    leaving = {p.name for p in (*leave.victims, *leave.withdrawn)}
    staying = [p for p in there.workers if p.name not in leaving]
    holes = replicas.slots(staying, observed.pods, group_size, 0)
    slots = (*holes, *replicas.slots((), observed.pods, group_size, min(more, replicas.BATCH)))
    if (places := sizes.free_places(there.workers, observed.share)) is not None:
        slots = slots[: max(places, 0)]
    if facts.state.refusal:
        slots = slots[:1]  # one pod shows whether the API server still refuses
    if observed.charges is None:
        return slots, ()
    charged = replicas.charged(slots, there.workers, observed.charges)
    return tuple(slot for slot, _ in charged), tuple(charge for _, charge in charged)


# ---- together ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Steps:
    """All of them, for what is written at last."""

    facts: Facts
    known: Known
    lost: Lost
    there: There
    size: Size
    leave: Leave
    come: Come

    def due(self, pod: Pod) -> datetime:
        """When a leaving worker is deleted in any case."""
        since = self.known.since.get(pod.name, self.facts.now)
        return leavers.drain_deadline(pod, since)
