"""One job under the operator's plans: API server, kubelet and agents are plain values, and passes execute the plans."""

from __future__ import annotations

import dataclasses
import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import builders
from elastrain.api.records import Member, Outcome, Phase, Termination
from elastrain_operator.allocation.snapshot import Share
from elastrain_operator.facts import Coordination, Ending, JobRef, Observed, Pod
from elastrain_operator.job.plan import plan
from elastrain_operator.job.state import LoopState, Plan
from elastrain_operator.pod.template import version
from elastrain_operator.policy.losses import data_loss
from elastrain_operator.policy.size import leavers, replicas
from elastrain_resource.job import JobSpec, JobStatus

JOB = JobRef("default", "job", "uid", 1)
START = datetime(2030, 1, 1, tzinfo=UTC)
DRAINED = Termination(outcome=Outcome.DRAINED)


def template(image: str = "a") -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": image, "command": ["python", "train.py"]}]}}


@functools.cache
def _spec(image: str, fields: tuple[tuple[str, Any], ...]) -> JobSpec:
    return JobSpec.model_validate({"template": template(image), **dict(fields)})


class JobWorld:
    """``check`` verifies the invariants at every pass. Like the leader, members admit a ready worker if one is missing,
    and keep the existing ones; a leaver goes when a generation without it has been formed."""

    def __init__(self, **fields: Any) -> None:
        """``fields``: fields of the spec."""
        self.fields, self.image = fields, "a"
        self.now = START
        self.status, self.records, self.state = JobStatus(), Coordination(), LoopState()
        self.pods: dict[str, Pod] = {}
        self.share: Share | None = None
        self.reachable = True
        """Whether etcd is."""
        self.stubborn: set[str] = set()
        """Workers that do not leave when they are asked to."""

    @property
    def spec(self) -> JobSpec:
        return _spec(self.image, tuple(self.fields.items()))

    @property
    def draining(self) -> frozenset[str]:
        """Workers that the target asks to leave."""
        return frozenset(self.records.target.leaving if self.records.target else ())

    @property
    def asked_since(self) -> dict[str, datetime]:
        """When each leaving worker was asked, from the status."""
        return leavers.leaving_since(self.status)

    def asked_by(self, made: Plan) -> set[str]:
        """Workers that leave, once ``made`` is executed: its target asks first, the status follows in a later pass."""
        target = made.target or self.records.target
        return {*leavers.leaving_since(made.status or self.status), *(target.leaving if target else ())}

    def live(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.ending and not p.terminating]

    def running(self) -> list[Pod]:
        return sorted((p for p in self.live() if p.started and p.ready), key=lambda p: p.ordinal)

    def placed(self) -> set[str]:
        """Workers in the newest generation."""
        return {m.worker for m in self.records.generation.members} if self.records.generation else set()

    def training(self) -> set[str]:
        return self.placed() & {p.name for p in self.live()}

    # ---- the operator ----------------------------------------------------------------------------------------------
    def operate(self) -> Plan:
        """One pass."""
        pods = tuple(sorted(self.pods.values(), key=lambda p: p.ordinal))
        seen = Observed(JOB, pods, self.records if self.reachable else None, share=self.share)
        self.state.lost_since = data_loss.since(self.state.lost_since, self.status, seen.coordination, self.now)
        made = plan(self.spec, self.status, seen, self.now, self.state)
        self.check(seen, made)
        self.state.usage = made.usage or self.state.usage
        if made.status is not None:
            self.status, self.state.status_written = made.status, self.now
        if made.target is not None:
            self.records = dataclasses.replace(self.records, target=made.target)
        current = version(self.spec.template)
        slots = made.slots or (None,) * len(made.create)
        for n, slot in zip(made.create, slots, strict=True) if self.state.refusal is None else ():
            self.pods[f"job-{n}"] = Pod(f"job-{n}", f"uid-{n}", n, self.now, template=current, slot=slot)
        for deletion in made.delete:
            pod = self.pods[deletion.pod]
            if pod.ending or not pod.started:
                self._vanish(pod.name)
            else:
                self.pods[pod.name] = dataclasses.replace(pod, terminating=True)
        return made

    def check(self, seen: Observed, made: Plan) -> None:
        """Fails if the plan breaks a promise; called before it is executed."""

    # ---- everything else -------------------------------------------------------------------------------------------
    def kubelet(self) -> None:
        """Pods start; terminating ones end."""
        for pod in list(self.pods.values()):
            if pod.terminating:
                self._vanish(pod.name)
            elif not pod.started and not pod.ending:
                self.pods[pod.name] = self.started(pod)

    def started(self, pod: Pod) -> Pod:
        return dataclasses.replace(pod, started=True, ready=True, trouble=None, bound=self.now)

    def agents(self) -> None:
        """Members register, form the generation that the target asks for, and leave."""
        target, newest, progress = self.records.target, self.records.generation, self.records.progress
        if not self.reachable or target is None or (progress and progress.finished):
            return
        able = [p.name for p in self.running() if p.name not in target.leaving] if target.desired else []
        whole = [g for g in replicas.of(self.pods[n] for n in able) if len(g) == self.spec.group_size]
        ready = [p.name for group in whole for p in sorted(group, key=lambda p: p.slot.place if p.slot else 0)]
        stayers = [n for n in ready if n in self.placed()]
        wanted = stayers + [n for n in ready if n not in stayers][: max(target.desired - len(stayers), 0)]
        if set(wanted) != self.placed() and (len(wanted) >= target.min or not target.desired):
            newest = builders.generation(newest.number + 1 if newest else 1, *wanted)
        self.records = dataclasses.replace(self.records, generation=newest)
        number, placed = newest.number if newest else 0, self.placed()
        members = tuple(
            Member(id=n, worker=n, address="a", phase=Phase.READY, generation=number if n in placed else 0)
            for n in able
        )
        self.records = dataclasses.replace(self.records, members=members)
        for pod in self.running():
            if pod.name not in {*able, *placed, *self.stubborn}:
                self.end(pod.name, DRAINED)

    def end(self, name: str, record: Termination) -> None:
        ending = Ending(self.now, record, record.exit_code)
        self.pods[name] = dataclasses.replace(self.pods[name], ending=ending, over=True, ready=False)
        self.unregister(name)

    def unregister(self, name: str) -> None:
        members = tuple(m for m in self.records.members if m.worker != name)
        self.records = dataclasses.replace(self.records, members=members)

    def _vanish(self, name: str) -> None:
        del self.pods[name]
        self.unregister(name)

    def settle(self) -> None:
        """Execute everything that is due, until nothing changes and no deadline is left."""
        self.reachable = True
        for _ in range(120):
            before = (self.status, dict(self.pods), self.records)
            self.kubelet()
            self.agents()
            made = self.operate()
            if before == (self.status, self.pods, self.records) and made.requeue_after is None:
                return
            self.now += timedelta(seconds=min(made.requeue_after or 1, 400))
        raise AssertionError("the world comes to rest")
