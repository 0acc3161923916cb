"""The fields of a pod template, one by one: ours, passed through, or refused. Pure.

The one place that says it: the operator and ``elastrain validate`` read the refusals, ``docs/reference/pod.md`` is
written from the table, and tests compare it with the pod API of the API server and of the newest client, so that no new
field is overlooked. A field that only a newer API server has is passed through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from elastrain.api import names

Raw = Mapping[str, Any]
Place = Mapping[str, "Field"]


class Treatment(StrEnum):
    """What becomes of a field of the template."""

    OURS = "set by the operator"
    PASSED = "passed through"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """What becomes of a field, and why or under which condition."""

    treatment: Treatment = Treatment.PASSED
    note: str = ""
    wrong: Callable[[Any], bool] = bool
    """Whether a value is refused, if any is."""


def _mapping(value: object) -> Raw:
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Raw]:
    """The mappings of a list; empty for any other value."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _passed(*fields: str) -> dict[str, Field]:
    return dict.fromkeys(fields, Field())


def _with(note: str) -> Field:
    return Field(note=note)


def _ours(note: str) -> Field:
    return Field(Treatment.OURS, note)


def _refused(note: str, wrong: Callable[[Any], bool] = lambda value: value is not None) -> Field:
    return Field(Treatment.REFUSED, note, wrong)


def _restarts_all(rules: Any) -> bool:
    return any(rule.get("action") == "RestartAllContainers" for rule in objects(rules))


def _stops_otherwise(lifecycle: Any) -> bool:
    return _mapping(lifecycle).get("stopSignal") not in (None, "SIGTERM")


_NO_META = "workers have names, an owner and a namespace of their own"
_IN_PLACE = "a worker whose script fails is replaced by a new pod, which `backoffLimit` counts; remove it"
_NOT_THE_TRAINER = "no rule may restart all containers: the trainer's failure would be neither seen nor counted"
_LAST_WORDS = "`FallbackToLogsOnError` if absent: the operator quotes the last lines of a container that failed"

METADATA: Place = {
    "annotations": _with(f"`{names.CONTAINERS_NOTE}` is the operator's"),
    "labels": _with("those of `elastrain.dev`, and `app.kubernetes.io/managed-by`, are the operator's"),
    "finalizers": _with("a worker's pod stays until they are removed"),
    **dict.fromkeys(
        (
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generateName",
            "generation",
            "managedFields",
            "name",
            "namespace",
            "ownerReferences",
            "resourceVersion",
            "selfLink",
            "uid",
        ),
        _ours(_NO_META),
    ),
}
"""``template.metadata``."""

POD: Place = {
    "activeDeadlineSeconds": _refused(
        "it would end each worker, and each of its successors, after this time; set the job's `activeDeadlineSeconds`"
    ),
    "affinity": _with("nodes that the job avoids are added; groups and spares add preferences"),
    "automountServiceAccountToken": _with("`false` if absent"),
    "containers": _with("see below"),
    "dnsPolicy": _with("`ClusterFirstWithHostNet` if absent and `hostNetwork` is true: etcd is a Service"),
    "enableServiceLinks": _with("`false` if absent"),
    "ephemeralContainers": _refused("a pod cannot be created with one; use `kubectl debug`", bool),
    "evictionResponders": _with("a worker that is evicted is replaced"),
    "hostNetwork": _with("members publish the host's address, and use free ports"),
    "initContainers": _with("see below; the pre-flight check comes first"),
    "nodeName": _refused("no scheduler would choose the node; use `nodeSelector` or `affinity`", bool),
    "overhead": _with("of the RuntimeClass: Kubernetes refuses another"),
    "priority": _with("of the PriorityClass: Kubernetes refuses another"),
    "readinessGates": _with("a worker trains before they are true"),
    "resourceClaims": _with("the scheduler allocates them; an operator that shares the cluster out counts them"),
    "restartPolicy": _ours("`Never`: a worker that ends is replaced, and counted by its cause"),
    "schedulingGates": _with("a gated worker is not late"),
    "schedulingGroup": _with("the group's own rules decide when its workers are bound"),
    "workloadRef": _with("the group's own rules decide when its workers are bound"),
    "securityContext": _with("absent fields are those of the Pod Security level restricted"),
    "serviceAccountName": _with("its use is compared with the job by the chart's admission policy"),
    "serviceAccount": _with("an old name of `serviceAccountName`"),
    "terminationGracePeriodSeconds": _with("the worker's time to drain"),
    "tolerations": _with("for the taint of its accelerators one is added"),
    "topologySpreadConstraints": _with("without accelerators: over hosts if absent"),
    "volumes": _with("`elastrain-shm` and `elastrain-etcd` are added"),
    **_passed(
        "dnsConfig", "hostAliases", "hostIPC", "hostPID", "hostUsers", "hostname", "hostnameOverride",
        "imagePullSecrets", "nodeSelector", "os", "preemptionPolicy", "priorityClassName", "resources",
        "runtimeClassName", "schedulerName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
    ),
}  # fmt: skip
"""``template.spec``."""

_EVERY: Place = {
    "securityContext": _with("absent fields are those of the Pod Security level restricted"),
    "terminationMessagePolicy": _with(_LAST_WORDS),
    "restartPolicyRules": _refused(_NOT_THE_TRAINER, _restarts_all),
    **_passed(
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
        "readinessProbe", "resizePolicy", "resources", "startupProbe", "stdin", "stdinOnce", "terminationMessagePath",
        "tty", "volumeDevices", "volumeMounts", "workingDir",
    ),
}  # fmt: skip
TRAINER: Place = {
    **_EVERY,
    "args": _with("arguments of `command`, or the command itself"),
    "command": _with("the agent runs it; `command` or `args` must be set, since the image's entrypoint is unknown"),
    "env": _with("the `ELASTRAIN_` variables that the operator sets are its own"),
    "lifecycle": _refused("`stopSignal` must be SIGTERM, at which the agent drains; remove it", _stops_otherwise),
    "livenessProbe": _with("a worker that it kills counts as infrastructure"),
    "resources": _with("one accelerator of the limits for each rank with `nprocPerNode: auto`"),
    "restartPolicy": _refused(_IN_PLACE, lambda value: value not in (None, "Never")),
    "restartPolicyRules": _refused(_IN_PLACE, bool),
    "terminationMessagePath": _ours("the agent writes its record there"),
    "terminationMessagePolicy": _ours("`File`: the agent writes its record"),
    "volumeMounts": _with("`/dev/shm` and the credentials for etcd are added"),
}
"""The training container."""
BESIDE: Place = {
    **_EVERY,
    "restartPolicy": _with("it may restart in place; 30 s after the trainer's end the pod is deleted"),
}
"""The other containers."""
INIT: Place = {
    **_EVERY,
    "name": _refused(
        f"`{names.PREFLIGHT_CONTAINER}` is the pre-flight check's", lambda v: v == names.PREFLIGHT_CONTAINER
    ),
    "restartPolicy": _with(
        "`Always`: a sidecar, which ends no worker; `OnFailure`: named while it is retried; else its failure ends the "
        "worker"
    ),
}
"""``initContainers``."""


def refusals(template: Raw, trainer: str) -> tuple[str, ...]:
    """What is refused in a template of the right shape, one ``field: value: rule`` each. ``trainer``: the name of its
    training container."""
    return tuple(_refusals(template, trainer))


def _refusals(template: Raw, trainer: str) -> Iterator[str]:
    spec = _mapping(template.get("spec"))
    yield from _of("spec.template.spec", spec, POD)
    for container in objects(spec.get("containers")):
        place = TRAINER if container.get("name") == trainer else BESIDE
        yield from _of(f"spec.template.spec.containers[{container.get('name')}]", container, place)
    for container in objects(spec.get("initContainers")):
        yield from _of(f"spec.template.spec.initContainers[{container.get('name')}]", container, INIT)


def _of(where: str, given: Raw, place: Place) -> Iterator[str]:
    for name, value in given.items():
        field = place.get(name)
        if field is not None and field.treatment is Treatment.REFUSED and field.wrong(value):
            yield f"{where}.{name}: {value}: {field.note}"
