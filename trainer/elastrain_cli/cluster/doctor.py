"""The checks of ``elastrain doctor``: each returns a finding and its remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elastrain.api import names
from elastrain_cli.client import ClusterError, NotAllowed
from elastrain_cli.client.connection import Connection
from elastrain_cli.client.errors import INSTALL

NEEDS: Sequence[tuple[str, str, str]] = (
    ("list", names.GROUP, names.PLURAL),
    ("create", names.GROUP, names.PLURAL),
    ("patch", names.GROUP, names.PLURAL),
    ("delete", names.GROUP, names.PLURAL),
    ("list", "", "pods"),
    ("get", "", "pods/log"),
    ("list", "", "events"),
)
"""(verb, API group, resource): the permissions that the commands need in a namespace."""
OLDEST = (1, 34)
"""The oldest Kubernetes release that the tests run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    state: Literal["ok", "warning", "broken", "unknown"]
    text: str
    fix: str = ""


async def examine(connection: Connection) -> list[Finding]:
    """Run all checks in the order of their dependencies. Stops after a fault that makes the later checks meaningless.

    Does not raise: a failed request becomes a finding.
    """
    try:
        version = await connection.call("GET", "/version", "ask for the cluster's version")
    except ClusterError as error:
        return [Finding("API server", "broken", str(error))]
    found = [api_server(version)]
    try:
        group = await connection.call("GET", f"/apis/{names.GROUP}", f"look for {names.KIND}")
    except ClusterError:
        group = {}
    found.append(resource(group))
    found.append(permissions(await _allowed(connection), connection.namespace))
    deployments = await _list(connection, "/apis/apps/v1/deployments", "app.kubernetes.io/name=elastrain")
    found.append(operator(deployments))
    etcd = "app.kubernetes.io/name=elastrain,app.kubernetes.io/component=etcd"
    found.append(workers(await _admission(connection, deployments), connection.namespace))
    found.append(coordination(await _list(connection, "/api/v1/pods", etcd)))
    found.append(accelerators(await _list(connection, "/api/v1/nodes", "")))
    return found


# ---- judgements (pure) -----------------------------------------------------------------------------------------------
def api_server(version: Mapping[str, Any]) -> Finding:
    """``version``: the answer of ``/version``."""
    release_name = str(version.get("gitVersion", "unknown version"))
    try:
        release = (int(version["major"]), int(str(version["minor"]).rstrip("+")))
    except (KeyError, ValueError):
        return Finding("API server", "unknown", f"answers with an unreadable version: {release_name}")
    if release < OLDEST:
        least = ".".join(map(str, OLDEST))
        return Finding("API server", "broken", f"{release_name}", f"elastrain needs Kubernetes {least} or newer")
    return Finding("API server", "ok", release_name)


def resource(group: Mapping[str, Any]) -> Finding:
    """``group``: the API server's description of the API group; empty if the group is absent."""
    served = [v["version"] for v in group.get("versions", [])]
    if not served:
        return Finding(names.KIND, "broken", "this cluster has no such resource", INSTALL)
    if names.VERSION not in served:
        return Finding(
            names.KIND, "broken", f"served as {', '.join(served)}; this program uses {names.VERSION}",
            "install the operator's version of elastrain",
        )  # fmt: skip
    return Finding(names.KIND, "ok", f"served as {', '.join(served)}")


def permissions(allowed: Mapping[tuple[str, str, str], bool], namespace: str) -> Finding:
    """``allowed``: for each of :data:`NEEDS`, whether this user has the permission; empty if the cluster does not
    answer."""
    if not allowed:
        return Finding("permissions", "unknown", "the cluster did not report this user's permissions")
    lacks = [f"{verb} {resource}" for (verb, _, resource), may in allowed.items() if not may]
    if lacks:
        return Finding(
            "permissions", "warning", f"in namespace {namespace} this user may not {', '.join(lacks)}",
            "ask for a role with these verbs",
        )  # fmt: skip
    return Finding("permissions", "ok", f"all required permissions in namespace {namespace}")


def operator(deployments: Sequence[Mapping[str, Any]] | None) -> Finding:
    """``deployments``: the cluster's elastrain deployments; None if this user may not list them."""
    if deployments is None:
        return Finding("operator", "unknown", "this user may not list deployments")
    ours = [d for d in deployments if d["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "operator"]
    if not ours:
        return Finding("operator", "broken", "not installed by the chart", INSTALL)
    places = {f"{d['metadata']['namespace']}/{d['metadata']['name']}": d.get("status", {}) for d in ours}
    down = [place for place, status in places.items() if not status.get("readyReplicas")]
    if down:
        namespace, name = down[0].split("/")
        return Finding(
            "operator", "broken", f"{', '.join(down)}: no replica is ready; running jobs continue at their size",
            f"kubectl -n {namespace} describe deployment {name}; kubectl -n {namespace} logs deployment/{name}",
        )  # fmt: skip
    ready = ", ".join(f"{place} ({status['readyReplicas']} ready)" for place, status in places.items())
    return Finding("operator", "ok", ready)


def workers(answer: Mapping[str, Any] | ClusterError, namespace: str) -> Finding:
    """``answer``: to the dry run of a worker's creation in ``namespace``."""
    if isinstance(answer, NotAllowed) and " cannot " in str(answer):
        return Finding("workers", "unknown", f"this user may not try to create a pod in namespace {namespace}")
    if isinstance(answer, ClusterError):
        return Finding("workers", "broken", str(answer), "correct the policy, quota or webhook that the message names")
    spec = answer["spec"]
    added = [c["name"] for c in (*spec["containers"], *spec.get("initContainers", ())) if c["name"] != "trainer"]
    words = f", with {', '.join(added)} from the cluster" if added else ""
    return Finding("workers", "ok", f"namespace {namespace} admits them{words}")


def coordination(pods: Sequence[Mapping[str, Any]] | None) -> Finding:
    """``pods``: the pods of the chart's etcd; None if this user may not list them."""
    if pods is None:
        return Finding("etcd", "unknown", "this user may not list pods of all namespaces")
    if not pods:
        return Finding(
            "etcd", "unknown", "not installed by the chart; the operator's log shows whether it reaches etcd"
        )
    down = [p["metadata"]["name"] for p in pods if not _is_ready(p)]
    if down:
        return Finding(
            "etcd", "broken", f"{', '.join(down)}: not ready; running jobs continue at their size",
            f"kubectl -n {pods[0]['metadata']['namespace']} describe pod {down[0]}",
        )  # fmt: skip
    return Finding("etcd", "ok", f"{len(pods)} of {len(pods)} ready")


def accelerators(nodes: Sequence[Mapping[str, Any]] | None) -> Finding:
    """``nodes``: the cluster's nodes; None if this user may not list them."""
    if nodes is None:
        return Finding("accelerators", "unknown", "this user may not list nodes")
    total: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.get("status", {}).get("allocatable", {}).items():
            if "/" in name and not name.startswith("kubernetes.io/") and amount.isdigit() and int(amount):
                total[name] = total.get(name, 0) + int(amount)
    if not total:
        return Finding(
            "accelerators", "warning", f"none on {len(nodes)} nodes: only CPU jobs can run",
            "install the device plugin of your accelerators",
        )  # fmt: skip
    return Finding("accelerators", "ok", ", ".join(f"{count} {name}" for name, count in sorted(total.items())))


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


# ---- questions -------------------------------------------------------------------------------------------------------
async def _list(connection: Connection, path: str, labels: str) -> list[dict[str, Any]] | None:
    query = {"labelSelector": labels} if labels else {}
    try:
        return list((await connection.call("GET", path, f"list {path}", query=query))["items"])
    except NotAllowed:
        return None


async def _admission(
    connection: Connection, deployments: Sequence[Mapping[str, Any]] | None
) -> Mapping[str, Any] | ClusterError:
    """The answer to a worker's creation, as the operator where it is known, since policies judge its pods. A dry run:
    nothing remains."""
    uid = "00000000-0000-0000-0000-000000000000"
    owner = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "doctor", "uid": uid, "controller": True}
    labels = {names.LABEL_JOB: "doctor", names.LABEL_JOB_UID: uid, names.LABEL_ORDINAL: "0"}
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    trainer = {"name": "trainer", "image": "doctor:1", "env": [{"name": names.ENV_JOB, "value": "doctor"}]}
    pod = {
        "metadata": {"name": "doctor-0", "labels": labels, "ownerReferences": [owner]},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{**trainer, "securityContext": secure}],
        },
    }
    as_operator = {}
    for found in deployments or ():
        if found["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "operator":
            account = found["spec"]["template"]["spec"]["serviceAccountName"]
            user = f"system:serviceaccount:{found['metadata']['namespace']}:{account}"
            as_operator = {"Impersonate-User": user}
    path = f"/api/v1/namespaces/{connection.namespace}/pods"
    try:
        return await connection.call(
            "POST", path, "create a worker (a dry run)", body=pod, query={"dryRun": "All"}, headers=as_operator
        )
    except ClusterError as error:
        return error


async def _allowed(connection: Connection) -> dict[tuple[str, str, str], bool]:
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    async def ask(verb: str, group: str, resource: str) -> bool:
        kind, _, sub = resource.partition("/")
        attributes = {
            "namespace": connection.namespace, "verb": verb, "group": group, "resource": kind, "subresource": sub,
        }  # fmt: skip
        body = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }  # fmt: skip
        answer = await connection.call("POST", path, "ask for permissions", body=body)
        return bool(answer.get("status", {}).get("allowed"))

    try:
        answers = await asyncio.gather(*(ask(*need) for need in NEEDS))
    except ClusterError:
        return {}
    return dict(zip(NEEDS, answers, strict=True))
