"""MultiKueue between two control planes: a manager with Kueue and our operator, and the worker of all other tests.

The test simulates kubelet and agents on the worker.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import Run
from conditions import eventually as wait
from control_plane import ApiServer, control_plane
from elastrain.api.keys import JobKeys
from elastrain.etcd.server import EtcdServer
from kueue_planes import NAMESPACE, Operator, access_of, install, kueue_of
from kueue_server import API, KIND, garbage_collector, install_crds
from kueue_world import World, true
from raw_cluster import Cluster
from warm import Warm

pytestmark = pytest.mark.nightly
SENT = {"managedBy": "kueue.x-k8s.io/multikueue"}
ACCOUNT = {"name": "multikueue-sa", "namespace": "kueue-system"}
RULES = [
    {"apiGroups": [group], "resources": [resource], "verbs": verbs}
    for group, resource, verbs in (
        ("kueue.x-k8s.io", "workloads", ["create", "delete", "get", "list", "watch"]),
        ("kueue.x-k8s.io", "workloads/status", ["get", "patch", "update"]),
        ("batch", "jobs", ["create", "delete", "get", "list", "watch"]),
        ("", "pods", ["create", "delete", "get", "list", "watch"]),
    )
]
"""Of the manager's account on the worker, beside those that our chart has for jobs: those of Kueue's own script."""


@pytest.fixture(scope="module")
def manager(light: Warm, helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A control plane with Kueue, which sends jobs, and our operator."""
    home = tmp_path_factory.mktemp("manager")
    with contextlib.ExitStack() as ends:
        server = ends.enter_context(control_plane(home))
        install_crds(server)
        ends.enter_context(garbage_collector(server, home))
        kueue = kueue_of(server, install(server, helm, "kueue.multiKueue=true"), home / "kueue")
        kueue.start(multiKueue={"externalFrameworks": [{"name": KIND}]})
        ends.callback(kueue.close)
        etcd = ends.enter_context(EtcdServer())
        operator = Operator(light, access_of(server, home / "operator.kubeconfig"), etcd, home)
        ends.callback(operator.start().stop)
        yield server


@pytest.fixture(scope="module")
def sender(manager: ApiServer, kueue_plane: ApiServer, helm: Run, kueue: object) -> Iterator[Cluster]:
    """The manager, connected to the worker by an account with the rights that docs/kueue.md gives it."""
    del kueue  # the worker's runs
    install(kueue_plane, helm, "kueue.multiKueue=true")
    worker, here = Cluster(kueue_plane.kubeconfig, "kueue-system"), Cluster(manager.kubeconfig, "kueue-system")
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    worker.call("POST", "/api/v1/namespaces/kueue-system/serviceaccounts", {"metadata": ACCOUNT})
    worker.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": "multikueue"}, "rules": RULES})
    for role in ("multikueue", f"operator.{NAMESPACE}.kueue"):
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        subjects = [{"kind": "ServiceAccount", **ACCOUNT}]
        body = {"metadata": {"name": f"sender-{role}"}, "roleRef": ref, "subjects": subjects}
        worker.call("POST", f"{rbac}/clusterrolebindings", body)
    path = f"/api/v1/namespaces/kueue-system/serviceaccounts/{ACCOUNT['name']}/token"
    token = worker.call("POST", path, {"spec": {"expirationSeconds": 7200}})["status"]["token"]
    kubeconfig = base64.b64encode(yaml.safe_dump(_access(kueue_plane, token)).encode()).decode()
    secret = {"metadata": {"name": "worker"}, "data": {"kubeconfig": kubeconfig}}
    here.call("POST", "/api/v1/namespaces/kueue-system/secrets", secret)
    source = {"clusterSource": {"kubeConfig": {"locationType": "Secret", "location": "worker"}}}
    config = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": "config"}
    for plural, kind, name, spec in (
        ("multikueueclusters", "MultiKueueCluster", "worker", source),
        ("multikueueconfigs", "MultiKueueConfig", "config", {"clusters": ["worker"]}),
        (
            "admissionchecks", "AdmissionCheck", "send",
            {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": config},
        ),
    ):  # fmt: skip
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec}
        here.call("POST", f"{API}/{plural}", body)
    wait(lambda: true(here.call("GET", f"{API}/multikueueclusters/worker"), "Active"), 60, "the worker is connected")
    yield here
    install(kueue_plane, helm)


def _access(server: ApiServer, token: str) -> dict[str, Any]:
    """A kubeconfig with the server's CA: MultiKueue takes no insecure one."""
    config: dict[str, Any] = yaml.safe_load(server.kubeconfig.read_text())
    [cluster] = config["clusters"]
    ca = Path(server.kubeconfig.parent / "certs/apiserver.crt").read_bytes()
    cluster["cluster"] = {
        "server": cluster["cluster"]["server"],
        "certificate-authority-data": base64.b64encode(ca).decode(),
    }
    config["users"][0]["user"] = {"token": token}
    return config


@pytest.fixture
def here(sender: Cluster, manager: ApiServer, world: World) -> Iterator[World]:
    """The manager's namespace, of the same name, whose queue ``lq`` sends jobs to the worker's, which has 4 GPUs."""
    del sender
    world.plain(4)
    found = World(manager, world.namespace)
    found.plain(8, admissionChecksStrategy={"admissionChecks": [{"name": "send"}]})
    yield found
    found.close()


def mirrored(world: World, name: str, eventually: Any) -> JobKeys:
    """The job that MultiKueue makes on the worker."""
    eventually(lambda: world.exists(name), 30, "the worker has the job")
    return JobKeys(world.namespace, name, world.job(name)["metadata"]["uid"])


def sets(world: World) -> list[dict[str, Any]]:
    """The sets of workers in a cluster's namespace."""
    path = f"/apis/elastrain.dev/v1alpha1/namespaces/{world.namespace}/workersets"
    return list(world.call("GET", path)["items"])


def test_a_sent_job_trains_on_the_worker_with_extras_of_its_own_and_ends_on_both(here, world, play, eventually):
    job = here.submit("sent", 2, 4, **SENT)
    there = mirrored(world, "sent", eventually)
    player = play(there)
    eventually(lambda: world.training(there) == 4, 60, "minimum and extras train on the worker")
    assert set(world.workloads()) == {here.base_name(job), *(f"{world.base_name(there)}-{n}" for n in (1, 2))}
    charged = world.charged(there)
    assert len(charged[here.base_name(job)]) == 2, "two workers are of the mirrored Workload"
    eventually(lambda: true(here.base(job), "Admitted"), 30, "the manager learns that it is admitted")
    eventually(lambda: here.training(job) == 4, 30, "and its status")
    assert not here.pods(), "no pod is on the manager"
    assert set(here.workloads()) == {here.base_name(job)}, "extras are the worker's alone"
    (found,) = sets(world)
    assert [o["uid"] for o in found["metadata"]["ownerReferences"]] == [there.uid], "the worker's operator has made it"
    assert found["spec"] == {"replicas": 4}
    assert not sets(here), "no set of workers is on the manager"
    player.finish(step=9)
    eventually(lambda: true(here.base(job), "Finished"), 30, "the manager's Workload ends")
    eventually(lambda: here.condition("sent", "Succeeded").get("status") == "True", 30, "and its job")


def test_a_workers_own_job_takes_extras_of_a_sent_one_and_not_its_minimum(here, world, play, eventually):
    job = here.submit("sent", 2, 4, **SENT)
    there = mirrored(world, "sent", eventually)
    play(there)
    eventually(lambda: world.training(there) == 4, 60, "it has the whole quota")
    kept = set(world.charged(there)[here.base_name(job)])
    local = world.submit("local", 2, 2)
    play(local)
    eventually(lambda: world.training(local) == 2 and world.training(there) == 2, 60, "the extras' quota moves")
    assert set(world.charged(there)) == {here.base_name(job)}
    assert set(world.charged(there)[here.base_name(job)]) == kept
    assert true(here.base(job), "Admitted")
    assert world.holding() <= 4


def test_the_deletion_of_a_sent_job_leaves_nothing_on_the_worker(here, world, play, eventually):
    job = here.submit("sent", 1, 3, **SENT)
    there = mirrored(world, "sent", eventually)
    play(there)
    eventually(lambda: world.training(there) == 3, 60, "it trains")
    here.drop(here.job_path("sent"))
    eventually(lambda: not here.workloads(job), 40, "its Workload is collected")
    eventually(lambda: not world.exists("sent"), 40, "the mirrored job is deleted")
    eventually(lambda: not world.workloads(), 40, "with base and extras")
    eventually(lambda: not world.holding(), 40, "and its workers")


def test_quota_that_the_manager_takes_back_is_free_on_both_sides(here, world, play, eventually):
    job = here.submit("sent", 2, 3, **SENT)
    there = mirrored(world, "sent", eventually)
    play(there)
    eventually(lambda: world.training(there) == 3, 60, "it trains")
    here.merge(here.workload_path(here.base_name(job)), {"spec": {"active": False}})
    eventually(lambda: "admission" not in here.base(job)["status"], 40, "the manager's quota is free")
    eventually(lambda: not world.exists("sent") and not world.workloads(), 60, "nothing is left on the worker")
    eventually(lambda: not world.holding(), 40, "and its workers leave")
    here.merge(here.workload_path(here.base_name(job)), {"spec": {"active": True}})
    again = mirrored(world, "sent", eventually)
    play(again)
    eventually(lambda: world.training(again) == 3, 60, "it is sent and trains again")
