"""The operator as a process against a real API server and a real etcd; kubelet and agents are played by the test."""

from __future__ import annotations

import pytest

from elastrain.api.records import Outcome, Target, Termination

pytestmark = pytest.mark.apiserver


@pytest.fixture(autouse=True)
def _operator(operator_process):
    operator_process()


def test_job_runs_scales_survives_a_loss_and_succeeds(cluster, play, client, eventually):
    keys = cluster.create_job("whole", minReplicas=1, maxReplicas=4, replicas=2)
    player = play(keys)

    eventually(lambda: cluster.condition("whole", "PodsReady").get("status") == "True", 20, "two workers train")
    assert set(cluster.pods()) == {"whole-0", "whole-1"}

    cluster.patch_job("whole", replicas=4)
    eventually(lambda: cluster.status("whole").get("readyReplicas") == 4, 10, "four workers train")

    player.crash("whole-1", Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="boom"))
    eventually(lambda: cluster.status("whole").get("readyReplicas") == 4, 10, "the lost worker is replaced")
    eventually(lambda: cluster.status("whole")["restarts"]["user"] == 1, 10, "the failure is counted")
    assert "whole-4" in cluster.pods()

    uids = {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}
    cluster.patch_job("whole", replicas=2)
    eventually(lambda: set(cluster.pods()) == {"whole-0", "whole-1", "whole-2"}, 10, "the newest two are drained")
    assert {n: p["metadata"]["uid"] for n, p in cluster.pods().items()}.items() <= uids.items()
    eventually(lambda: Target.decode(client.get(keys.target).value).leaving == (), 10, "nobody is leaving any more")

    player.finish(step=100)
    eventually(lambda: cluster.status("whole").get("phase") == "Succeeded", 10, "the job has succeeded")
    reasons = [reason for reason, _ in cluster.events("whole")]
    for once in ("TargetSet", "WorkerLost", "Succeeded"):
        assert reasons.count(once) == 1, cluster.events("whole")
    metadata = cluster.job("whole")["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
