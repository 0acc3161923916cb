"""Which pods reach etcd: the chart's NetworkPolicy, evaluated, with the labels that the API server lets users set.

The evaluator (``network_policy``) stands for a network plugin: the cluster of the e2e tests has none that enforces
policies.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from charts import Manifests, Render, Run, one
from elastrain.api import names
from network_policy import Peer, admits
from operator_process import operator_account

if TYPE_CHECKING:
    from pathlib import Path

    from control_plane import ApiServer

WORKER = {names.LABEL_JOB_UID: "0f0e"}
MESSAGE = "which opens the network to etcd"


def reaches(manifests: Manifests, source: Peer, port: int | str = "client") -> bool:
    """Whether a pod reaches a port of etcd."""
    labels = one(manifests, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    return admits(policies, Peer("training", labels), port, source)


# ---- the NetworkPolicy -----------------------------------------------------------------------------------------------
def test_workers_of_all_served_namespaces_reach_etcd(rendered: Render) -> None:
    assert reaches(rendered(), Peer("team-a", WORKER))
    assert reaches(rendered("watchNamespaces={team-a,team-b}"), Peer("team-a", WORKER))


@pytest.mark.parametrize(
    "source",
    [
        Peer("team-a"),
        Peer("team-a", {"app.kubernetes.io/name": "elastrain", "app.kubernetes.io/component": "operator"}),
        Peer("training", {"app.kubernetes.io/name": "elastrain", "app.kubernetes.io/component": "dashboard"}),
        Peer("training", {names.LABEL_MANAGED_BY: names.MANAGED_BY}),
    ],
    ids=["a pod", "an operator's labels elsewhere", "the dashboard", "a label that others write"],
)
def test_no_other_pod_reaches_etcd(rendered: Render, source: Peer) -> None:
    assert not reaches(rendered("dashboard.enabled=true"), source)


def test_the_label_opens_nothing_outside_the_served_namespaces(rendered: Render) -> None:
    assert not reaches(rendered("watchNamespaces={team-a,team-b}"), Peer("team-c", WORKER))
    assert not reaches(rendered("watchNamespaces={team-a}"), Peer("team-c", WORKER, {"name": "team-a"}))


def test_members_reach_each_other_and_workers_do_not_reach_that_port(rendered: Render) -> None:
    member = one(rendered(), "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert reaches(rendered(), Peer("training", member), 2380)
    assert not reaches(rendered(), Peer("team-a", member), 2380)
    assert not reaches(rendered(), Peer("team-a", WORKER), 2380)


def test_metrics_of_etcd_are_read_by_the_peers_that_the_values_name_only(rendered: Render) -> None:
    prometheus = Peer("monitoring", {"app": "prometheus"})
    for source in (prometheus, Peer("team-a", WORKER), Peer("training", {"app": "any"})):
        assert not reaches(rendered(), source, 2381)
    where = r"etcd.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring"
    opened = rendered(where, "etcd.metricsFrom[0].podSelector.matchLabels.app=prometheus")
    assert reaches(opened, prometheus, 2381)
    assert not reaches(opened, prometheus), "and etcd itself stays closed to it"
    assert not reaches(opened, Peer("monitoring", {"app": "other"}), 2381)
    assert not reaches(opened, Peer("team-a", WORKER), 2381)


# ---- the ports of workers --------------------------------------------------------------------------------------------
def reaches_worker(manifests: Manifests, source: Peer) -> bool:
    """Whether a pod reaches any port of a worker in ``team-a``."""
    policies = [m for m in manifests if m["kind"] == "NetworkPolicy"]
    return admits(policies, Peer("team-a", WORKER), 40000, source)


@pytest.mark.parametrize(
    "values", [("watchNamespaces={team-a,team-b}",), ("workers.networkPolicy.namespaces={team-a}",)]
)
def test_only_workers_of_the_namespace_reach_a_worker(rendered: Render, values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    assert reaches_worker(manifests, Peer("team-a", WORKER))
    for other in (Peer("team-a"), Peer("team-a", {"app": "any"}), Peer("team-b", WORKER), Peer("training", WORKER)):
        assert not reaches_worker(manifests, other)


def test_the_values_name_further_peers_of_workers(rendered: Render) -> None:
    where = r"workers.networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=monitoring"
    opened = rendered("watchNamespaces={team-a}", where)
    assert reaches_worker(opened, Peer("monitoring"))
    assert not reaches_worker(opened, Peer("team-b", WORKER))


def test_other_pods_of_the_namespace_stay_as_they_are(rendered: Render) -> None:
    policies = [m for m in rendered("watchNamespaces={team-a}") if m["kind"] == "NetworkPolicy"]
    assert admits(policies, Peer("team-a", {"app": "any"}), 80, Peer("team-c"))


def test_workers_have_no_policy_where_the_values_name_no_namespace(rendered: Render) -> None:
    assert reaches_worker(rendered(), Peer("team-c"))


# ---- the label, on a real API server ---------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def tenant(apiserver: ApiServer, helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    found = Tenant(apiserver, helm, tmp_path_factory.mktemp("tenant"))
    yield found
    found.remove()


class Tenant:
    """A user with the rights of Kubernetes' role ``edit`` in a namespace of its own, and an operator that serves it."""

    def __init__(self, apiserver: ApiServer, helm: Run, home: Path) -> None:
        self.apiserver, self.namespace = apiserver, f"tenant-{time.monotonic_ns()}"
        self.do("create", "namespace", self.namespace)
        self.do("create", "serviceaccount", "default", "-n", self.namespace)
        self.may_edit("tenant")
        operator_account(apiserver, home / "operator", self.namespace)
        show = ("--show-only=templates/worker-label.yaml", "--kube-version=1.34.0")
        made = helm("template", "x", "charts/elastrain", "--set=fullnameOverride=label-test", *show)
        self.policy = made.stdout
        self.do("apply", "-f", "-", document=made.stdout)
        deadline = time.monotonic() + 30
        while MESSAGE not in self.create("early", WORKER, "--dry-run=server"):
            assert time.monotonic() < deadline, made.stderr
            time.sleep(0.1)

    def do(self, *words: str, document: Any = None) -> None:
        done = self.apiserver.kubectl(*words, document=document)
        assert done.returncode == 0, done.stderr

    def may_edit(self, user: str) -> None:
        """The parts of the role ``edit``: it is their sum only where a controller adds them up."""
        for part in ("view", "edit"):
            role, name = f"--clusterrole=system:aggregate-to-{part}", f"{part}-{user.replace(':', '-')}"
            self.do("create", "rolebinding", name, role, f"--user={user}", "-n", self.namespace)

    def attempt(self, *words: str, document: Any = None, user: str = "tenant") -> str:
        """Empty: the API server accepts it; else its refusal."""
        done = self.apiserver.kubectl(*words, f"--as={user}", "-n", self.namespace, document=document)
        return "" if done.returncode == 0 else done.stderr

    def create(self, name: str, labels: dict[str, str], *flags: str, user: str = "tenant") -> str:
        container = {"name": "c", "image": "i:1"}
        meta = {"name": name, "labels": labels}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}
        return self.attempt("create", "-f", "-", *flags, document=pod, user=user)

    def remove(self) -> None:
        for policy in yaml.safe_load_all(self.policy):
            self.apiserver.kubectl("delete", policy["kind"], policy["metadata"]["name"], "--wait=false")
        self.apiserver.kubectl("delete", "namespace", self.namespace, "--wait=false")


@pytest.mark.apiserver
def test_a_user_gets_no_pod_that_reaches_etcd(tenant: Tenant, rendered: Render) -> None:
    """The attack: any pod of any namespace, with the workers' label."""
    source = Peer(tenant.namespace, WORKER)
    assert reaches(rendered(), source), "the network would let it through"
    assert MESSAGE in tenant.create("attack", WORKER)
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    tenant.may_edit(controller)
    assert MESSAGE in tenant.create("attack", WORKER, user=controller), "as of a Deployment with the label"


@pytest.mark.apiserver
def test_a_user_labels_no_existing_pod_as_a_worker(tenant: Tenant) -> None:
    assert not tenant.create("plain", {"team": "a"})
    label = f"{names.LABEL_JOB_UID}=0f0e"
    assert MESSAGE in tenant.attempt("label", "pod", "plain", label)
    assert not tenant.attempt("label", "pod", "plain", "team=b", "--overwrite")


@pytest.mark.apiserver
def test_the_operator_labels_workers_and_others_may_change_them(tenant: Tenant) -> None:
    operator = f"system:serviceaccount:{tenant.namespace}:tested-operator"
    assert not tenant.create("worker-0", WORKER, user=operator)
    assert not tenant.attempt("annotate", "pod", "worker-0", "note=x")
    assert not tenant.attempt("delete", "pod", "worker-0", "--now", "--wait=false")
