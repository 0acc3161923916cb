"""A namespace of one's own on a real API server, and what an operator would write there."""

from __future__ import annotations

import importlib.util
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastrain.api import names
from elastrain.client import Jobs

# The API server's fixtures live with the tests of the API; conftest files are not importable by name.
_spec = importlib.util.spec_from_file_location("api_conftest_of_client", Path(__file__).parents[1] / "api/conftest.py")
assert _spec and _spec.loader
_api_conftest = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = _api_conftest  # dataclasses look their module up
_spec.loader.exec_module(_api_conftest)
etcd_program = _api_conftest.etcd_program
bare_apiserver = _api_conftest.bare_apiserver
apiserver = _api_conftest.apiserver


class Cluster:
    """One namespace, by kubectl: the other side of what is tested."""

    def __init__(self, apiserver: Any, namespace: str) -> None:
        self.server = apiserver
        self.kubeconfig = str(apiserver.kubeconfig)
        self.namespace = namespace

    def kubectl(self, *args: str, document: dict[str, Any] | None = None) -> str:
        result = self.server.kubectl("-n", self.namespace, *args, document=document)
        assert result.returncode == 0, result.stderr
        return str(result.stdout)

    def job(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self.kubectl("get", "etj", name, "-o", "json")))

    def says(self, name: str, **status: Any) -> None:
        """Write a job's status as the operator does."""
        patch = json.dumps({"status": status})
        self.kubectl("patch", "etj", name, "--subresource=status", "--type=merge", "-p", patch)


@pytest.fixture
def cluster(apiserver: Any) -> Iterator[Cluster]:
    found = Cluster(apiserver, f"client-{uuid.uuid4().hex[:8]}")
    found.kubectl("create", "namespace", found.namespace)
    found.kubectl("create", "serviceaccount", "default")  # no controller manager makes it here
    yield found
    found.kubectl("delete", "namespace", found.namespace, "--wait=false")


@pytest.fixture
def jobs(cluster: Cluster) -> Iterator[Jobs]:
    with Jobs(namespace=cluster.namespace, kubeconfig=cluster.kubeconfig) as client:
        yield client


@pytest.fixture
def manifest() -> Callable[..., dict[str, Any]]:
    """``manifest("digits", replicas=2)``: a job, fields of its spec in wire names."""

    def make(name: str = "digits", **spec: Any) -> dict[str, Any]:
        container = {"name": "trainer", "image": "train:1", "command": ["python", "train.py"]}
        template = {"spec": {"containers": [container]}}
        return {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name},
            "spec": {"maxReplicas": 4, "template": template, **spec},
        }  # fmt: skip

    return make


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """``pod("digits", 0)``: a worker as the operator makes it."""

    def make(job: str, ordinal: int) -> dict[str, Any]:
        labels = {names.LABEL_JOB: job, names.LABEL_ORDINAL: str(ordinal)}
        container = {"name": "trainer", "image": "train:1"}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{job}-{ordinal}", "labels": labels},
            "spec": {"containers": [container]},
        }  # fmt: skip

    return make
