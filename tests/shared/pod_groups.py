"""Stand-ins for the CRDs of scheduler-plugins and Volcano, with their documented fields."""

from __future__ import annotations

import yaml

from control_plane import ApiServer
from elastrain_operator.pod.gang import SCHEDULERS

INTEGER, TEXT = {"type": "integer", "format": "int32"}, {"type": "string"}
QUANTITIES = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
FIELDS = {
    "coscheduling": {"minMember": INTEGER, "minResources": QUANTITIES, "scheduleTimeoutSeconds": INTEGER},
    "volcano": {
        "minMember": INTEGER,
        "minResources": QUANTITIES,
        "minTaskMember": {"type": "object", "additionalProperties": INTEGER},
        "priorityClassName": TEXT,
        "queue": {**TEXT, "default": "default"},
    },
}


def install(apiserver: ApiServer, scheduler: str) -> None:
    """The CRD of a scheduler's PodGroup. Unknown fields are refused by name, as pruning would hide them."""
    api_group, _, version = SCHEDULERS[scheduler].api.partition("/")
    spec = {"type": "object", "properties": FIELDS[scheduler]}
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"podgroups.{api_group}",
            "annotations": {
                "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
            },
        },
        "spec": {
            "group": api_group,
            "scope": "Namespaced",
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"},
            "versions": [served],
        },
    }
    applied = apiserver.kubectl("apply", "-f", "-", document=definition)
    assert applied.returncode == 0, applied.stderr
    waited = apiserver.kubectl("wait", "--for=condition=Established", f"crd/podgroups.{api_group}", "--timeout=30s")
    assert waited.returncode == 0, waited.stderr


def allow(apiserver: ApiServer, namespace: str, scheduler: str, of: str = "") -> None:
    """The rights that the chart adds for a scheduler, to the account in the namespace ``of``, by default the same."""
    rules = [
        {"apiGroups": [g], "resources": [r], "verbs": sorted(verbs)}
        for (g, r), verbs in SCHEDULERS[scheduler].permissions.items()
    ]
    meta = {"name": "gangs", "namespace": namespace}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    subject = {"kind": "ServiceAccount", "name": "tested-operator", "namespace": of or namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "gangs"}
    binding = {**rbac, "kind": "RoleBinding", "metadata": meta, "roleRef": ref, "subjects": [subject]}
    role = {**rbac, "kind": "Role", "metadata": meta, "rules": rules}
    applied = apiserver.kubectl("apply", "-f", "-", document=yaml.safe_dump_all([role, binding]))
    assert applied.returncode == 0, applied.stderr
