"""One cluster and one Helm release for all tests; a namespace with a shared volume for each.

The tests drive the cluster by ``kubectl``, ``helm``, ``docker`` and ``elastrain`` only. `make e2e` sets everything up;
afterwards they can be run by themselves: ``pytest -m e2e e2e -k node``.

Several processes may share the cluster (``pytest -n 4``) for all but the tests marked ``alone``, which take away what
others need. Those marked ``nightly`` are not of CI: `make nightly` runs them.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import evidence, release
from harness.commands import CACHE, CommandFailed, kubectl
from harness.jobs import Job, make_folders

Submit = Callable[[dict[str, Any]], Job]
ORDER = {"test_training.py": 0, "test_release.py": 2, "test_release_folder.py": 3}
"""The longest test begins first (others are 1); the release is uninstalled last, and then installed from nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(420, func_only=True))  # evidence of a failure takes its own time
    items.sort(key=lambda item: ORDER.get(item.path.name, 1))


@pytest.fixture(scope="session")
def installed(testrun_uid: str) -> None:
    """The cluster answers, nothing of an earlier run is left, and Helm has installed the chart. One process sees to it
    for all that share a run."""
    CACHE.joinpath("run").mkdir(exist_ok=True)
    with CACHE.joinpath("run/e2e").open("a+") as done:
        fcntl.flock(done, fcntl.LOCK_EX)
        done.seek(0)
        if done.read() == testrun_uid:
            return
        _prepare()
        release.install()
        done.truncate(0)
        done.write(testrun_uid)


def _prepare() -> None:
    try:
        kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=60s")
    except CommandFailed as failure:
        pytest.exit(f"there is no cluster to test on; `make e2e` makes one\n{failure}", returncode=3)
    left = evidence.namespaces()
    for namespace in left:
        _remove(namespace)
    for namespace in left:
        kubectl("wait", "--for=delete", f"namespace/{namespace}", f"persistentvolume/{namespace}", "--timeout=120s")
    release.remove_shared("e2e-*")  # also of namespaces that have gone since
    for node in release.WORKER_NODES:
        release.advertise_gpus(node)
    release.remove_etcd()  # of another form, perhaps


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
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"elastrain-e2e": "yes"}}},
        release.volume(name, (name, "shared"), f"/shared/{name}", "shared", "ReadWriteMany"),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared", "namespace": name},
            "spec": {
                "storageClassName": "shared",
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    ]
    kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


@pytest.fixture
def submit(namespace: str) -> Submit:
    """Applies a manifest in the test's namespace."""

    def apply(manifest: dict[str, Any]) -> Job:
        job = Job(namespace, manifest["metadata"]["name"])
        job.apply(manifest)
        return job

    return apply


def _remove(namespace: str) -> None:
    """Begins it; the next run waits for the end."""
    kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")
    kubectl("delete", "persistentvolume", namespace, "--wait=false", "--ignore-not-found")


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
