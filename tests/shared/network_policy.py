"""Kubernetes' rules of ingress NetworkPolicies, evaluated: who reaches which port of a pod. Pure.

https://kubernetes.io/docs/concepts/services-networking/network-policies: policies add up; a pod that one selects
accepts only what a rule of one of them admits; within a peer, both selectors must match; a peer without a
``namespaceSelector`` means the policy's own namespace. No `ipBlock`, since the chart has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Peer:
    """A pod, with the labels of its namespace."""

    namespace: str
    labels: Labels = field(default_factory=dict)
    namespace_labels: Labels = field(default_factory=dict)

    @property
    def of_namespace(self) -> Labels:
        """The API server sets the name as a label."""
        return {**self.namespace_labels, "kubernetes.io/metadata.name": self.namespace}


def admits(policies: Iterable[Mapping[str, Any]], target: Peer, port: int | str, source: Peer) -> bool:
    """Whether ``source`` reaches ``port`` (a number, or the name of a container's port) of ``target``."""
    chosen = [
        p for p in policies
        if p["metadata"]["namespace"] == target.namespace and matches(p["spec"]["podSelector"], target.labels)
    ]  # fmt: skip
    rules = [(p, rule) for p in chosen for rule in p["spec"].get("ingress") or ()]
    return not chosen or any(
        _has_port(rule, port) and _is_from(rule, p["metadata"]["namespace"], source) for p, rule in rules
    )


def matches(selector: Mapping[str, Any], labels: Labels) -> bool:
    """A label selector; an empty one matches all."""
    exact = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(k) == v for k, v in exact.items()) and all(_holds(e, labels) for e in expressions)


def _holds(expression: Mapping[str, Any], labels: Labels) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value is not None and value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


def _has_port(rule: Mapping[str, Any], port: int | str) -> bool:
    return not rule.get("ports") or any(p["port"] == port for p in rule["ports"])


def _is_from(rule: Mapping[str, Any], namespace: str, source: Peer) -> bool:
    return not rule.get("from") or any(_is_peer(peer, namespace, source) for peer in rule["from"])


def _is_peer(peer: Mapping[str, Any], namespace: str, source: Peer) -> bool:
    where = peer.get("namespaceSelector")
    there = source.namespace == namespace if where is None else matches(where, source.of_namespace)
    return there and matches(peer.get("podSelector") or {}, source.labels)
