"""One task per job: observe → plan → apply → wait. Starts with the first event, ends on deletion; no finalizer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import structlog

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdError
from elastrain_operator import clock
from elastrain_operator.cluster.capacity import Capacity
from elastrain_operator.config import OperatorConfig
from elastrain_operator.facts import JobRef, Observed, Pod
from elastrain_operator.job import other_operator, plan
from elastrain_operator.job.executor import Executor
from elastrain_operator.job.meter import JobMeter
from elastrain_operator.job.plan import STATUS_INTERVAL
from elastrain_operator.job.queue import JobQueue, QueuedPass
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.kube.client import ApiError, Kube
from elastrain_operator.metrics import process as metrics
from elastrain_operator.policy.losses import data_loss
from elastrain_operator.policy.report.routine import is_routine
from elastrain_operator.policy.size import sizes
from elastrain_operator.records.mirror import Mirror
from elastrain_operator.waiting import until
from elastrain_operator.watch import parse
from elastrain_operator.watch.owner import is_issued
from elastrain_resource.job import JobSpec, JobStatus

COALESCE = 0.05
"""Seconds between a wake-up and its pass, so that concurrent changes cause one pass."""
PACE = 0.2
"""Least seconds between two passes of one job: a start or a loss causes many events in a short time."""
LONGEST_PACE = 1.0
"""Upper bound of that interval if passes take long: see :func:`pace`."""
ROUTINE = 2.0
"""Seconds by which the expected events of a start may be delayed: each pod causes three or four."""
RETRY_DELAYS = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a failed pass is repeated, by the number of consecutive failures."""
UNSEEN = timedelta(seconds=30)
"""Seconds after which a created pod that the watch has not shown is read from the API server."""
STOP_SECONDS = 5.0

PodsOf = Callable[[JobKeys], Iterable[Pod]]
"""A job → its pods, from the watch."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PassResult:
    """What a pass has decided, and from what."""

    plan: Plan
    status: JobStatus
    """Before it."""
    observed: Observed
    spec: JobSpec | None = None
    """None: it cannot be read, or the job is being deleted."""
    queued: QueuedPass | None = None
    """The queue's part; None: it has nothing to do with the job."""


class JobLoop:
    """The loop of one job (one UID)."""

    def __init__(  # noqa: PLR0917 - a loop's collaborators; all are needed
        self,
        job: JobRef,
        executor: Executor,
        kube: Kube,
        mirror: Mirror,
        config: OperatorConfig,
        capacity: Capacity | None = None,
        queue: JobQueue | None = None,
    ) -> None:
        """``capacity``: None: the cluster is not shared out between jobs. ``queue``: None: no job queues."""
        self.job = job
        self.meter = JobMeter()
        self._executor = executor
        self._kube = kube
        self._mirror = mirror
        self._config = config
        self._capacity = capacity
        self._queue = queue
        self._wake = asyncio.Event()
        self._woken: float | None = None  # when the first change came that no pass has processed
        self._state = LoopState()
        self._body: Mapping[str, Any] = {}
        self._pods_of: PodsOf = lambda _: ()
        self._task: asyncio.Task[None] | None = None
        self._parsed: tuple[Any, JobSpec] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._deleted_meanwhile: dict[str, Pod] = {}  # disappeared during this pass, which may be creating them, by UID
        self._looked_at: Mapping[str, Pod] = {}  # by UID, in the last pass
        self.planned = False
        """Whether a pass has succeeded."""
        self.status_interval = STATUS_INTERVAL
        """Seconds between two writes of the status that contain only progress."""

    @property
    def keys(self) -> JobKeys:
        return JobKeys(self.job.namespace, self.job.name, self.job.uid)

    def see(self, body: Mapping[str, Any], pods_of: PodsOf) -> None:
        """A new version of the job's object; the first one starts the loop."""
        if _foreign_fields(body) != _foreign_fields(self._body):  # else it is the echo of this operator's status
            self.wake()
        self._body, self._pods_of = body, pods_of
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"job {self.job.namespace}/{self.job.name}")

    def wake(self) -> None:
        """Something about this job may have changed."""
        if self._woken is None:
            self._woken = time.monotonic()
        self._wake.set()

    def wake_within(self, seconds: float) -> None:
        """A change that may wait, but no longer than ``seconds``. An earlier pass handles it, too."""
        loop = asyncio.get_running_loop()
        if self._later is not None:
            if self._later.when() <= loop.time() + seconds:
                return
            self._later.cancel()
        self._later = loop.call_later(seconds, self._look)

    def wake_later(self) -> None:
        """New steps: handled when the next status is due."""
        self.wake_within(self.status_interval)

    def _look(self) -> None:
        self._later = None
        self.wake()

    def pod_seen(self, pod: Pod) -> None:
        """The watch shows a new or changed pod."""
        created = self._state.created.get(pod.uid)
        before = created[0] if created else self._looked_at.get(pod.uid)
        if before == pod:
            return
        if is_routine(before, pod):
            self._wake_soon()
        else:
            self.wake()

    def _wake_soon(self) -> None:
        """An expected event of a start. (The allocator needs it at once.)"""
        if self._capacity:
            self.wake()
        else:
            self.wake_within(ROUTINE)

    def pod_deleted(self, pod: Pod) -> None:
        """The watch shows that this pod no longer exists. It counts as lost if it had ended, or another party deleted
        it, perhaps before the watch ever showed it."""
        created = self._state.created.pop(pod.uid, None)
        if created or pod.ending or pod.uid in self._state.alive:
            self._state.disappeared[pod.uid] = pod
        else:
            self._deleted_meanwhile[pod.uid] = pod
        self._state.alive.discard(pod.uid)
        self.wake()

    async def stop(self) -> None:
        """End the loop, if necessary within a pass: the next operator makes the same observations."""
        if self._later is not None:
            self._later.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)

    async def _run(self) -> None:
        failures = 0
        seconds = asyncio.get_running_loop().time
        not_before = 0.0
        while True:
            await asyncio.sleep(max(COALESCE, not_before - seconds()))
            self._wake.clear()
            if self._later is not None:  # this pass handles it
                self._later.cancel()
                self._later = None
            began = seconds()
            self._note_queued()
            try:
                with metrics.PASS_SECONDS.time():
                    due = await self._pass()
                failures = 0
                self.planned = True
                metrics.PLANS.labels("done").inc()
            except Exception as error:
                due = RETRY_DELAYS[min(failures, len(RETRY_DELAYS) - 1)]
                if is_conflict(error):  # the newer version is on its way, and wakes this loop
                    log.info("job has changed meanwhile", job=self.job.name, namespace=self.job.namespace)
                else:
                    failures += 1
                    metrics.PLANS.labels("failed").inc()
                    metrics.ERRORS.labels(_source(error)).inc()
                    await self._failed(error, due)
            not_before = began + pace(seconds() - began)
            await self._wait(due, hurried=failures == 0)

    async def _failed(self, error: Exception, retry: float) -> None:
        """Log the error; report a bug of the operator in the status. It ends no loop and delays no other job."""
        known = _source(error) != "operator"
        write = log.warning if known else log.exception
        write("pass failed", job=self.job.name, namespace=self.job.namespace, error=str(error), retry_s=retry)
        if known:
            return
        try:
            status = self._state.status or parse.job_status(self._body)
            text = f"{type(error).__name__}: {error}"
            report = plan.fault(status, self.job.generation, text, RETRY_DELAYS[-1], clock.now())
            await self._executor.execute(self.job, None, report, self._state)
        except Exception as another:  # perhaps from the same cause; the loop must continue
            log.warning("fault not reported", job=self.job.name, namespace=self.job.namespace, error=str(another))

    def _note_queued(self) -> None:
        if self._woken is not None:
            metrics.QUEUE_SECONDS.observe(time.monotonic() - self._woken)
            self._woken = None

    async def _wait(self, seconds: float, hurried: bool) -> None:
        """Wait for a change or ``seconds``; after a failed pass always ``seconds``."""
        if not hurried:
            await asyncio.sleep(seconds)
            return
        await until(self._wake, seconds)

    async def _pass(self) -> float:
        """One pass; returns the seconds until the next one is due without a change.

        Whatever is decided leaves by one way: the views of the job (metrics, the allocator's claims), then the calls,
        of which the status is the first, then what follows them."""
        body, state = self._body, self._state
        state.status_interval = self.status_interval
        self.job = parse.job_ref(body)
        if not parse.is_ours(body):
            return self._config.resync  # spec.managedBy names another controller
        state.version = newest(state.version, body["metadata"].get("resourceVersion"))
        try:
            status = state.status or parse.job_status(body)
        except parse.StatusUnreadable as error:  # nothing may follow from it
            await self._executor.statuses.report_unreadable(self.job, body.get("status"), str(error), state)
            return self._config.resync
        decided = self._decide(body, status, await self._observe(status))
        self._show(decided)
        unwritten = dict(state.unwritten)
        await self._executor.execute(self.job, decided.spec, decided.plan, state)
        if state.unwritten != unwritten:
            self.wake()  # to say so in the status
        return await self._follow(decided)

    def _decide(self, body: Mapping[str, Any], status: JobStatus, observed: Observed) -> PassResult:
        """What to do about the job now."""
        meta, state, now = body["metadata"], self._state, clock.now()
        if meta.get("deletionTimestamp"):  # a finalizer holds it
            made = plan.deleted(status, observed, meta.get("finalizers") or (), now, state)
            return PassResult(made, status, observed)
        try:
            spec = self._spec(body.get("spec", {}))
        except parse.SpecInvalid as error:
            return PassResult(plan.refuse(status, observed, str(error), now, state), status, observed)
        if (apart := other_operator.plan(body, observed, state, now)) is not None:
            return PassResult(apart, status, observed)
        share = observed.share.in_replicas(spec.group_size) if observed.share else None
        observed = replace(observed, share=share, ignored_queue="" if self._queue else sizes.queue_of(body))
        queued = self._queue.decide(body, self.job, spec, status, observed) if self._queue else None
        observed = self._bounded(queued.charged_to(observed), queued, spec) if queued else observed
        state.unanswered_since = sizes.unanswered_since(state.unanswered_since, observed, now)
        state.lost_since = data_loss.since(state.lost_since, status, observed.coordination, now)
        with metrics.PLAN_SECONDS.time():
            made = plan.plan(spec, status, observed, clock.now(), state)
        return PassResult(made, status, observed, spec, queued)

    def _bounded(self, observed: Observed, queued: QueuedPass, spec: JobSpec) -> Observed:
        """Without pods that the queue admits, and for which the scheduler would evict another job's."""
        if self._capacity is None or not observed.charges:
            return observed
        named = str((spec.template.get("spec") or {}).get("priorityClassName") or "")
        held = self._capacity.reserve(self.job.uid, queued.unbound(spec), named)
        return replace(observed, charges=observed.charges[: max(len(observed.charges) - held, 0)])

    def _show(self, decided: PassResult) -> None:
        """Feed every view of the job, and keep what the next pass needs."""
        made = decided.plan
        before = self._state.remember(made)
        self.meter.saw(self.job, made.status or decided.status, decided.observed, before, self._state.usage)
        if self._capacity is None:
            return
        if decided.queued is not None and decided.spec is not None:
            self._capacity.reserve(self.job.uid, decided.queued.unbound(decided.spec))
        elif made.claims:
            self._capacity.claim(self.job.uid, made.claims)

    async def _follow(self, decided: PassResult) -> float:
        """What follows the calls of a pass; returns the seconds until the next one is due without a change."""
        made, spec, queued, now = decided.plan, decided.spec, decided.queued, clock.now()
        repeats = [(at - now).total_seconds() for at in self._state.retries.values() if at > now]
        due = min([made.requeue_after or self._config.resync, self._config.resync, *repeats])
        if spec is None:
            return due
        if (self._state.refusal is not None and made.create) or made.probe is not None:
            self.wake()  # to update the status, and the claims
        elif made.create:
            self._wake_soon()  # to show them in the status: the watch will report no change of them
        await self._executor.keep_in_etcd(self.job, decided.observed.pods)
        if queued is None:
            return due
        if made.status is not None and made.status.completion_time:
            self.wake()  # its Workloads end
        return min(due, await queued.apply(self.job, spec, due))

    def _spec(self, raw: Mapping[str, Any]) -> JobSpec:
        """The spec, parsed once for each version of it. Raises ``SpecInvalid``."""
        if self._parsed is None or (self._parsed[0] is not raw and self._parsed[0] != raw):
            self._parsed = None
            self._parsed = (raw, parse.job_spec(self._body))
        return self._parsed[1]

    async def _observe(self, status: JobStatus) -> Observed:
        coordination = self._mirror.of(self.keys)
        pods, following, state = await self._pods(), status.next_ordinal, self._state
        state.disappeared = {uid: p for uid, p in state.disappeared.items() if is_issued(p.ordinal, following)}
        return Observed(
            job=self.job,
            pods=tuple(p for p in pods if is_issued(p.ordinal, following)),
            unissued=tuple(p for p in pods if not is_issued(p.ordinal, following)),
            coordination=coordination,
            outage=self._mirror.outage_of(self.keys),
            share=self._capacity.share_of(self.job.uid) if self._capacity else None,
            created=parse.timestamp(self._body["metadata"]["creationTimestamp"]) if self._capacity else None,
            etcd=self._config.worker_etcd.endpoints,
        )

    async def _pods(self) -> tuple[Pod, ...]:
        """Pods from the watch, and created pods that it does not show yet."""
        created, alive = self._state.created, self._state.alive
        seen = self._shown()
        if late := [pod for pod, since in created.values() if clock.now() - since > UNSEEN]:
            for pod in late:
                await self._ask_for(pod)
            seen = self._shown()  # other pods may have come or gone meanwhile
        self._looked_at = seen
        found = parse.pods([*seen.values(), *(pod for pod, _ in created.values())])
        self._deleted_meanwhile.clear()
        alive.intersection_update([p.uid for p in found])
        alive.update(p.uid for p in found if not p.terminating)
        return found

    def _shown(self) -> dict[str, Pod]:
        """Pods from the watch, by UID; created ones that it shows, or whose end it has shown, are no longer awaited."""
        created, deleted = self._state.created, self._deleted_meanwhile
        seen = {p.uid: p for p in self._pods_of(self.keys)}
        for uid in [uid for uid in created if uid in seen or uid in deleted]:
            del created[uid]
            if uid not in seen:
                self._state.disappeared[uid] = deleted[uid]
        return seen

    async def _ask_for(self, pod: Pod) -> None:
        """Read a pod that the watch has not shown in time."""
        body = await self._kube.get_pod(self.job.namespace, pod.name)
        now = clock.now()
        if pod.uid not in self._state.created:
            return  # the watch has shown its deletion meanwhile
        current = parse.pod(body, now, pod) if body and body["metadata"]["uid"] == pod.uid else None
        if current:
            self._state.created[pod.uid] = (current, now)
        else:
            del self._state.created[pod.uid]
            self._state.disappeared[pod.uid] = pod


_OURS = frozenset({"resourceVersion", "managedFields"})
"""Metadata that changes with each write of the status."""


def _foreign_fields(body: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The fields of a job that users and other programs write: all except the status and what its writes change."""
    return body.get("spec"), {k: v for k, v in body.get("metadata", {}).items() if k not in _OURS}


def pace(took: float) -> float:
    """Least seconds from the start of a pass that ``took`` so long to the start of the next one.

    If passes take long, the API server is busy with thousands of pods: a job then pauses for as long as its pass took,
    and one pass handles all changes of its pods meanwhile.
    """
    return min(max(PACE, 2 * took), LONGEST_PACE)


def _source(error: Exception) -> str:
    """The source of an error, as a label of the metrics."""
    return "api" if isinstance(error, ApiError) else "etcd" if isinstance(error, EtcdError) else "operator"


def is_conflict(error: Exception) -> bool:
    """Whether the API server refused a write because the object has changed or was replaced."""
    return isinstance(error, ApiError) and error.code == 409


def newest(known: str | None, seen: str | None) -> str | None:
    """The newer of two resourceVersions of one object; they are compared as integers (KEP-5504)."""
    return max((v for v in (known, seen) if v), key=int, default=None)
