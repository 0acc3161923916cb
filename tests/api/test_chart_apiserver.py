"""The chart on a real API server: install, upgrade, uninstall with jobs alive, install again. (No pods run here.)"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import ApiServer

pytestmark = pytest.mark.apiserver

Run = Callable[..., subprocess.CompletedProcess[str]]
RELEASE = ("demo", "charts/elastrain", "--namespace=training")
JOB = """
apiVersion: elastrain.dev/v1alpha1
kind: ElasticTrainingJob
metadata: {name: outlives, namespace: training}
spec:
  maxReplicas: 2
  template: {spec: {containers: [{name: trainer, image: digits:1, command: [python, train.py]}]}}
"""


@pytest.fixture
def installed(helm: Run, apiserver: ApiServer) -> subprocess.CompletedProcess[str]:
    """The chart as release ``demo``. The CRD is there already, so Helm is told to take it over."""
    result = helm("install", *RELEASE, "--create-namespace", "--take-ownership", cluster=apiserver)
    assert result.returncode == 0, result.stderr
    return result


@pytest.fixture(autouse=True)
def _uninstalled_afterwards(helm: Run, apiserver: ApiServer, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(
        lambda: helm("uninstall", "demo", "--namespace=training", "--ignore-not-found", cluster=apiserver)
    )


def test_notes_teach_the_next_commands(installed: subprocess.CompletedProcess[str]) -> None:
    notes = installed.stdout.partition("NOTES:")[2]
    assert "kubectl -n training rollout status deploy/demo-elastrain" in notes
    assert "kubectl scale etj/NAME --replicas=3" in notes
    assert "etcd.persistence.enabled=true" in notes
    assert "Careful" not in notes


def test_server_knows_every_field_of_the_chart(helm: Run, apiserver: ApiServer) -> None:
    settings = (
        "--set=imagePullSecrets[0].name=a",
        "--set=etcd.persistence.enabled=true",
        "--set=watchNamespaces={default}",
    )
    rendered = helm("template", *RELEASE, *settings, "--set=crds.install=false", "--kube-version=1.31.0")
    apiserver.kubectl("create", "namespace", "training")
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
        ("install", *RELEASE),  # the CRD that stayed still says that it is this release's
        ("uninstall", "demo", "--namespace=training"),
    ):
        result = helm(*command, cluster=apiserver)
        assert result.returncode == 0, f"helm {command[0]}: {result.stderr}"
        assert jobs() == ["elastictrainingjob.elastrain.dev/outlives"], command
    deleted = apiserver.kubectl("-n", "training", "delete", "etj", "outlives", "--timeout=10s")
    assert deleted.returncode == 0, "without an operator, nothing may hold a job back: " + deleted.stderr


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("patch", "elastictrainingjobs/status", True),
        ("create", "pods", True),
        ("delete", "pods", True),
        ("patch", "elastictrainingjobs", False),
        ("update", "elastictrainingjobs", False),
        ("get", "secrets", False),
        ("create", "pods/exec", False),
        ("list", "nodes", False),
        ("update", "customresourcedefinitions", False),
    ],
)
def test_operator_may_do_its_work_and_nothing_else(
    apiserver: ApiServer, verb: str, resource: str, allowed: bool
) -> None:
    who = "--as=system:serviceaccount:training:demo-elastrain"
    resource, _, subresource = resource.partition("/")  # to kubectl, a/b would be an object b
    answer = apiserver.kubectl(
        "auth", "can-i", verb, resource, f"--subresource={subresource}", who, "--namespace=default"
    )
    assert answer.stdout.strip() == ("yes" if allowed else "no"), answer.stderr
