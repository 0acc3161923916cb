"""One cluster and one Helm release for all tests; a namespace with a shared volume for each.

The tests drive the cluster by ``kubectl``, ``helm``, ``docker`` and ``elastrain`` only. `make e2e` sets everything up;
afterwards they can be run by themselves: ``pytest -m e2e e2e -k node``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import evidence, release
from harness.commands import CACHE, CommandFailed, kubectl
from harness.jobs import Job, make_folders

Submit = Callable[[dict[str, Any]], Job]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(420))


@pytest.fixture(scope="session")
def cluster() -> None:
    """The cluster answers, its workers have GPUs, and nothing of an earlier run is left."""
    try:
        kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
    except CommandFailed as failure:
        pytest.exit(f"there is no cluster to test on; `make e2e` makes one\n{failure}", returncode=3)
    for namespace in evidence.namespaces():
        _remove(namespace)
    for node in release.WORKER_NODES:
        release.advertise_gpus(node)


@pytest.fixture(scope="session")
def installed(cluster: None) -> None:
    """The chart, installed by Helm."""
    release.install()


@pytest.fixture
def namespace(installed: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of its own, with the claim ``shared`` that all nodes can write."""
    name = "e2e-" + "".join(c if c.isalnum() else "-" for c in request.node.name.removeprefix("test_"))[:40].strip("-")
    _make(name)
    yield name
    _remove(name)


@pytest.fixture(scope="module")
def common_namespace(installed: None, request: pytest.FixtureRequest) -> Iterator[str]:
    """One for all tests of a file."""
    name = "e2e-" + request.path.stem.removeprefix("test_").replace("_", "-")
    _make(name)
    yield name
    _remove(name)


def _make(name: str) -> None:
    make_folders(name)
    volume = {"storageClassName": "shared", "accessModes": ["ReadWriteMany"]}
    place = {"hostPath": {"path": f"/shared/{name}"}, "claimRef": {"namespace": name, "name": "shared"}}
    objects = [
        {"kind": "Namespace", "metadata": {"name": name, "labels": {"elastrain-e2e": "yes"}}},
        {
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Gi"}, **volume, **place},
        },
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared", "namespace": name},
            "spec": {**volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]
    items = [{"apiVersion": "v1", **o} for o in objects]
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@pytest.fixture
def submit(namespace: str) -> Submit:
    """Applies a manifest in the test's namespace."""

    def apply(manifest: dict[str, Any]) -> Job:
        job = Job(namespace, manifest["metadata"]["name"])
        job.apply(manifest)
        return job

    return apply


def _remove(namespace: str) -> None:
    kubectl("delete", "namespace", namespace, "--wait", "--timeout=90s", "--ignore-not-found", timeout=120)
    kubectl("delete", "persistentvolume", namespace, "--wait", "--timeout=30s", "--ignore-not-found")
    release.remove_shared(namespace)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Evidence of a failure is taken before the fixtures tidy up."""
    report: pytest.TestReport = yield  # type: ignore[misc, assignment]
    if report.when != "teardown" and report.failed:
        given = getattr(item, "funcargs", {})
        namespace = given.get("namespace") or given.get("common_namespace")
        try:
            told = evidence.collect(CACHE / "e2e-failures" / item.name, namespace)
        except (OSError, CommandFailed) as error:
            told = f"no evidence could be taken: {error}"
        report.sections.append(("evidence", told))
    return report  # type: ignore[return-value]
