"""Some of the namespaces that the operator is to serve may not be read, or do not exist."""

from __future__ import annotations

from operator_process import OperatorProcess, operator_account, permit


def test_an_operator_starts_beside_a_namespace_that_it_may_not_read_and_serves_it_once_it_may(
    apiserver, cluster, neighbour, etcd, light, operator_process, eventually, tmp_path
):
    operator_process.stop()  # it serves all namespaces
    neighbour.create_job("later", maxReplicas=1)
    cluster.create_job("served", maxReplicas=1)
    account = operator_account(apiserver, tmp_path / "kubeconfig", cluster.namespace)
    served = f"--namespaces={neighbour.namespace},{cluster.namespace},{cluster.namespace}-gone"

    operator = OperatorProcess(light, account, tmp_path / "log", f"--etcd-endpoints={etcd.endpoint}", served)
    try:
        eventually(lambda: "served-0" in cluster.pods(), 60, "a pod in the namespace that may be read")
        assert neighbour.pods() == {}
        assert "forbidden" in operator.health()["state"]["pods"]
        permit(neighbour, cluster.namespace)
        eventually(lambda: "later-0" in neighbour.pods(), 60, "a pod in the namespace that may be read now")
    finally:
        operator.kill()
    assert "Traceback" not in operator.log.read_text()
