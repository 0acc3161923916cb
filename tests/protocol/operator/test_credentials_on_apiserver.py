"""Credentials of jobs from an operator process: a real API server, and an etcd with TLS and authentication."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest

from elastrain.api.keys import JobKeys
from elastrain.etcd import EtcdClient, EtcdDenied
from elastrain_operator.users import EtcdUsers

pytestmark = pytest.mark.apiserver


@pytest.fixture
def flags(secure_etcd, tmp_path):
    key = tmp_path / "job-key"
    key.write_text("k" * 48)
    return (
        f"--etcd-ca={secure_etcd.ca_file}",
        "--etcd-username=root",
        f"--etcd-password-file={secure_etcd.password_file}",
        f"--job-key-file={key}",
    )


def answers(operator) -> bool:
    with suppress(OSError):
        return bool(operator.health())
    return False


def test_a_job_has_its_own_user_and_secret_until_it_is_deleted(
    cluster, secure_etcd, operator_process, operator_factory, flags, eventually
):
    shared = operator_process()  # it serves all namespaces, by another etcd
    eventually(lambda: answers(shared), 30, "the shared operator to be up")
    shared.stop()
    secrets = f"/api/v1/namespaces/{cluster.namespace}/secrets"

    def of(keys: JobKeys) -> dict[str, str]:
        secret = cluster.call("GET", f"{secrets}/{keys.job}-etcd-{keys.uid[:8]}")
        assert secret["metadata"]["ownerReferences"][0]["uid"] == keys.uid
        return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}

    operator = operator_factory(secure_etcd, cluster.namespace, *flags)
    jobs = [cluster.create_job(name, maxReplicas=1) for name in ("one", "two")]
    eventually(lambda: {"one-0", "two-0"} <= cluster.pods().keys(), 60, "pods of both jobs")
    for keys, other in zip(jobs, reversed(jobs), strict=True):
        given = of(keys)
        with EtcdClient(secure_etcd.config(given["username"], given["password"])) as client:
            assert client.get(keys.target) is not None
            with pytest.raises(EtcdDenied):
                client.get(other.target)
    (volume,) = [v for v in cluster.pods()["one-0"]["spec"]["volumes"] if "secret" in v]
    assert volume["secret"]["secretName"] == f"one-etcd-{jobs[0].uid[:8]}"
    assert of(jobs[0])["password"] not in operator.log.read_text()

    with EtcdClient(secure_etcd.root) as root:
        users = EtcdUsers(root)
        assert len(users.names()) == 3
        operator.kill()
        cluster.call("DELETE", cluster.job_path("one"))
        cluster.call("DELETE", f"{cluster.pods_path}/one-0?gracePeriodSeconds=0")  # no garbage collector runs here
        operator_factory(secure_etcd, cluster.namespace, *flags)
        eventually(lambda: len(users.names()) == 2, 60, "the user of the job that is gone to be removed")
        eventually(lambda: root.get_prefix(jobs[0].prefix)[0] == [], 30, "its records to be removed")
        assert any("/two/" in name for name in users.names())
