"""What each act costs the API server in writes, with TLS, users, Secrets and capacity sharing, as the chart does."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing, suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from elastrain.etcd import EtcdClient
from node_pool import Pool
from played import Played

pytestmark = pytest.mark.apiserver

WRITES = ("create", "patch", "update", "delete")
BESIDE = {"events", "leases", "subjectaccessreviews", "selfsubjectaccessreviews"}
"""Sent in the background, or by the time."""
QUIET = 2.5
"""Seconds without a write after which an act is over: longer than passes and allocations are delayed."""


class Writes:
    """Counts the operator's writes by verb and resource."""

    def __init__(self, operator) -> None:
        self.operator = operator
        self._before: Counter[str] = Counter()

    def total(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(self.operator.metrics()):
            for sample in family.samples:
                labels = sample.labels
                if sample.name != "elastrain_operator_api_requests_total" or labels["verb"] not in WRITES:
                    continue
                if labels["resource"] not in BESIDE:
                    found[f"{labels['verb']} {labels['resource']}"] += int(sample.value)
        return found

    def since(self, eventually) -> dict[str, int]:
        """Those since the last call, once there are no more."""
        last, since = self.total(), time.monotonic()

        def quiet() -> bool:
            nonlocal last, since
            if (now := self.total()) != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > QUIET

        eventually(quiet, 60, "no more writes", pause=0.25)
        before, self._before = self._before, last
        return dict(last - before)


def answers(operator) -> bool:
    with suppress(OSError):
        return bool(operator.metrics())
    return False


@pytest.fixture
def flags(secure_etcd, tmp_path):
    key = tmp_path / "job-key"
    key.write_text("k" * 48)
    return (
        "--capacity",
        "--capacity-hysteresis=0",
        f"--etcd-ca={secure_etcd.ca_file}",
        "--etcd-username=root",
        f"--etcd-password-file={secure_etcd.password_file}",
        f"--job-key-file={key}",
    )


@pytest.fixture
def root(secure_etcd):
    with EtcdClient(secure_etcd.root) as client:
        yield client


@pytest.fixture
def start(operator_process, operator_factory, secure_etcd, cluster, flags):
    operator_process.stop()  # it serves all namespaces, and does not share them out
    return lambda: operator_factory(secure_etcd, cluster.namespace, *flags)


STATUS = "patch elastictrainingjobs/status"
SET = "patch workersets"


def costs(found: dict[str, int], act: str, least: int, most: int, others: dict[str, int] | None = None) -> None:
    """``most``: updates of the status, if the changes of an act (pods, and the generation) are not seen together."""
    assert least <= found.pop(STATUS, 0) <= most, act
    assert found == (others or {}), act


def test_writes_of_each_act(cluster, start, root, eventually):
    pool = Pool(cluster)
    pool.join("one", 8)
    template = pool.template()
    operator = start()
    keys = cluster.create_job("job", minReplicas=1, maxReplicas=4, replicas=2, template=template)
    with closing(Played(cluster, root, keys)) as player:
        player.may_start = pool.bound
        trains(cluster, eventually, 2)
        writes = Writes(operator)
        costs(writes.since(eventually), "a start", 2, 3, {"create pods": 2, "create secrets": 1, SET: 1})

        cluster.patch_job("job", replicas=3)
        trains(cluster, eventually, 3)
        costs(writes.since(eventually), "a larger spec", 2, 3, {"create pods": 1, SET: 1})

        cluster.patch_job("job", backoffLimit=7)
        eventually(lambda: cluster.status("job")["observedGeneration"] == 3, 30, "the changed spec is reported")
        costs(writes.since(eventually), "a neutral change of the spec", 1, 1)

        cluster.patch_job("job", replicas=2)
        trains(cluster, eventually, 2)
        costs(writes.since(eventually), "a smaller spec", 3, 4, {"delete pods": 1, SET: 1})

        operator.stop()
        operator = start()
        eventually(lambda: answers(operator) and operator.health()["state"]["jobs"] == 1, 60, "another operator")
        writes = Writes(operator)
        costs(writes.since(eventually), "a restart of the operator", 0, 0)

        player.finish(step=100)
        eventually(lambda: cluster.status("job").get("phase") == "Succeeded", 30, "the job has succeeded")
        costs(writes.since(eventually), "the end", 1, 1)


def trains(cluster, eventually, workers: int) -> None:
    eventually(lambda: cluster.status("job").get("readyReplicas") == workers, 60, f"{workers} workers train")
