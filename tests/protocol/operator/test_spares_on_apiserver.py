"""A warm spare on a real API server and a real etcd; the test simulates kubelet and agents."""

from __future__ import annotations

import pytest

from elastrain.api.records import Outcome, Termination

pytestmark = pytest.mark.apiserver


@pytest.fixture(autouse=True)
def _operator(operator_process):
    operator_process()


def test_a_spare_replaces_a_lost_worker_and_another_one_is_created(cluster, play, eventually):
    player = play(cluster.create_job("covered", maxReplicas=2, warmSpares=1))
    eventually(lambda: cluster.status("covered").get("spares") == {"ready": 1, "desired": 1}, 60, "a spare is warm")
    status = cluster.status("covered")
    assert (status["replicas"], status["readyReplicas"], sorted(cluster.pods())) == (
        2, 2, ["covered-0", "covered-1", "covered-2"],
    )  # fmt: skip
    spare = cluster.pods()["covered-2"]["spec"]["affinity"]["podAntiAffinity"]
    assert list(spare) == ["preferredDuringSchedulingIgnoredDuringExecution"], "the API server accepts the preference"

    lost = Termination(outcome=Outcome.FAILED, exit_code=137, signal=9, reason="RankKilled")
    player.crash("covered-1", lost)
    eventually(lambda: player.in_generation == ("covered-0", "covered-2"), 30, "the spare is in the generation")
    eventually(lambda: "covered-3" in cluster.pods(), 30, "a new spare is made")
    eventually(lambda: cluster.status("covered").get("spares") == {"ready": 1, "desired": 1}, 30, "it is warm")
    eventually(lambda: cluster.status("covered")["acceleratorSeconds"]["spare"] > 0, 30, "it is in the books")

    cluster.patch_job("covered", suspend=True)
    eventually(lambda: cluster.condition("covered", "Suspended").get("status") == "True", 60, "spares leave, too")
