"""Groups of two workers on a real API server and a real etcd; the test simulates kubelet and agents."""

from __future__ import annotations

import pytest

from elastrain.api import names
from elastrain.api.records import Outcome, Termination

pytestmark = pytest.mark.apiserver


@pytest.fixture(autouse=True)
def _operator(operator_process):
    operator_process()


def places(cluster) -> dict[str, list[str]]:
    """By group, the places of pods that have not ended."""
    found: dict[str, list[str]] = {}
    for pod in cluster.pods().values():
        if pod["status"]["phase"] in ("Pending", "Running"):
            labels = pod["metadata"]["labels"]
            found.setdefault(labels[names.LABEL_GROUP], []).append(labels[names.LABEL_PLACE])
    return {group: sorted(found[group]) for group in sorted(found)}


def scale(cluster, replicas: int) -> None:
    """As kubectl scale does."""
    cluster.merge(cluster.job_path("wide") + "/scale", {"spec": {"replicas": replicas}})


def test_kubectl_scale_adds_a_group_and_a_lost_worker_is_replaced_in_its_place(cluster, play, eventually):
    sizes = {"minReplicas": 1, "maxReplicas": 3, "replicas": 2}
    keys = cluster.create_job("wide", **sizes, parallelism={"shards": 2, "topologyKey": "example.com/rack"})
    player = play(keys)
    player.group_size = 2
    eventually(lambda: cluster.status("wide").get("readyReplicas") == 2, 60, "two groups train")
    assert places(cluster) == {"0": ["0", "1"], "1": ["0", "1"]}
    assert cluster.status("wide")["replicas"] == 2

    scale(cluster, 3)
    eventually(lambda: cluster.status("wide").get("readyReplicas") == 3, 60, "three groups train")
    assert places(cluster) == {"0": ["0", "1"], "1": ["0", "1"], "2": ["0", "1"]}
    seen = cluster.call("GET", cluster.job_path("wide") + "/scale")["status"]
    assert seen["replicas"] == 3
    assert seen["selector"].endswith(f",{names.LABEL_PLACE}=0"), "an HPA divides by as many pods as there are replicas"

    lost = next(n for n, p in cluster.pods().items() if p["metadata"]["labels"][names.LABEL_GROUP] == "1")
    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items() if n != lost}
    player.crash(lost, Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled"))
    eventually(lambda: cluster.status("wide").get("readyReplicas") == 2, 30, "its group does not train")
    eventually(lambda: cluster.status("wide").get("readyReplicas") == 3, 60, "it is whole again")
    assert places(cluster) == {"0": ["0", "1"], "1": ["0", "1"], "2": ["0", "1"]}
    assert uids.items() <= {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}.items(), "no other pod changed"

    scale(cluster, 1)
    eventually(lambda: cluster.status("wide").get("readyReplicas") == 1, 60, "one group trains")
    eventually(lambda: [*map(len, places(cluster).values())] == [2], 30, "two groups are gone, whole")
