"""The dashboard of the chart: read-only, closed, and installed only on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import typer

from elastrain_dashboard import app as command

Manifests = list[dict[str, Any]]
Render = Callable[..., Manifests]
ON = "dashboard.enabled=true"


def one(manifests: Manifests, kind: str) -> dict[str, Any]:
    (found,) = [m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == "demo-elastrain-dashboard"]
    return found


def container(manifests: Manifests) -> dict[str, Any]:
    (found,) = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize(
    ("settings", "shown"),
    [((), ["--all-namespaces"]), (("watchNamespaces={a,b}",), ["--namespace=a", "--namespace=b"])],
)
def test_it_shows_the_served_namespaces(rendered: Render, settings: tuple[str, ...], shown: list[str]) -> None:
    command = container(rendered(ON, *settings))["command"]
    host = "--host=demo-elastrain-dashboard.training.svc"
    assert command == ["elastrain", "dashboard", "--address=", "--port=8080", "--authenticate", host, *shown]


def test_users_log_in_unless_the_values_say_otherwise(rendered: Render) -> None:
    assert "--authenticate" in container(rendered(ON))["command"]
    manifests = rendered(ON, "dashboard.authenticate=false")
    assert "--no-key" in container(manifests)["command"]
    assert not [m for m in manifests if m["metadata"]["name"].endswith("-reviews")], "no right that it does not use"
    named = container(rendered(ON, "dashboard.hosts={jobs.example}"))["command"]
    assert "--host=jobs.example" in named


def test_the_command_knows_its_options(rendered: Render) -> None:
    known = {option for p in typer.main.get_command(command.app).params for option in p.opts + p.secondary_opts}
    for settings in ((), ("watchNamespaces={a}",)):
        given = {word.partition("=")[0] for word in container(rendered(ON, *settings))["command"][2:]}
        assert given <= known


def test_it_runs_confined_with_its_own_account(rendered: Render) -> None:
    spec = one(rendered(ON), "Deployment")["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == one(rendered(ON), "ServiceAccount")["metadata"]["name"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "volumes" not in spec
    assert container(rendered(ON))["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert "env" not in container(rendered(ON)), "it needs no access to etcd"


def test_its_service_is_reachable_only_within_the_cluster(rendered: Render) -> None:
    manifests = rendered(ON)
    service = one(manifests, "Service")["spec"]
    assert service["type"] == "ClusterIP"
    labels = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    assert service["ports"][0]["targetPort"] == container(manifests)["ports"][0]["name"]
    operators = next(m for m in manifests if m["kind"] == "Deployment" and m["metadata"]["name"] == "demo-elastrain")
    assert not operators["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not [m for m in manifests if m["kind"] == "Ingress"]


def test_only_clients_named_in_the_values_are_admitted(rendered: Render) -> None:
    closed = one(rendered(ON), "NetworkPolicy")["spec"]
    assert (closed["policyTypes"], closed["ingress"]) == (["Ingress"], [])
    peer = "dashboard.networkPolicy.from[0].namespaceSelector.matchLabels.team=web"
    assert one(rendered(ON, peer), "NetworkPolicy")["spec"]["ingress"] == [
        {"from": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}], "ports": [{"port": "http"}]}
    ]


def test_it_uses_the_operators_image(rendered: Render) -> None:
    settings = ("operator.image.repository=mine/operator", "operator.image.tag=v7")
    assert container(rendered(ON, *settings))["image"] == "mine/operator:v7"
