"""What a worker of a pod template requires of a node, as the allocator's values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elastrain_operator.allocation import resources
from elastrain_operator.allocation.snapshot import NodeRules, PodCharge, Requirement, Toleration, WorkerShape
from elastrain_operator.pod import defaults
from elastrain_operator.raw import Raw
from elastrain_resource.accelerators import extended
from elastrain_resource.job import trainer_container

DEFAULT_SCHEDULER = "default-scheduler"


def shape(template: Raw, avoid: Iterable[str] = ()) -> WorkerShape:
    """What a worker of this pod template requires of a node, including the default tolerations that it gets.

    ``avoid``: nodes (names) that new workers avoid. Raises ``AttributeError``, ``KeyError``, ``TypeError`` or
    ``ValueError`` if the template is not a valid pod.
    """
    spec = dict(template.get("spec") or {})
    defaults.tolerate(spec, extended(trainer_container(dict(template))))
    return WorkerShape(resources.demand(spec), _rules(spec, tuple(sorted(avoid))))


def of_pod(spec: Raw, avoid: Iterable[str] = ()) -> WorkerShape:
    """The same of the spec of a pod as the API server has it."""
    return WorkerShape(resources.demand(spec), _rules(spec, tuple(sorted(avoid))))


def charge(template: Raw) -> PodCharge:
    """What ResourceQuotas count of a worker of this pod template. Raises as :func:`shape`."""
    spec = template.get("spec") or {}
    return PodCharge(resources.charge(spec), resources.scopes(spec))


def unknown(template: Raw) -> tuple[str, ...]:
    """Constraints of a pod template that the scheduler knows and the allocator does not, for messages."""
    spec = template.get("spec") or {}
    if not isinstance(spec, Mapping):
        return ()
    affinity = spec.get("affinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    volumes, containers = spec.get("volumes") or [], spec.get("containers") or []
    spreads = spec.get("topologySpreadConstraints") or []
    found = {
        "resource claims that all workers share": any(
            c.get("resourceClaimName") for c in spec.get("resourceClaims") or []
        ),
        "volumes' nodes": any("persistentVolumeClaim" in v or "ephemeral" in v for v in volumes),
        "pod affinity": any((affinity.get(k) or {}).get(required) for k in ("podAffinity", "podAntiAffinity")),
        "topology spread": any(s.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule" for s in spreads),
        "host ports": any(p.get("hostPort") for c in containers for p in c.get("ports") or []),
        "scheduling gates": bool(spec.get("schedulingGates")),
        "scheduler": (spec.get("schedulerName") or DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER,
    }
    return tuple(name for name, is_set in found.items() if is_set)


def _rules(spec: Raw, avoid: tuple[str, ...]) -> NodeRules:
    node_affinity = ((spec.get("affinity") or {}).get("nodeAffinity")) or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return NodeRules(
        selector=tuple(sorted((str(k), str(v)) for k, v in (spec.get("nodeSelector") or {}).items())),
        terms=tuple(_term(t) for t in required.get("nodeSelectorTerms") or []),
        tolerations=tuple(
            Toleration(
                str(t.get("key") or ""), str(t.get("operator") or "Equal"), str(t.get("value") or ""),
                str(t.get("effect") or ""), t.get("tolerationSeconds") is not None,
            )
            for t in spec.get("tolerations") or []
        ),
        avoid=avoid,
    )  # fmt: skip


def _term(raw: Raw) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(
            str(e.get("key", "")), str(e.get("operator", "")), tuple(str(v) for v in e.get("values") or ()), of_field
        )
        for of_field, expressions in ((False, "matchExpressions"), (True, "matchFields"))
        for e in raw.get(expressions) or []
    )
