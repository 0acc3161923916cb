"""A separate namespace on a real API server, and a job for it: for the tests of client and dashboard."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from control_plane import ApiServer
from elastrain.api import names


class Cluster:
    """One namespace, through kubectl, independent of the tested client."""

    def __init__(self, apiserver: ApiServer, namespace: str) -> None:
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
def cluster(apiserver: ApiServer) -> Iterator[Cluster]:
    found = Cluster(apiserver, f"client-{uuid.uuid4().hex[:8]}")
    found.kubectl("create", "namespace", found.namespace)
    found.kubectl("create", "serviceaccount", "default")  # no controller manager makes it here
    yield found
    found.kubectl("delete", "namespace", found.namespace, "--wait=false")


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
