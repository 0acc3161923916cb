"""Kueue's part of each pass of a job's loop: what it asks, what is decided, what is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from elastrain_operator import clock
from elastrain_operator.allocation.snapshot import WorkerShape
from elastrain_operator.facts import Charge, JobEvent, JobRef, Observed, Severity
from elastrain_operator.kube.answers import ApiError
from elastrain_operator.kube.client import Kube
from elastrain_operator.kueue import parse, render
from elastrain_operator.kueue.admission import decide, governs
from elastrain_operator.kueue.apply import Writer
from elastrain_operator.kueue.watch import Watch
from elastrain_operator.kueue.workload import Decision, Holder, Memory, Request, View
from elastrain_operator.metrics import process as metrics
from elastrain_operator.pod.shape import shape
from elastrain_operator.policy import ending
from elastrain_operator.policy.size import leavers
from elastrain_resource.job import JobSpec, JobStatus

RETRY = 5.0
"""Seconds until a write that the API server refused is decided again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KueuePass:
    """One pass of a queued job."""

    request: Request
    view: View
    decision: Decision
    writer: Writer

    def charged_to(self, observed: Observed) -> Observed:
        """``observed`` with the size and the places that Kueue gives."""
        return replace(observed, share=self.decision.share, charges=self.decision.charges)

    def unbound(self, spec: JobSpec) -> Mapping[WorkerShape, int] | None:
        """The admitted pods that are on no node yet, as the allocator counts them; None: unknown."""
        if self.decision.unbound is None:
            return None
        found: dict[WorkerShape, int] = {}
        for placement, count in self.decision.unbound:
            pod = {**spec.template, "spec": render.placed(spec.template.get("spec") or {}, placement)}
            try:
                kind = shape(pod)
            except (AttributeError, KeyError, TypeError, ValueError):
                return {}  # no valid pod: the API server refuses it, and no node has it
            found[kind] = found.get(kind, 0) + count
        return found

    async def apply(self, job: JobRef, spec: JobSpec, resync: float) -> float:
        """Write what was decided; returns the seconds until the next pass is due without a change. A refused write is
        logged and decided again."""
        try:
            await self.writer.execute(job, self.request, self.view, spec.template, self.decision.writes)
        except ApiError as error:
            log.warning("Workloads not written", job=job.name, namespace=job.namespace, error=str(error))
            return RETRY
        again = self.decision.again
        return resync if again is None else max((again - clock.now()).total_seconds(), 0.0)


class KueueJobs:
    """Decides about the queued jobs of one operator."""

    def __init__(self, watch: Watch, kube: Kube, record: Callable[[JobRef, JobEvent], None]) -> None:
        self._watch, self._writer, self._record = watch, Writer(kube), record
        self._memory: dict[str, Memory] = {}

    def decide(
        self, body: Mapping[str, Any], job: JobRef, spec: JobSpec, status: JobStatus, observed: Observed
    ) -> KueuePass | None:
        """Kueue's part of this pass; None: Kueue has nothing to do with it."""
        ended = ending.terminal_condition(status)
        request = parse.request(body, spec, status.desired_replicas or 0, ended.value if ended else "")
        if not governs(request, self._watch.workloads(job)):
            self._memory.pop(job.uid, None)
            return None
        view = self._watch.view(job, request, _pod_class(spec))
        order = {p.name: n for n, p in enumerate(leavers.ranked(observed.pods, observed.coordination, None))}
        holders = [
            Holder(p.name, p.workload, p.ready and not p.terminating, bool(p.node), order.get(p.name, 0))
            for p in (*observed.pods, *observed.unissued)
            if not p.over
        ]
        decision = decide(request, view, holders, self._memory.get(job.uid, Memory()), clock.now())
        self._memory[job.uid] = decision.memory
        self._report(job, decision)
        return KueuePass(request, view, decision, self._writer)

    def _report(self, job: JobRef, decision: Decision) -> None:
        """An event and a count of each eviction."""
        for workload in decision.preempted:
            metrics.KUEUE_EVICTIONS.labels(workload.kind, workload.evicted).inc()
            text = f"Kueue evicts Workload {workload.name} ({workload.evicted}): {workload.message}"
            self._record(job, JobEvent("Evicted", text, Severity.WARNING))

    def charged_to(self, manifest: dict[str, Any], charge: Charge) -> dict[str, Any]:
        """The pod of a queued job, in its Workload."""
        return render.charged_to(manifest, charge)

    def forget(self, uid: str) -> None:
        """A job is gone."""
        self._memory.pop(uid, None)


def _pod_class(spec: JobSpec) -> str:
    """The ``priorityClassName`` of the template; empty: it has none."""
    return str((spec.template.get("spec") or {}).get("priorityClassName") or "")
