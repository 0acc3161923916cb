"""Faults around queued jobs: killed operators, other configurations of Kueue, no Kueue at all, a thousand extras."""

from __future__ import annotations

import contextlib
import time

import pytest

from kueue_server import install_crds
from kueue_world import template, true


def settled(world, eventually, jobs, total, within=60):
    """All quota is used, and each pod is charged to an admitted Workload of its own job."""

    def holds():
        if sum(world.training(job) for job in jobs) != total:
            return False
        return all(
            len(pods) == int(world.workloads(job)[name]["spec"]["podSets"][0]["count"])
            for job in jobs
            for name, pods in world.charged(job).items()
        )

    eventually(holds, within, f"{total} workers train, each with a place")
    assert world.reserved() == world.holding() == total


@pytest.mark.nightly
@pytest.mark.parametrize("kills", [1, 12])
def test_a_killed_operator_leaks_no_quota_and_makes_no_second_workload(world, play, operator, eventually, kills):
    world.plain(6)
    first = world.submit("first", 2, 6)
    play(first)
    eventually(lambda: world.training(first) == 6, 40, "the first job has the whole quota")
    for turn in range(kills):
        second = world.submit(f"second-{turn}", 2, 3, priority="high")
        play(second)
        time.sleep(0.15 + 0.1 * (turn % 6))  # the moment of the kill: in the middle of the eviction
        operator.kill()
        operator.start()
        eventually(lambda: world.training(second) == 3, 60, "the second job trains")  # noqa: B023 - called here
        settled(world, eventually, (first, second), 6)
        world.merge(world.job_path(second.job), {"spec": {"suspend": True}})
        settled(world, eventually, (first,), 6)
        world.drop(world.job_path(second.job))
    names = list(world.workloads(first))
    assert len(names) == len(set(names)) == 5


@pytest.mark.nightly
def test_a_healthy_job_survives_wait_for_pods_ready_and_one_that_does_not_start_is_taken_back(
    world, play, configured, eventually
):
    configured(waitForPodsReady={"timeout": "6s", "requeuingStrategy": {"backoffBaseSeconds": 2}})
    world.plain(4)
    healthy = world.submit("healthy", 1, 2)
    play(healthy)
    eventually(lambda: world.training(healthy) == 2, 30, "it trains")
    late = world.submit("late", 2, 2)
    player = play(late)
    player.may_start = lambda _name, _pod: False
    eventually(lambda: any("PodsReadyTimeout" in m for _, m in world.events("late")), 40, "the other one is evicted")
    player.may_start = lambda _name, _pod: True
    eventually(lambda: world.training(late) == 2, 60, "it starts later")
    assert world.training(healthy) == 2
    assert not [m for _, m in world.events("healthy") if "PodsReadyTimeout" in m]


@pytest.mark.nightly
@pytest.mark.parametrize("external", [True, False])
def test_workers_are_counted_once_whether_kueue_knows_the_kind_or_not(world, play, configured, eventually, external):
    configured(external=external)
    world.plain(4)
    job = world.submit("once", 2, 4, template=template(labels={"kueue.x-k8s.io/queue-name": "lq"}))
    play(job)
    settled(world, eventually, (job,), 4)
    assert len(world.workloads()) == 3
    assert not [p for p in world.pods().values() if p["spec"].get("schedulingGates")]


@pytest.mark.nightly
def test_fair_sharing_takes_extras_only(world, play, configured, eventually):
    strategies = ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]
    configured(fairSharing={"preemptionStrategies": strategies})
    flavor = world.flavor("shared", {"pool": "a"})
    preemption = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    for team in ("a", "b"):
        world.queue(team, {flavor: 4}, cohortName=world.namespace, preemption=preemption)
    first = world.submit("first", 2, 8, queue="a")
    play(first)
    eventually(lambda: world.training(first) == 8, 40, "it borrows")
    second = world.submit("second", 2, 8, queue="b")
    play(second)
    eventually(lambda: world.training(first) == 4 and world.training(second) == 4, 60, "both have half")
    assert true(world.base(first), "Admitted")


@pytest.mark.nightly
def test_jobs_without_the_label_run_and_queued_ones_go_on_while_kueue_is_not_installed(
    world, play, kueue, kueue_plane, eventually
):
    world.plain(4)
    job = world.submit("queued", 1, 2)
    play(job)
    eventually(lambda: world.training(job) == 2, 60, "it trains")
    pods = {n: p["metadata"]["uid"] for n, p in world.pods().items()}
    api = "/apis/kueue.x-k8s.io/v1beta2"
    kueue.stop()
    for plural in ("clusterqueues", "resourceflavors"):
        for item in world.call("GET", f"{api}/{plural}")["items"]:
            world.merge(f"{api}/{plural}/{item['metadata']['name']}", {"metadata": {"finalizers": None}})
    deleted = kueue_plane.kubectl("delete", "-f", str(kueue.folder / "crds.yaml"), "--timeout=40s")
    assert deleted.returncode == 0, deleted.stderr
    try:
        eventually(lambda: world.condition("queued", "Grown").get("reason") == "CapacityUnknown", 60, "it says so")
        free = world.create_job("free", maxReplicas=1)
        play(free)
        eventually(lambda: world.training(free) == 1, 30, "a job without the label starts")
        fresh = world.submit("fresh", 1, 1)
        eventually(lambda: world.condition("fresh", "Grown").get("reason") == "CapacityUnknown", 30, "nothing starts")
        assert {n: p["metadata"]["uid"] for n, p in world.pods().items()}.items() >= pods.items(), "it goes on"
        assert not world.charged(fresh)
    finally:
        install_crds(kueue_plane)
        kueue.start()
    world.make_classes()  # their deletion was part of the kinds'
    world.plain(4)
    play(fresh)
    eventually(lambda: world.training(fresh) == 1, 180, "it starts when Kueue is back")

    def is_admitted_again():
        base = world.workloads(job).get(world.base_name(job))
        return base is not None and true(base, "Admitted") and world.training(job) == 2

    eventually(is_admitted_again, 180, "and so does the other")


@pytest.mark.nightly
def test_a_thousand_extras(world, play, operator, eventually, capsys):
    """Grown, under a killed operator, evicted, and given back: requests on Workloads, and seconds."""
    world.plain(1001)
    large = world.submit("large", 1, 1001)

    def writes():
        lines = [x for x in operator.start().metrics().splitlines() if 'resource="workloads' in x and "_total{" in x]
        return sum(float(x.rsplit(" ", 1)[1]) for x in lines)

    def answers():
        with contextlib.suppress(OSError):
            return writes() >= 0

    def measured(what, condition):
        start, before = time.monotonic(), writes()
        eventually(condition, 900, what, pause=1.0)
        made = writes() - before
        with capsys.disabled():
            print(f"\n{what}: {made:.0f} requests on Workloads in {time.monotonic() - start:.0f} s")
        return made

    eventually(answers, 60, "the operator answers")
    assert measured("1,000 extras are admitted", lambda: len(world.pods()) == 1001) < 1100
    pods = {p["metadata"]["uid"] for p in world.pods().values()}
    operator.kill()
    eventually(answers, 60, "a new operator starts")
    job = world.job_path("large")
    world.merge(job, {"spec": {"backoffLimit": 7}})
    seen = world.job("large")["metadata"]["generation"]
    assert measured("a new operator has looked", lambda: world.status("large")["observedGeneration"] == seen) < 20
    assert {p["metadata"]["uid"] for p in world.pods().values()} == pods

    other = world.submit("other", 400, 400, priority="high")
    made = measured(
        "400 extras are evicted for another job",
        lambda: len(world.charged(other).get(world.base_name(other), [])) == 400,
    )
    assert made < 500
    assert world.holding() <= 1001
    assert true(world.base(large), "Admitted")
    world.merge(job, {"spec": {"replicas": 301}})
    assert measured("300 fewer", lambda: len(world.workloads(large)) == 301) < 400
    assert world.reserved() == world.holding() == 701
