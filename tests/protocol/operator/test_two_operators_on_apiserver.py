"""Two installations that serve one namespace by mistake, each with its own etcd, on a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from elastrain.api import names
from elastrain_cli.etcd_server import EtcdServer

pytestmark = pytest.mark.apiserver

JOBS = 8


@pytest.fixture
def second_etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


def serves(operator) -> bool:
    with contextlib.suppress(OSError):
        return bool(operator.health()["state"])
    return False


def etcds(cluster) -> dict[str, set[str]]:
    """Job → the etcds that its workers were given."""
    found: dict[str, set[str]] = {}
    for pod in cluster.pods().values():
        (trainer,) = pod["spec"]["containers"]
        given = next(e["value"] for e in trainer["env"] if e["name"] == names.ENV_ETCD_ENDPOINTS)
        found.setdefault(pod["metadata"]["labels"][names.LABEL_JOB], set()).add(given)
    return found


def test_each_new_job_has_the_workers_of_one_operator(cluster, operator_factory, etcd, second_etcd, eventually):
    operators = [operator_factory(server, cluster.namespace) for server in (etcd, second_etcd)]
    eventually(lambda: all(serves(o) for o in operators), 60, "both serve")
    jobs = [cluster.create_job(f"job{n}", maxReplicas=3).job for n in range(JOBS)]
    eventually(lambda: len(cluster.pods()) >= 3 * JOBS, 60, "all workers are created")
    assert {job: len(given) for job, given in etcds(cluster).items()} == dict.fromkeys(jobs, 1)
    assert len(cluster.pods()) == 3 * JOBS
