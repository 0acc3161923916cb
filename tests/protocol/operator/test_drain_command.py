"""``kubectl drain`` itself over nodes with workers: it ends, and some worker always holds the newest state.

Real: kubectl, API server, disruption controller, operator, etcd. The test simulates scheduler, kubelets and agents.
"""

from __future__ import annotations

import pytest

from drained_nodes import Scene, kept
from elastrain.api.records import Outcome, Termination

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(240)]

USERS = {"minAvailable": {"minAvailable": 1}, "maxUnavailable": {"maxUnavailable": 1}}
BUDGETS = {"own": None, **USERS}
FAILED = Termination(outcome=Outcome.FAILED, exit_code=1, reason="ScriptFailed", message="no data")


@pytest.mark.parametrize(("budget", "at_once"), [(None, 2), *zip(USERS.values(), (2, 1), strict=True)], ids=BUDGETS)
def test_a_drain_moves_all_workers_of_an_elastic_job_and_the_last_holder_last(scene: Scene, budget, at_once):
    player = scene.train(3, budget)
    assert scene.on("a") == {"job-0", "job-1", "job-2"}
    with player.paused():  # no evicted worker leaves yet
        drain = scene.drain("a")
        scene.eventually(lambda: drain.was_refused, 30, "the budget refuses the rest")
        assert len(scene.evicted()) == at_once
    assert drain.ends() == 0
    assert not scene.on("a")
    scene.eventually(lambda: scene.trains(3) and len(scene.on("b")) == 3, 60, "all train on the other node")
    assert kept(player), player.formed


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_goes_on_while_the_job_is_already_being_drained(scene: Scene, budget):
    player = scene.train(3, budget)
    scene.pool.join("c", 3)
    with player.paused():
        first = scene.drain("a")
        scene.eventually(scene.evicted, 30, "the first drain has begun")
    second = scene.drain("b")  # where the first replacements may be
    assert (first.ends(), second.ends()) == (0, 0)
    assert not scene.on("a") | scene.on("b")
    scene.eventually(lambda: scene.trains(3) and len(scene.on("c")) == 3, 60, "all train on the last node")
    assert kept(player), player.formed


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_waits_for_no_worker_of_a_job_that_is_suspended(scene: Scene, budget):
    volume = {"name": "c", "persistentVolumeClaim": {"claimName": "c"}}
    template = scene.pool.template(volumes=[volume])
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "c", "mountPath": "/c"}]
    player = scene.train(3, budget, template=template, checkpoint={"path": "/c", "everySteps": 1})
    scene.eventually(lambda: scene.cluster.condition("job", "CheckpointHealthy").get("status") == "True", 30, "a save")
    with player.paused():
        scene.cluster.patch_job("job", suspend=True)
        drain = scene.drain("a")
        scene.eventually(scene.evicted, 30, "the drain has begun")
    assert drain.ends() == 0
    assert not scene.on("a")
    assert scene.drain("b").ends() == 0, "of a node without a worker"
    scene.pool.join("c", 3)
    scene.cluster.patch_job("job", suspend=False)
    scene.eventually(lambda: scene.trains(3) and len(scene.on("c")) == 3, 60, "it resumes on the last node")


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS)
def test_a_drain_waits_for_no_worker_of_a_job_that_fails(scene: Scene, budget):
    player = scene.train(3, budget, backoffLimit=0)
    with player.paused():
        drain = scene.drain("a")
        scene.eventually(lambda: drain.was_refused, 30, "the budget refuses the rest")
        holder = min(scene.on("a") - scene.evicted())
    player.crash(holder, FAILED)
    scene.eventually(lambda: scene.cluster.status("job").get("phase") == "Failed", 30, "it has failed")
    assert drain.ends() == 0
    assert not scene.on("a")


def test_a_drain_of_the_only_holder_ends_in_time_and_names_the_budget(scene: Scene):
    scene.train(1)
    waits = scene.drain("a", within=8)
    assert waits.ends() == 1
    assert waits.was_refused
    assert "global timeout reached: 8s" in waits.text
    assert scene.on("a") == {"job-0"}, "it trains on"
    drain = scene.drain("a")
    scene.cluster.patch_job("job", protectState=False)
    assert drain.ends() == 0
    assert not scene.on("a")


def test_a_drain_needs_the_flag_for_volumes_that_end_with_the_pod(scene: Scene):
    scene.train(2)
    refused = scene.drain("a", "--timeout=10s")
    assert refused.ends() == 1
    assert "cannot delete Pods with local storage (use --delete-emptydir-data to override)" in refused.text
    assert "declare no controller" not in refused.text, "their set is one"
    assert not scene.evicted()
