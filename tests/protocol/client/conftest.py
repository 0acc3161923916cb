"""A separate namespace on a real API server, and the objects that an operator would write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastrain.api import names
from elastrain_cli.client import Jobs
from namespaced import Cluster, cluster, manifest

__all__ = ["cluster", "manifest"]


@pytest.fixture
def jobs(cluster: Cluster) -> Iterator[Jobs]:
    with Jobs(namespace=cluster.namespace, kubeconfig=cluster.kubeconfig) as client:
        yield client


@pytest.fixture
def pod() -> Callable[..., dict[str, Any]]:
    """``pod("digits", 0)``: a worker pod of the operator's form."""

    def make(job: str, ordinal: int) -> dict[str, Any]:
        labels = {names.LABEL_JOB: job, names.LABEL_ORDINAL: str(ordinal)}
        container = {"name": "trainer", "image": "train:1"}
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{job}-{ordinal}", "labels": labels},
            "spec": {"containers": [container]},
        }  # fmt: skip

    return make
