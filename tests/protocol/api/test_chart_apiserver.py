"""The chart on a real API server: install, upgrade, uninstall with existing jobs, install again. (No pods run here.)"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import yaml

from charts import Run
from elastrain_operator.kube.client import CAPACITY_PERMISSIONS, PERMISSIONS

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

RELEASE = ("demo", "charts/elastrain", "--namespace=training")
JOB = """
apiVersion: elastrain.dev/v1alpha1
kind: ElasticTrainingJob
metadata: {name: outlives, namespace: training}
spec:
  maxReplicas: 2
  template: {spec: {containers: [{name: trainer, image: digits:1, command: [python, train.py]}]}}
"""


@pytest.fixture(scope="module")
def installed(helm: Run, apiserver: ApiServer) -> Iterator[subprocess.CompletedProcess[str]]:
    """The chart as release ``demo``. The CRD already exists, so Helm adopts it by an option."""
    result = helm("install", *RELEASE, "--create-namespace", "--take-ownership", cluster=apiserver)
    assert result.returncode == 0, result.stderr
    yield result
    helm("uninstall", "demo", "--namespace=training", cluster=apiserver)


def test_notes_show_the_next_commands(installed: subprocess.CompletedProcess[str]) -> None:
    notes = installed.stdout.partition("NOTES:")[2]
    assert "kubectl -n training rollout status deploy/demo-elastrain" in notes
    assert "kubectl scale etj/NAME --replicas=3" in notes
    assert "etcd needs 3 volume(s) of the default StorageClass" in notes
    assert "Warning: crds.keep" not in notes


@pytest.mark.usefixtures("installed")  # for its namespace
def test_server_knows_every_field_of_the_chart(helm: Run, apiserver: ApiServer) -> None:
    settings = (
        "--set=imagePullSecrets[0].name=a",
        "--set=watchNamespaces={default}",
        "--set=dashboard.enabled=true",
    )
    rendered = helm("template", "other", *RELEASE[1:], *settings, "--set=crds.install=false", "--kube-version=1.34.0")
    result = apiserver.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", document=rendered.stdout)
    assert result.returncode == 0, result.stderr


@pytest.mark.usefixtures("installed")
def test_jobs_outlive_uninstall_and_are_served_again_after_the_next_install(helm: Run, apiserver: ApiServer) -> None:
    def jobs() -> list[str]:
        return apiserver.kubectl("-n", "training", "get", "etj", "-o", "name").stdout.split()

    created = apiserver.kubectl("create", "-f", "-", document=JOB)
    assert created.returncode == 0, created.stderr
    for command in (
        ("upgrade", *RELEASE, "--set=operator.leaseTTL=9"),
        ("uninstall", "demo", "--namespace=training"),
        ("install", *RELEASE),  # the remaining CRD still names this release
    ):
        result = helm(*command, cluster=apiserver)
        assert result.returncode == 0, f"helm {command[0]}: {result.stderr}"
        assert jobs() == ["elastictrainingjob.elastrain.dev/outlives"], command
    deleted = apiserver.kubectl("-n", "training", "delete", "etj", "outlives", "--timeout=10s")
    assert deleted.returncode == 0, "without an operator, nothing may block a job's deletion: " + deleted.stderr


@pytest.mark.usefixtures("installed")
def test_operator_has_only_the_permissions_that_it_needs(apiserver: ApiServer) -> None:
    """The answers of the API server's authorizer, over all roles."""

    def rights(who: str, namespace: str = "default") -> set[tuple[str, str]]:
        what = ("auth", "can-i", "--list", "--no-headers", f"--as={who}", f"--namespace={namespace}")
        listed = apiserver.kubectl(*what)
        assert listed.returncode == 0, listed.stderr
        rows = re.findall(r"^(\S+) .*\[([a-z ]*)\]$", listed.stdout, re.M)
        return {(resource, verb) for resource, verbs in rows for verb in verbs.split()}

    service_account = "system:serviceaccount:training:demo-elastrain"
    anybody = "system:serviceaccount:training:default"
    assert rights(service_account) - rights(anybody) == {
        (f"{resource}.{group}" if group and "/" not in resource else resource.replace("/", f".{group}/"), verb)
        for (group, resource), verbs in {**PERMISSIONS, **CAPACITY_PERMISSIONS}.items()
        for verb in verbs
    }
    lease = {("leases.coordination.k8s.io", verb) for verb in ("create", "get", "update")}
    assert rights(service_account, "training") - rights(service_account) == lease
    for name, answer in (("demo-elastrain", "yes"), ("another", "no")):
        lease_of = f"leases.coordination.k8s.io/{name}"
        asked = apiserver.kubectl(
            "auth", "can-i", "update", lease_of, f"--as={service_account}", "--namespace=training"
        )
        assert asked.stdout.strip() == answer, name


def test_etcd_stays_without_tls_at_an_upgrade_that_does_not_request_it(helm: Run, apiserver: ApiServer) -> None:
    """Running workers got their connection settings at their creation."""

    def scheme() -> str:
        shown = apiserver.kubectl("-n", "former", "get", "statefulset", "former-elastrain-etcd", "-o=yaml").stdout
        return "https" if "--listen-client-urls=https://127.0.0.1:2378" in shown else "http"

    release = ("former", "charts/elastrain", "--namespace=former", "--set=crds.install=false")
    apart = ("--set=rbac.aggregateToDefaultRoles=false",)
    try:
        for command, *settings in (
            ("install", "--create-namespace", "--set=etcd.tls.mode=off"),
            ("upgrade", "--reset-values"),
        ):
            result = helm(command, *release, *apart, *settings, cluster=apiserver)
            assert result.returncode == 0, result.stderr
            assert scheme() == "http", command
        assert "uses neither TLS nor passwords" in result.stdout
        result = helm("upgrade", *release, *apart, "--set=etcd.tls.mode=generated", cluster=apiserver)
        assert (result.returncode, scheme()) == (0, "https"), result.stderr
        result = helm("upgrade", *release, *apart, "--reset-values", cluster=apiserver)
        assert (result.returncode, scheme()) == (0, "https"), result.stderr
    finally:
        helm("uninstall", "former", "--namespace=former", cluster=apiserver)


def test_etcd_keeps_its_form_at_an_upgrade_and_another_one_is_refused_with_the_way_out(
    helm: Run, apiserver: ApiServer
) -> None:
    release = ("settled", "charts/elastrain", "--namespace=settled", "--set=crds.install=false")
    apart = ("--set=rbac.aggregateToDefaultRoles=false",)

    def form() -> tuple[int, bool]:
        asked = apiserver.kubectl("-n", "settled", "get", "statefulset", "settled-elastrain-etcd", "-o=yaml")
        spec = yaml.safe_load(asked.stdout)["spec"]
        return spec["replicas"], "volumeClaimTemplates" in spec

    try:
        for command, *settings in (
            ("install", "--create-namespace", "--set=etcd.persistence.enabled=false"),
            ("upgrade", "--reset-values"),
        ):
            result = helm(command, *release, *apart, *settings, cluster=apiserver)
            assert result.returncode == 0, result.stderr
            assert form() == (1, False), command
        for setting, words in (("replicas=3", "false: a member"), ("persistence.enabled=true", "was installed with")):
            refused = helm("upgrade", *release, *apart, "--reset-values", f"--set=etcd.{setting}", cluster=apiserver)
            assert refused.returncode != 0
            assert words in refused.stderr
        apiserver.kubectl("-n", "settled", "delete", "statefulset", "settled-elastrain-etcd")
        result = helm("upgrade", *release, *apart, "--reset-values", cluster=apiserver)
        assert (result.returncode, form()) == (0, (3, True)), result.stderr
        refused = helm("upgrade", *release, *apart, "--reset-values", "--set=etcd.replicas=1", cluster=apiserver)
        assert "delete statefulset,pvc -l app.kubernetes.io/component=etcd" in refused.stderr
        assert form() == (3, True)
    finally:
        helm("uninstall", "settled", "--namespace=settled", cluster=apiserver)


def test_volumes_that_an_uninstall_has_left_decide_how_many_members_the_next_etcd_has(
    helm: Run, apiserver: ApiServer
) -> None:
    """A member with data, beside empty ones that are the majority, would be a second cluster of its own."""
    release = ("left", "charts/elastrain", "--namespace=left", "--set=crds.install=false")
    apart = ("--set=rbac.aggregateToDefaultRoles=false",)
    apiserver.kubectl("create", "namespace", "left")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data-left-elastrain-etcd-0"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    apiserver.kubectl("apply", "-n", "left", "-f", "-", document=claim)
    refused = helm("install", *release, *apart, "--set=etcd.replicas=3", cluster=apiserver)
    assert "delete statefulset,pvc -l app.kubernetes.io/component=etcd" in refused.stderr
    result = helm("install", *release, *apart, cluster=apiserver)
    try:
        assert result.returncode == 0, result.stderr
        asked = apiserver.kubectl("-n", "left", "get", "statefulset", "left-elastrain-etcd", "-o=yaml")
        assert yaml.safe_load(asked.stdout)["spec"]["replicas"] == 1
    finally:
        helm("uninstall", "left", "--namespace=left", cluster=apiserver)
