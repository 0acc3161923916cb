"""The version of a pod template: its meaning, not its spelling. Pure.

A template has the same version however it is written: quantities in any notation, keys in any order, nulls, empty
lists, defaults of Kubernetes and of the operator written out, fields that the operator overwrites. A spelling that is
not known as equal is another version: its roll-out costs time, a change that is never rolled out would be wrong.

Defaults of Kubernetes: ``pkg/apis/core/v1/defaults.go``, the same in 1.35 and 1.37 for the fields below.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastrain.api import names, podfields
from elastrain.api.job import trainer_container
from elastrain_operator.allocation.resources import exact
from elastrain_operator.pod import defaults, security

Fields = dict[str, Any]

_KNOWN: dict[str, str] = {}
"""Text's digest → version: a template changes seldom, and each pass asks for its version."""
_MOST_KNOWN = 4096


def version(template: Mapping[str, Any]) -> str:
    """A short name of a template's meaning, which templates of one meaning share in every version of the operator."""
    text = _text(template)
    digest = _digest(text)
    if digest not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[digest] = _digest(_text(normal(template)))
    return _KNOWN[digest]


def version_of_text(template: Mapping[str, Any]) -> str:
    """The version that operators before 0.1.0 gave a template: of its spelling. Their workers are not replaced."""
    return _digest(_text(template))


def without_nulls(value: Any) -> Any:
    """A copy without absent fields: Kubernetes reads null as absent everywhere."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def normal(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The template as it acts: with all defaults, without what the operator overwrites, quantities in one notation.

    ``template`` is not changed; one that makes no worker is returned as it is.
    """
    try:
        return _normal(template)
    except (AttributeError, KeyError, TypeError, ValueError):
        return template


def _normal(template: Mapping[str, Any]) -> Fields:
    made: Fields = without_nulls(template)
    trainer_name = trainer_container(made)["name"]
    body = made["spec"]
    trainer = next(c for c in body["containers"] if c["name"] == trainer_name)
    _drop_ours(made, trainer)
    defaults.last_words(body, trainer)
    security.restrict(body)
    _TEMPLATE.fill(made)
    return made


def _text(template: Mapping[str, Any]) -> str:
    return json.dumps(template, sort_keys=True, separators=(",", ":"))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_OUR_LABELS = (names.LABEL_JOB, names.LABEL_JOB_UID, names.LABEL_ORDINAL, names.LABEL_TEMPLATE, names.LABEL_MANAGED_BY)
OUR_VARIABLES = frozenset({
    names.ENV_NAMESPACE, names.ENV_JOB, names.ENV_JOB_UID, names.ENV_NPROC, names.ENV_LEASE_TTL,
    names.ENV_DRAIN_TIMEOUT, names.ENV_ETCD_ENDPOINTS, names.ENV_WORKER, names.ENV_NODE, names.ENV_POD_UID,
    names.ENV_ADDRESS,
})  # fmt: skip
"""Variables of the trainer that the operator sets in every job."""


def _drop_ours(template: Fields, trainer: Fields) -> None:
    """Remove what the operator overwrites (:mod:`elastrain.api.podfields`)."""
    metadata, body = template.get("metadata") or {}, template["spec"]
    for part, place in ((metadata, podfields.METADATA), (body, podfields.POD), (trainer, podfields.TRAINER)):
        for name in [n for n in part if n in place and place[n].treatment is podfields.Treatment.OURS]:
            del part[name]
    for name in _OUR_LABELS:
        (metadata.get("labels") or {}).pop(name, None)
    (metadata.get("annotations") or {}).pop(names.CONTAINERS_NOTE, None)
    trainer.pop("restartPolicy", None)  # only Never is admitted
    if "env" in trainer:
        trainer["env"] = [e for e in trainer["env"] if e["name"] not in OUR_VARIABLES]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of object in a template."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of absent fields."""
    inside: Mapping[str, _Kind] = field(default_factory=dict)
    """Kinds of the objects in its fields, and of those in its lists."""
    empty: tuple[str, ...] = ()
    """Fields that mean the same empty and absent."""
    quantities: tuple[str, ...] = ()
    all_quantities: bool = False
    """Whether all its values are quantities."""
    rule: Callable[[Fields], None] | None = None
    """Defaults that depend on other fields."""

    def fill(self, value: Fields) -> None:
        for name, kind in self.inside.items():
            for item in _items(value.get(name)):
                kind.fill(item)
        for name in self.quantities if not self.all_quantities else tuple(value):
            if name in value:
                value[name] = exact(str(value[name]))
        if self.rule:
            self.rule(value)
        for name, default in self.defaults.items():
            value.setdefault(name, default)
        for name in self.empty:
            if value.get(name) in ({}, []):
                del value[name]


def _items(value: Any) -> list[Fields]:
    return [value] if isinstance(value, dict) else [v for v in value or [] if isinstance(v, dict)]


def _pull(container: Fields) -> None:
    last = str(container.get("image") or "").rpartition("/")[2]
    name, _, digest = last.partition("@")
    tag = name.partition(":")[2]
    newest = tag == "latest" or not (tag or digest)
    container.setdefault("imagePullPolicy", "Always" if newest else "IfNotPresent")


def _request(resources: Fields) -> None:
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _pod(body: Fields) -> None:
    old = body.pop("serviceAccount", None)
    body["serviceAccountName"] = body.get("serviceAccountName") or old or "default"
    defaults.resolve_services(body)
    if body.get("hostNetwork"):
        for container in [*body["containers"], *(body.get("initContainers") or [])]:
            for port in container.get("ports") or []:
                port.setdefault("hostPort", port["containerPort"])


def _source(volume: Fields) -> None:
    if volume.keys() == {"name"}:
        volume["emptyDir"] = {}


def _value(variable: Fields) -> None:
    if "valueFrom" not in variable:
        variable.setdefault("value", "")


_HTTP = _Kind({"path": "/", "scheme": "HTTP"}, empty=("httpHeaders",))
_HANDLER = _Kind(inside={"httpGet": _HTTP})
_PROBE = _Kind(
    {
        "initialDelaySeconds": 0, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
        "failureThreshold": 3,
    },
    {"httpGet": _HTTP, "grpc": _Kind({"service": ""})},
)  # fmt: skip
_AMOUNTS = _Kind(all_quantities=True)
_RESOURCES = _Kind(
    inside={"limits": _AMOUNTS, "requests": _AMOUNTS}, empty=("limits", "requests", "claims"), rule=_request
)
_REFERENCE = _Kind({"optional": False})
_FIELD = _Kind({"apiVersion": "v1"})
_AMOUNT_OF = _Kind(quantities=("divisor",))
_VALUE_FROM = _Kind(
    inside={
        "fieldRef": _FIELD, "resourceFieldRef": _AMOUNT_OF, "secretKeyRef": _REFERENCE, "configMapKeyRef": _REFERENCE
    }
)  # fmt: skip
_CONTAINER = _Kind(
    {
        "stdin": False, "stdinOnce": False, "tty": False, "terminationMessagePath": names.DEFAULT_TERMINATION_LOG,
    },
    {
        "resources": _RESOURCES,
        "ports": _Kind({"protocol": "TCP"}),
        "env": _Kind(inside={"valueFrom": _VALUE_FROM}, rule=_value),
        "envFrom": _Kind({"prefix": ""}, {"secretRef": _REFERENCE, "configMapRef": _REFERENCE}),
        "volumeMounts": _Kind({"readOnly": False}),
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "startupProbe": _PROBE,
        "lifecycle": _Kind(inside={"postStart": _HANDLER, "preStop": _HANDLER}),
        "securityContext": _Kind({"privileged": False}, {"capabilities": _Kind(empty=("add",))}),
    },
    ("args", "command", "env", "envFrom", "ports", "resources", "volumeMounts", "volumeDevices", "lifecycle"),
    rule=_pull,
)  # fmt: skip
_MODE = 0o644
_ITEMS = _Kind(inside={"fieldRef": _FIELD, "resourceFieldRef": _AMOUNT_OF})
_FILES = _Kind({"defaultMode": _MODE, "optional": False}, empty=("items",))
_DOWNWARD = _Kind(inside={"items": _ITEMS})
_VOLUME = _Kind(
    inside={
        "secret": _FILES,
        "configMap": _FILES,
        "downwardAPI": _Kind({"defaultMode": _MODE}, {"items": _ITEMS}),
        "projected": _Kind(
            {"defaultMode": _MODE},
            {
                "sources": _Kind(
                    inside={
                        "secret": _REFERENCE, "configMap": _REFERENCE, "downwardAPI": _DOWNWARD,
                        "serviceAccountToken": _Kind({"expirationSeconds": 3600}),
                    }
                )
            },
        ),
        "emptyDir": _Kind({"medium": ""}, quantities=("sizeLimit",)),
        "hostPath": _Kind({"type": ""}),
        "persistentVolumeClaim": _Kind({"readOnly": False}),
        "ephemeral": _Kind(
            inside={
                "volumeClaimTemplate": _Kind(
                    inside={"spec": _Kind({"volumeMode": "Filesystem"}, {"resources": _RESOURCES})}
                )
            }
        ),
    },
    rule=_source,
)  # fmt: skip
_POD = _Kind(
    {
        "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler", "terminationGracePeriodSeconds": 30,
        "enableServiceLinks": False, "automountServiceAccountToken": False, "hostNetwork": False, "hostPID": False,
        "hostIPC": False, "shareProcessNamespace": False, "setHostnameAsFQDN": False, "hostUsers": True,
    },
    {
        "containers": _CONTAINER,
        "initContainers": _CONTAINER,
        "volumes": _VOLUME,
        "resources": _Kind(inside={"limits": _AMOUNTS, "requests": _AMOUNTS}, empty=("limits", "requests")),
        "overhead": _AMOUNTS,
        "tolerations": _Kind({"operator": "Equal", "value": "", "effect": "", "key": ""}),
    },
    (
        "affinity", "hostAliases", "imagePullSecrets", "initContainers", "nodeSelector", "overhead", "readinessGates",
        "resourceClaims", "resources", "schedulingGates", "tolerations", "volumes",
    ),
    rule=_pod,
)  # fmt: skip
_TEMPLATE = _Kind(
    inside={"metadata": _Kind(empty=("labels", "annotations", "finalizers")), "spec": _POD}, empty=("metadata",)
)
"""Of equal meaning stay apart: lists in another order, and empty selectors, which select everything."""
