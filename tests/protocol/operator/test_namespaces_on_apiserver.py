"""Some of the namespaces that the operator is to serve may not be read, or do not exist."""

from __future__ import annotations

from operator_process import OperatorProcess, operator_account, permit
from raw_cluster import Cluster


def test_an_operator_starts_beside_a_namespace_that_it_may_not_read_and_serves_it_once_it_may(
    apiserver, cluster, etcd, light, operator_process, eventually, tmp_path
):
    operator_process.stop()  # it serves all namespaces
    refused = Cluster(apiserver.kubeconfig, f"{cluster.namespace}-refused")
    refused.call("POST", "/api/v1/namespaces", {"metadata": {"name": refused.namespace}})
    refused.call("POST", f"/api/v1/namespaces/{refused.namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    refused.create_job("later", maxReplicas=1)
    cluster.create_job("served", maxReplicas=1)
    account = operator_account(apiserver, tmp_path / "kubeconfig", cluster.namespace)
    served = f"--namespaces={refused.namespace},{cluster.namespace},{cluster.namespace}-gone"

    operator = OperatorProcess(light, account, tmp_path / "log", f"--etcd-endpoints={etcd.endpoint}", served)
    try:
        eventually(lambda: "served-0" in cluster.pods(), 60, "a pod in the namespace that may be read")
        assert refused.pods() == {}
        assert "forbidden" in operator.health()["state"]["pods"]
        permit(refused, cluster.namespace)
        eventually(lambda: "later-0" in refused.pods(), 60, "a pod in the namespace that may be read now")
    finally:
        operator.kill()
    assert "Traceback" not in operator.log.read_text()
