"""Makes worker pods satisfy the Pod Security Standard "restricted" in fields that their template does not set. Pure.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from typing import Any

Dict = dict[str, Any]


def restrict(body: Dict) -> None:
    """Fill in ``body`` (a pod spec of the right shape) field by field.

    Fields of the template are kept. A container that requests root or privileges is left unchanged: granting half of
    its request would break it.
    """
    pod = dict(body.get("securityContext") or {})
    containers = [*(body.get("initContainers") or []), *body["containers"]]
    contexts = [dict(c.get("securityContext") or {}) for c in containers]
    if not any(_is_root(pod, context) for context in contexts):
        _default(pod, "runAsNonRoot", True)
    _default(pod, "seccompProfile", {"type": "RuntimeDefault"})
    body["securityContext"] = pod
    for container, context in zip(containers, contexts, strict=True):
        if not _is_root(pod, context):
            _restrict_container(context)
        if context:
            container["securityContext"] = context


def _restrict_container(context: Dict) -> None:
    capabilities = dict(context.get("capabilities") or {})
    # The API server refuses this one together with "no escalation".
    if not {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(capabilities.get("add") or []):
        _default(context, "allowPrivilegeEscalation", False)
    _default(capabilities, "drop", ["ALL"])
    context["capabilities"] = capabilities


def _is_root(pod: Dict, context: Dict) -> bool:
    user = context.get("runAsUser")
    return bool(context.get("privileged")) or (pod.get("runAsUser") if user is None else user) == 0


def _default(fields: Dict, name: str, value: Any) -> None:
    """Null means absent in Kubernetes."""
    if fields.get(name) is None:
        fields[name] = value
