"""Controllers that evict pods of others, over a job that trains: the descheduler, and the updater of the vertical pod
autoscaler. Real programs; a program that is not there skips its tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench_harness.processes import free_ports
from control_plane import CACHE, ApiServer, program, running
from drained_nodes import BOUND, Scene, kept
from elastrain.api import names

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(240)]
REQUIRED = "ELASTRAIN_REQUIRE_NEIGHBOURS"


# ---- the descheduler -------------------------------------------------------------------------------------------------
UNPROTECTED = {"podProtections": {"defaultDisabled": ["PodsWithLocalStorage"]}}


def deschedule(scene: Scene, apiserver: ApiServer, home: Path, evictor: dict[str, Any], **duplicates: Any) -> str:
    """One run that moves pods of one owner off a node that has several of them. Returns its log."""
    descheduler = program(
        "descheduler", "ELASTRAIN_DESCHEDULER", REQUIRED, "`go build ./cmd/descheduler` of kubernetes-sigs/descheduler"
    )
    only = {"namespaces": {"include": [scene.cluster.namespace]}}
    plugins = [("DefaultEvictor", evictor), ("RemoveDuplicates", {**only, **duplicates})]
    profile = {
        "name": "spread",
        "pluginConfig": [{"name": name, "args": args} for name, args in plugins],
        "plugins": {"balance": {"enabled": ["RemoveDuplicates"]}},
    }
    policy = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy", "profiles": [profile]}
    (home / "policy.yaml").write_text(yaml.safe_dump(policy))
    command = [descheduler, f"--kubeconfig={apiserver.kubeconfig}", f"--policy-config-file={home / 'policy.yaml'}"]
    command += ["--disable-metrics", f"--secure-port={free_ports(1)[0]}", f"--cert-dir={home}", "-v=4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def test_the_descheduler_evicts_no_worker_by_default_since_its_shared_memory_is_local_storage(
    scene: Scene, apiserver: ApiServer, tmp_path: Path
):
    player = scene.train(3)
    with player.paused():
        log = deschedule(scene, apiserver, tmp_path, {})
        assert "pod has local storage and is protected against eviction" in log
        assert not scene.evicted()


def test_the_descheduler_spreads_workers_one_after_the_other_if_told_to(
    scene: Scene, apiserver: ApiServer, tmp_path: Path
):
    player = scene.train(3)
    assert len(scene.on("a")) == 3
    with player.paused():
        deschedule(scene, apiserver, tmp_path, UNPROTECTED)
        assert len(scene.evicted()) == 1, "two of three are an even share of two nodes"
    scene.eventually(lambda: scene.trains(3) and not scene.evicted(), 60, "its replacement trains")
    assert kept(player), player.formed


def test_the_descheduler_leaves_workers_alone_if_their_owner_s_kind_is_excluded(
    scene: Scene, apiserver: ApiServer, tmp_path: Path
):
    player = scene.train(3)
    with player.paused():
        deschedule(scene, apiserver, tmp_path, UNPROTECTED, excludeOwnerKinds=[names.SET_KIND])
        assert not scene.evicted()


# ---- the vertical pod autoscaler -------------------------------------------------------------------------------------
@pytest.fixture
def updater(scene: Scene, apiserver: ApiServer, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Its updater, which looks every second, and its log."""
    path = program("vpa/updater", "ELASTRAIN_VPA_UPDATER", REQUIRED, "scripts/get-vpa")
    crds = apiserver.kubectl("apply", "-f", "-", document=(CACHE / "vpa/crds.yaml").read_text())
    assert crds.returncode == 0, crds.stderr
    command = [path, f"--kubeconfig={apiserver.kubeconfig}", "--updater-interval=1s", "--min-replicas=1", "-v=4"]
    command += ["--use-admission-controller-status=false"]  # nobody else runs here
    command += [f"--address=127.0.0.1:{free_ports(1)[0]}", f"--vpa-object-namespace={scene.cluster.namespace}"]
    with running(command, tmp_path / "updater.log", tmp_path) as process:
        yield process, tmp_path / "updater.log"


def advise(scene: Scene, name: str, api_version: str, kind: str, target: str) -> None:
    """An autoscaler that recommends much more than the pods of ``target`` ask for, and may evict them."""
    path = f"/apis/autoscaling.k8s.io/v1/namespaces/{scene.cluster.namespace}/verticalpodautoscalers"
    policy = {"updateMode": "Recreate", "minReplicas": 1}
    spec = {"targetRef": {"apiVersion": api_version, "kind": kind, "name": target}, "updatePolicy": policy}
    body = {"apiVersion": "autoscaling.k8s.io/v1", "kind": "VerticalPodAutoscaler", "metadata": {"name": name}}
    made = scene.cluster.call("POST", path, {**body, "spec": spec})
    much = {"cpu": "4", "memory": "4Gi"}
    advice = {"containerName": "trainer", "target": much, "lowerBound": much, "upperBound": much}
    since = made["metadata"]["creationTimestamp"]
    given = {"type": "RecommendationProvided", "status": "True", "lastTransitionTime": since}
    status = {"recommendation": {"containerRecommendations": [advice]}, "conditions": [given]}
    scene.cluster.merge(f"{path}/{name}/status", {"status": status})


def test_the_vertical_autoscaler_evicts_no_worker_and_does_not_fail_over_their_two_owners(scene: Scene, updater):
    process, log = updater
    cluster = scene.cluster
    player = scene.train(2)
    (found,) = cluster.call("GET", f"/apis/elastrain.dev/v1alpha1/namespaces/{cluster.namespace}/workersets")["items"]
    advise(scene, "of-the-job", names.API_VERSION, names.KIND, "job")
    advise(scene, "of-the-set", names.API_VERSION, names.SET_KIND, found["metadata"]["name"])
    control(scene)
    with player.paused():
        scene.eventually(scene.evicted, 60, "it evicts others")
        assert scene.evicted() <= {"web-0", "web-1"}, log.read_text()[-2000:]
        assert process.poll() is None, log.read_text()[-3000:]
        assert log.read_text().count("Skipping VPA object because we cannot fetch selector") >= 2


def control(scene: Scene) -> None:
    """Two pods of a ReplicaSet that it evicts."""
    cluster = scene.cluster
    labels = {"app": "web"}
    pod = {"containers": [{"name": "trainer", "image": "web:1", "resources": {"requests": {"cpu": "1m"}}}]}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}}
    spec["template"] = {"metadata": {"labels": labels}, "spec": pod}
    path = f"/apis/apps/v1/namespaces/{cluster.namespace}/replicasets"
    made = cluster.call("POST", path, {"metadata": {"name": "web"}, "spec": spec})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": made["metadata"]["uid"]}
    for n in range(2):
        meta = {"name": f"web-{n}", "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        bound = {**pod, "nodeName": scene.node("b")}
        body = cluster.call("POST", cluster.pods_path, {"metadata": meta, "spec": bound})
        started = body["metadata"]["creationTimestamp"]
        running_since = {"running": {"startedAt": started}}
        cluster.set_trainer(f"web-{n}", "Running", running_since, ready=True)
        cluster.merge(f"{cluster.pods_path}/web-{n}/status", {"status": {"startTime": started}})
    advise(scene, "control", "apps/v1", "ReplicaSet", "web")
