"""The client against a real API server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path

import pytest
import yaml

from elastrain_cli.client import (
    AsyncJobs,
    JobExists,
    JobNotFound,
    Jobs,
    NotAllowed,
    NotConnected,
    NotInstalled,
    Refused,
)
from elastrain_cli.client.errors import of_answer

pytestmark = pytest.mark.apiserver
CONDITION = {"type": "Running", "status": "True", "reason": "Training", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_a_job_is_submitted_read_changed_and_deleted(cluster, jobs, manifest) -> None:
    job = jobs.submit(manifest(replicas=2))
    assert (job.name, job.namespace, job.spec.desired_replicas) == ("digits", cluster.namespace, 2)
    assert jobs.scale("digits", 3) == 2
    assert jobs.get("digits").spec.replicas == 3
    jobs.suspend("digits")
    assert jobs.get("digits").spec.suspend
    jobs.resume("digits")
    assert not jobs.get("digits").spec.suspend
    assert [j.name for j in jobs.list()] == ["digits"]
    assert (cluster.namespace, "digits") in {(j.namespace, j.name) for j in jobs.list(all_namespaces=True)}
    jobs.delete("digits")
    assert jobs.list() == ()


def test_a_job_has_its_field_manager(cluster, jobs, manifest) -> None:
    jobs.submit(manifest())
    shown = cluster.kubectl("get", "etj", "digits", "-o", "json", "--show-managed-fields")
    assert [account["manager"] for account in json.loads(shown)["metadata"]["managedFields"]] == ["elastrain"]


def test_nothing_is_created_by_a_dry_run(jobs, manifest) -> None:
    assert jobs.submit(manifest(), dry_run=True).name == "digits"
    assert jobs.list() == ()


def test_errors_name_the_cause_and_the_remedy(cluster, jobs, manifest) -> None:
    with pytest.raises(JobNotFound, match=rf"cannot read job nope: namespace {cluster.namespace} has no job nope; "):
        jobs.get("nope")
    jobs.submit(manifest())
    with pytest.raises(JobExists, match="already has a job digits; delete it"):
        jobs.submit(manifest())
    with pytest.raises(Refused, match=r"replicas.*maxReplicas"):
        jobs.scale("digits", 9)
    with pytest.raises(Refused, match=r"unknown field.*colour"):
        jobs.submit(manifest("other", colour="red"))


def test_a_cluster_without_elastrain_is_reported() -> None:
    answer = '{"message": "the server could not find the requested resource"}'
    assert isinstance(of_answer("list jobs", "default", "", 404, answer), NotInstalled)


def test_a_missing_kubeconfig_a_wrong_context_and_a_dead_server_are_distinguished(cluster, tmp_path: Path) -> None:
    with pytest.raises(NotConnected, match="there is no kubeconfig"):
        Jobs(kubeconfig=str(tmp_path / "nowhere"))
    with pytest.raises(NotConnected, match="context nope"):
        Jobs(kubeconfig=cluster.kubeconfig, context="nope")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{nobody.getsockname()[1]}"
        dead = tmp_path / "dead"
        dead.write_text(yaml.safe_dump(config))
        with (
            Jobs(kubeconfig=str(dead)) as jobs,
            pytest.raises(NotConnected, match=r"https://127\S* refuses connections.*--context"),
        ):
            jobs.list()


def test_wrong_credentials_are_reported(cluster, tmp_path: Path) -> None:
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": "stolen"}
    wrong = tmp_path / "wrong"
    wrong.write_text(yaml.safe_dump(config))
    with Jobs(kubeconfig=str(wrong)) as jobs, pytest.raises(NotAllowed, match="does not accept these credentials"):
        jobs.list()


def test_the_missing_verb_is_named_to_a_user_without_a_role(cluster, tmp_path: Path) -> None:
    token = cluster.kubectl("create", "serviceaccount", "guest") and cluster.kubectl("create", "token", "guest").strip()
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    guest = tmp_path / "guest"
    guest.write_text(yaml.safe_dump(config))
    words = r"may not list elastictrainingjobs.elastrain.dev.*request a role"
    with Jobs(kubeconfig=str(guest), namespace=cluster.namespace) as jobs, pytest.raises(NotAllowed, match=words):
        jobs.list()


def test_a_watch_shows_each_change_and_ends_with_the_job(cluster, jobs, manifest) -> None:
    jobs.submit(manifest(replicas=2))
    seen = jobs.watch("digits")
    assert next(seen).spec.replicas == 2
    cluster.says("digits", phase="Running", step=5, conditions=[CONDITION])
    assert (job := next(seen)).status is not None and job.status.step == 5
    cluster.kubectl("delete", "etj", "digits")
    assert next(seen, None) is None


def test_waiting_ends_when_the_job_does(cluster, jobs, manifest) -> None:
    jobs.submit(manifest())
    timer = threading.Timer(0.3, lambda: cluster.says("digits", phase="Succeeded"))
    timer.start()
    job = jobs.wait("digits", timeout_seconds=30)
    timer.join()
    assert job.status is not None and job.status.phase == "Succeeded"


def test_a_timeout_names_what_was_awaited(cluster, jobs, manifest) -> None:
    jobs.submit(manifest())
    cluster.says("digits", phase="Running")
    with pytest.raises(TimeoutError, match=r"job digits is Running after 0\.5 s, waited for Succeeded or Failed"):
        jobs.wait("digits", timeout_seconds=0.5)


def test_waiting_ends_if_the_job_is_deleted(cluster, jobs, manifest) -> None:
    jobs.submit(manifest())
    timer = threading.Timer(0.3, lambda: cluster.kubectl("delete", "etj", "digits"))
    timer.start()
    with pytest.raises(JobNotFound, match="deleted during the wait"):
        jobs.wait("digits", timeout_seconds=30)
    timer.join()


def test_workers_come_in_order_with_the_reason_why_they_do_not_run(cluster, jobs, manifest, pod) -> None:
    jobs.submit(manifest())
    for ordinal in (10, 2):
        cluster.kubectl("create", "-f", "-", document=pod("digits", ordinal))
    waiting = {"phase": "Pending", "containerStatuses": [{
        "name": "trainer", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }]}  # fmt: skip
    cluster.kubectl(
        "patch", "pod", "digits-10", "--subresource=status", "--type=merge", "-p", json.dumps({"status": waiting})
    )
    first, second = jobs.workers("digits")
    assert (first.name, second.name) == ("digits-2", "digits-10")
    assert (second.phase, second.reason, second.message) == ("Pending", "ImagePullBackOff", "no such image")


def test_files_belong_to_their_job(cluster, jobs, manifest) -> None:
    job = jobs.submit(manifest())
    jobs.add_files(job, "digits-script", {"train.py": "print(1)"})
    found = json.loads(cluster.kubectl("get", "configmap", "digits-script", "-o", "json"))
    assert found["data"] == {"train.py": "print(1)"}
    assert found["metadata"]["ownerReferences"][0]["uid"] == job.metadata["uid"]


def test_the_client_works_inside_a_running_event_loop(cluster, manifest) -> None:
    async def notebook() -> int:
        with Jobs(namespace=cluster.namespace, kubeconfig=cluster.kubeconfig) as jobs:
            jobs.submit(manifest())
        async with await AsyncJobs.connect(namespace=cluster.namespace, kubeconfig=cluster.kubeconfig) as jobs:
            return len(await jobs.list())

    assert asyncio.run(notebook()) == 1


def test_lists_longer_than_a_page_are_complete(jobs, manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain_resource.reflector.PAGE", 2)
    for i in range(5):
        jobs.submit(manifest(f"job-{i}"))
    assert [j.name for j in jobs.list()] == [f"job-{i}" for i in range(5)]
