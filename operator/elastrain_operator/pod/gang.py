"""The gang of a job, in the words of the scheduler that binds all of it or none: an object that names the minimum,
and the pods' reference to it. Pure: one table of schedulers.

The minimum is ``minReplicas``; workers above it are in the same group, and are bound one by one beside the minimum.
Sources: kubernetes-sigs/scheduler-plugins (coscheduling), Volcano, KEP-4671 (``scheduling.k8s.io/v1beta1`` of
Kubernetes 1.37, whose PodGroup has a minimum that can change).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastrain_operator.allocation.snapshot import PODS, Amounts
from elastrain_operator.facts import JobRef
from elastrain_operator.pod.manifest import owned
from elastrain_operator.pod.shape import DEFAULT_SCHEDULER, shape
from elastrain_resource.job import JobSpec

Body = dict[str, Any]
Raw = Mapping[str, Any]

COSCHEDULING_LABEL = "scheduling.x-k8s.io/pod-group"
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How one scheduler learns of a gang."""

    api: str
    kind: str
    plural: str
    place: tuple[str, ...]
    """Where a pod names its group: path of fields; the last one is the word."""
    spec: Callable[[JobRef, JobSpec], Body]
    """Of the object."""
    reference: Callable[[str], Any] = str
    """Name of the object → what the pod says."""
    name: str = ""
    """Its ``schedulerName``; empty: it can have any."""
    immutable: bool = False
    """Fields of the object's spec cannot change: if the API server refuses a change, another object takes its place."""

    @property
    def permissions(self) -> dict[tuple[str, str], frozenset[str]]:
        """What the operator needs, as in ``kube.client.PERMISSIONS``."""
        return {(self.api.partition("/")[0], self.plural): frozenset({"create", "patch", "delete"})}

    def path(self, job: JobRef) -> str:
        """The API path of a job's object."""
        return f"/apis/{self.api}/namespaces/{job.namespace}/{self.plural}/{name(job)}"

    def manifest(self, job: JobRef, spec: JobSpec) -> Body:
        """The object, for server-side apply. The garbage collector deletes it with the job."""
        metadata = owned(job, name(job))
        return {"apiVersion": self.api, "kind": self.kind, "metadata": metadata, "spec": self.spec(job, spec)}

    def serves(self, template: Raw) -> bool:
        """Whether a job's gang is written: its template names this scheduler, and no group of its own."""
        named = (template.get("spec") or {}).get("schedulerName") or DEFAULT_SCHEDULER
        found: Any = template
        for field in self.place:
            found = (found or {}).get(field)
        return found is None and named == (self.name or named)

    def mark(self, pod: Body, job: JobRef) -> Body:
        """``pod``, a manifest, with its reference to the group."""
        first, *rest = self.place
        return {**pod, first: _with(pod.get(first) or {}, rest, self.reference(name(job)))}


def name(job: JobRef) -> str:
    """Name of a job's object: at most 59 characters, since it is also a label's value."""
    return f"{job.name}-{job.uid[:8]}"


def _with(body: Raw, path: list[str], value: Any) -> Body:
    field, *rest = path
    return {**body, field: _with(body.get(field) or {}, rest, value) if rest else value}


def _coscheduling(_job: JobRef, spec: JobSpec) -> Body:
    return {"minMember": spec.min_replicas * spec.group_size, "minResources": _resources(spec)}


def _volcano(_job: JobRef, spec: JobSpec) -> Body:
    template = spec.template
    queue = ((template.get("metadata") or {}).get("annotations") or {}).get(VOLCANO_QUEUE)
    priority = (template.get("spec") or {}).get("priorityClassName")
    chosen = {"queue": queue, "priorityClassName": priority}
    return {**_coscheduling(_job, spec), **{field: word for field, word in chosen.items() if word}}


def _pod_group(_job: JobRef, spec: JobSpec) -> Body:
    priority = (spec.template.get("spec") or {}).get("priorityClassName")
    found = {"schedulingPolicy": {"gang": {"minCount": spec.min_replicas * spec.group_size}}}
    return {**found, "priorityClassName": priority} if priority else found


def _resources(spec: JobSpec) -> dict[str, str]:
    """Requests of the whole minimum, in Kubernetes' notation. Empty if the template is no valid pod: the API server
    refuses the pods then."""
    try:
        demand: Amounts = shape(spec.template).demand
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    total = {resource: amount * spec.min_replicas * spec.group_size for resource, amount in demand if resource != PODS}
    return {resource: f"{amount}m" if resource == "cpu" else str(amount) for resource, amount in total.items()}


SCHEDULERS: Mapping[str, Scheduler] = {
    "coscheduling": Scheduler(
        "scheduling.x-k8s.io/v1alpha1",
        "PodGroup",
        "podgroups",
        ("metadata", "labels", COSCHEDULING_LABEL),
        _coscheduling,
    ),
    "volcano": Scheduler(
        "scheduling.volcano.sh/v1beta1",
        "PodGroup",
        "podgroups",
        ("metadata", "annotations", VOLCANO_GROUP),
        _volcano,
        name="volcano",
    ),
    "native": Scheduler(
        "scheduling.k8s.io/v1beta1",
        "PodGroup",
        "podgroups",
        ("spec", "schedulingGroup"),
        _pod_group,
        lambda group: {"podGroupName": group},
        immutable=True,
    ),
}
"""By the value ``gang.scheduler`` of the chart."""
