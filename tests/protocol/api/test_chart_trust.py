"""Trust in the rendered chart: the network, replicas, certificates and users, permissions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from charts import CREDENTIALS, EXTERNAL, VALUE_SETS, Manifests, Render, environment, one, operator
from elastrain.api import names
from elastrain_operator.kube.client import PERMISSIONS


# ---- the network -----------------------------------------------------------------------------------------------------
def ingress(manifests: Manifests, name: str) -> list[dict[str, Any]]:
    spec = next(m for m in manifests if m["kind"] == "NetworkPolicy" and m["metadata"]["name"] == name)["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    rules: list[dict[str, Any]] = spec["ingress"]
    return rules


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        ((), {}),
        (
            ("watchNamespaces={team-a,team-b}",),
            {"matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
            ]},
        ),
    ],
    ids=["everywhere", "in the namespaces that are served"],
)  # fmt: skip
def test_only_operator_and_workers_reach_etcd(
    rendered: Render, values: tuple[str, ...], namespaces: dict[str, Any]
) -> None:
    clients, peers = ingress(rendered(*values), "demo-elastrain-etcd")
    operators, workers = clients["from"]
    assert clients["ports"] == [{"port": "client"}]
    labels = operator(rendered(*values))["spec"]["template"]["metadata"]["labels"]
    assert operators == {"podSelector": {"matchLabels": labels}}
    assert workers == {
        "namespaceSelector": namespaces,
        "podSelector": {"matchExpressions": [{"key": names.LABEL_JOB_UID, "operator": "Exists"}]},
    }
    member = one(rendered(*values), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert peers == {"ports": [{"port": 2380}], "from": [{"podSelector": {"matchLabels": member}}]}


def test_operator_is_reachable_only_on_its_ports(rendered: Render) -> None:
    (container,) = operator(rendered())["spec"]["template"]["spec"]["containers"]
    served = [{"port": port["name"]} for port in container["ports"]]
    assert ingress(rendered(), "demo-elastrain") == [{"ports": served}]


def test_no_policy_is_rendered_if_it_is_off(rendered: Render) -> None:
    manifests = rendered("etcd.networkPolicy=false")
    assert not [m for m in manifests if m["kind"] == "NetworkPolicy" and "etcd" in m["metadata"]["name"]]


# ---- replicas of the operator ----------------------------------------------------------------------------------------
def test_operator_has_a_stand_by_on_another_node_that_a_drain_keeps(rendered: Render) -> None:
    deployment = operator(rendered())["spec"]
    assert deployment["replicas"] == 2
    (spread,) = deployment["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    term = spread[0]["podAffinityTerm"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    budget = next(m for m in rendered() if m["kind"] == "PodDisruptionBudget" and "etcd" not in m["metadata"]["name"])
    assert budget["spec"]["maxUnavailable"] == 1
    (container,) = deployment["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}


def test_a_single_operator_blocks_no_drain(rendered: Render) -> None:
    manifests = rendered("operator.replicas=1", "etcd.replicas=1")
    assert not [m for m in manifests if m["kind"] == "PodDisruptionBudget"]
    assert environment(manifests)["ELASTRAIN_LEASE"] == "training/demo-elastrain", "an upgrade runs two for a moment"


def test_affinity_of_the_values_replaces_the_charts(rendered: Render) -> None:
    manifests = rendered("operator.affinity.nodeAffinity.x=y")
    assert operator(manifests)["spec"]["template"]["spec"]["affinity"] == {"nodeAffinity": {"x": "y"}}


# ---- TLS and users ---------------------------------------------------------------------------------------------------
def test_each_mode_renders_what_it_mounts(rendered: Render) -> None:
    def made(*settings: str) -> list[str]:
        kinds = ("Secret", "Issuer", "Certificate")
        return sorted(f"{m['kind']} {m['metadata']['name']}" for m in rendered(*settings) if m["kind"] in kinds)

    etcd = "demo-elastrain-etcd"
    root = f"Secret {etcd}-root"
    assert made() == [root, f"Secret {etcd}-server"]
    assert made("etcd.tls.mode=off") == made(*EXTERNAL) == made(*CREDENTIALS) == []
    assert made(*VALUE_SETS["own-certificate"]) == []
    own_ca = [f"Certificate {etcd}-ca", f"Issuer {etcd}-ca", f"Issuer {etcd}-self-signed"]
    assert made("etcd.tls.mode=cert-manager") == [f"Certificate {etcd}", *own_ca, root]
    named = ("etcd.tls.mode=cert-manager", "etcd.tls.issuerRef.name=vault", "etcd.tls.issuerRef.kind=ClusterIssuer")
    assert made(*named) == [f"Certificate {etcd}", root]
    assert one(rendered(*named), "Certificate")["spec"]["issuerRef"] == {"kind": "ClusterIssuer", "name": "vault"}


def test_certificate_is_for_the_names_that_clients_use(rendered: Render) -> None:
    host = environment(rendered())[names.ENV_ETCD_ENDPOINTS].partition(":")[0]
    certificate = one(rendered("etcd.tls.mode=cert-manager", "etcd.tls.issuerRef.name=mine"), "Certificate")
    assert host in certificate["spec"]["dnsNames"]


def test_operator_logs_in_as_root_and_creates_a_user_for_each_job(rendered: Render) -> None:
    env = environment(rendered())
    assert env[names.ENV_ETCD_USERNAME] == "root"
    assert "ELASTRAIN_WORKER_ETCD_SECRET" not in env
    spec = operator(rendered())["spec"]["template"]["spec"]
    paths = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
    mounted = {f"{paths[v['name']]}/{item['path']}" for v in spec["volumes"] for item in v["secret"]["items"]}
    files = {env[names.ENV_ETCD_CA], env[names.ENV_ETCD_PASSWORD_FILE], env["ELASTRAIN_JOB_KEY_FILE"]}
    assert files == mounted, "only the files that the operator reads, and no private key of a certificate"


def test_own_etcd_may_have_a_user_for_each_job_too(rendered: Render) -> None:
    env = environment(rendered(*VALUE_SETS["per-job"]))
    assert env["ELASTRAIN_JOB_KEY_FILE"] == "/etc/elastrain/etcd/job-key"
    assert "ELASTRAIN_WORKER_ETCD_SECRET" not in env


def test_an_operator_without_users_has_no_permission_for_secrets(rendered: Render) -> None:
    for settings, may in (
        ((), True),
        (VALUE_SETS["per-job"], True),
        (CREDENTIALS, False),
        (("etcd.tls.mode=off",), False),
    ):
        role = one(rendered(*settings, "rbac.aggregateToDefaultRoles=false"), "ClusterRole")
        assert (("", "secrets") in granted(role)) is may, settings


# ---- rights ----------------------------------------------------------------------------------------------------------
def granted(role: dict[str, Any]) -> dict[tuple[str, str], frozenset[str]]:
    return {
        (group, resource): frozenset(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_operator_serves_the_namespaces_of_its_permissions(rendered: Render) -> None:
    assert environment(rendered())["ELASTRAIN_NAMESPACES"] == ""
    manifests = rendered("watchNamespaces={team-a,team-b}", "rbac.aggregateToDefaultRoles=false")
    assert not [m for m in manifests if m["kind"].startswith("ClusterRole")]
    assert environment(manifests)["ELASTRAIN_NAMESPACES"] == "team-a,team-b"


def test_nodes_are_read_only_if_the_cluster_is_shared_out(rendered: Render) -> None:
    manifests = rendered("capacity.enabled=false", "rbac.aggregateToDefaultRoles=false")
    assert granted(one(manifests, "ClusterRole")) == dict(PERMISSIONS)
    assert "ELASTRAIN_CAPACITY" not in environment(manifests)
    assert "ELASTRAIN_CAPACITY" not in environment(rendered("watchNamespaces={team-a}"))


def test_operator_gets_the_settings_for_sharing_the_cluster_out(rendered: Render) -> None:
    quota, weight = r"capacity.quotas.team-a.nvidia\.com/gpu=8", "capacity.weights.team-a=2"
    told = environment(rendered(quota, weight, "capacity.hysteresisSeconds=90", "capacity.sharing=balanced"))
    assert told["ELASTRAIN_CAPACITY"] == "true"
    assert json.loads(told["ELASTRAIN_CAPACITY_QUOTAS"]) == {"team-a": {"nvidia.com/gpu": 8}}
    assert json.loads(told["ELASTRAIN_CAPACITY_WEIGHTS"]) == {"team-a": 2}
    assert told["ELASTRAIN_CAPACITY_HYSTERESIS"] == "90"
    assert told["ELASTRAIN_CAPACITY_SHARING"] == "balanced"


def test_users_rights_extend_kubernetes_own_roles(rendered: Render) -> None:
    manifests = rendered()
    view, edit = one(manifests, "ClusterRole", ".view"), one(manifests, "ClusterRole", ".edit")
    assert {v for verbs in granted(view).values() for v in verbs} == {"get", "list", "watch"}
    assert (names.GROUP, f"{names.PLURAL}/status") not in granted(edit)
