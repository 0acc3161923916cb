"""The use of the cluster's accelerators, per resource, by node and by job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from elastrain_dashboard.access import View
from elastrain_dashboard.facts import CPU_WORKERS, NodeFacts, PodFacts, is_accelerator
from elastrain_dashboard.history import OTHERS

NODES = 200
"""Nodes of a resource that are listed individually: nodes in use first."""
RESOURCES = 8

Json = dict[str, Any]


def picture(pods: Iterable[PodFacts], nodes: Iterable[NodeFacts] | None) -> list[Json]:
    """Each resource with its total (None: unknown) and its use by jobs, by job and by node.

    ``nodes`` is None without permission to read them: then only nodes with workers appear. The most used resource comes
    first.
    """
    held: dict[str, dict[str, dict[str, int]]] = {}  # resource -> node -> job -> count
    for pod in pods:
        if pod.count:
            jobs = held.setdefault(pod.resource, {}).setdefault(pod.worker.node, {})
            jobs[pod.job] = jobs.get(pod.job, 0) + pod.count
    known = tuple(nodes) if nodes is not None else None
    offered = {r for n in known or () for r, _ in n.devices if is_accelerator(r)}
    found = [_resource(r, held.get(r, {}), known) for r in sorted(held.keys() | offered)]
    found.sort(key=lambda r: (r["resource"] == CPU_WORKERS, -r["held"], -(r["total"] or 0), r["resource"]))
    return found[:RESOURCES]


def seen(shown: Json, view: View) -> Json:
    """``{"resources": ..., "history": ..., "nodesKnown": ...}`` as a view shows it; shares of other jobs are summed."""
    if view.namespaces is None and view.nodes:
        return shown
    return {
        "resources": [_seen_resource(r, view) for r in shown["resources"]],
        "history": {
            resource: {
                "byJob": _seen_shares(of["byJob"], view),
                "byNode": of["byNode"] if view.nodes else {**of["byNode"], "parts": {}},
            }
            for resource, of in shown["history"].items()
        },
        "nodesKnown": shown["nodesKnown"] and view.nodes,
    }


def _seen_resource(resource: Json, view: View) -> Json:
    def jobs(of: Json) -> Json:
        return {**of, "jobs": [j for j in of["jobs"] if view.sees(j["key"])]}

    nodes = [jobs(node) for node in resource["nodes"]] if view.nodes else []
    return {**jobs(resource), "nodes": nodes}


def _seen_shares(shares: Json, view: View) -> Json:
    parts = {name: values for name, values in shares["parts"].items() if view.sees(name)}
    hidden = [values for name, values in shares["parts"].items() if name not in parts]
    if hidden:
        parts[OTHERS] = [sum(column) for column in zip(*hidden, strict=True)]
    return {**shares, "parts": parts}


def _resource(resource: str, held: dict[str, dict[str, int]], nodes: tuple[NodeFacts, ...] | None) -> Json:
    countable = nodes is not None and resource != CPU_WORKERS
    facts = {n.name: n for n in nodes or ()}
    totals = {n.name: dict(n.devices).get(resource, 0) for n in nodes or ()} if countable else {}
    places: list[Json] = [
        {
            "name": name,
            "ready": facts[name].ready if name in facts else None,
            "cordoned": facts[name].cordoned if name in facts else None,
            "total": totals.get(name) if countable else None,
            "held": sum(held.get(name, {}).values()),
            "jobs": _ordered(held.get(name, {})),
        }
        for name in {*held, *(n for n, total in totals.items() if total)}
    ]
    places.sort(key=lambda p: (-p["held"], p["name"]))
    shown = sorted(places[:NODES], key=lambda p: str(p["name"]))
    jobs: dict[str, int] = {}
    for owners in held.values():
        for job, count in owners.items():
            jobs[job] = jobs.get(job, 0) + count
    return {
        "resource": resource,
        "total": sum(totals.values()) if countable else None,
        "held": sum(jobs.values()),
        "jobs": _ordered(jobs),
        "nodes": shown,
        "nodesLeftOut": len(places) - len(shown),
    }


def _ordered(counts: dict[str, int]) -> list[Json]:
    return [{"key": k, "count": n} for k, n in sorted(counts.items(), key=lambda part: (-part[1], part[0]))]
