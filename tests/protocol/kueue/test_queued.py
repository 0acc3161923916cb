"""Jobs in a queue of a real Kueue: admission, sharing, eviction, ends. The test simulates kubelet and agents."""

from __future__ import annotations

import pytest

from kueue_world import template, true


def test_no_pod_exists_before_admission_and_pods_carry_selector_and_tolerations(world, play, eventually):
    toleration = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
    flavor = world.flavor("a100", {"pool": "a100"}, tolerations=[toleration])
    world.queue("lq", {flavor: 2}, stopPolicy="Hold")
    job = world.submit("one", 2, 2)
    play(job)
    eventually(lambda: world.workloads(job), 30, "a Workload for the minimum")
    eventually(lambda: world.condition("one", "Grown").get("reason") == "Queued", 30, "the job says why it waits")
    assert "queue lq" in world.condition("one", "Grown")["message"]
    assert not world.pods()
    world.merge(f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/lq-{world.namespace}", {"spec": {"stopPolicy": "None"}})
    eventually(lambda: world.training(job) == 2, 30, "both workers train")
    for pod in world.pods().values():
        assert pod["spec"]["nodeSelector"] == {"pool": "a100"}
        assert toleration in pod["spec"]["tolerations"]
    eventually(lambda: true(world.base(job), "PodsReady"), 30, "Kueue learns that the pods are ready")


def test_a_second_minimum_costs_only_extras_and_survivors_stay(world, play, eventually):
    world.plain(8)
    first = world.submit("first", 2, 10)
    play(first)
    eventually(lambda: world.training(first) == 8, 40, "the first job has the whole quota")
    survivors = {n: p["metadata"]["uid"] for n, p in world.pods().items()}
    second = world.submit("second", 2, 10)
    play(second)
    eventually(lambda: world.training(second) >= 2, 40, "the second job has its minimum")
    eventually(lambda: (world.training(first), world.training(second)) == (5, 3), 40, "and a share of the rest")
    left = {n: p["metadata"]["uid"] for n, p in world.pods().items() if n.startswith("first")}
    assert left.items() <= survivors.items(), "no survivor was restarted"
    assert true(world.base(first), "Admitted")
    assert world.holding() <= 8
    eventually(lambda: world.condition("first", "Grown").get("reason") == "ExtrasWait", 30, "it says why")
    world.drop(world.job_path("second"))
    eventually(lambda: not world.workloads(second), 30, "Kubernetes collects the Workloads of a deleted job")
    for pod in [n for n in world.pods() if n.startswith("second")]:
        world.drop(f"{world.pods_path}/{pod}")
    eventually(lambda: world.training(first) == 8, 60, "the first job grows back")


def test_two_equal_jobs_share_a_queue_that_one_of_them_had_filled(world, play, eventually):
    world.plain(9)
    first = world.submit("first", 2, 9)
    play(first)
    eventually(lambda: world.training(first) == 9, 40, "the first job has the whole quota")
    second = world.submit("second", 2, 9)
    play(second)
    eventually(lambda: (world.training(first), world.training(second)) == (5, 4), 60, "each has its share")
    before = {name: w["metadata"]["uid"] for name, w in world.workloads().items() if true(w, "Admitted")}
    world.patch_job("second", backoffLimit=7)
    seen = world.job("second")["metadata"]["generation"]
    eventually(lambda: world.status("second")["observedGeneration"] == seen, 30, "the operator looked again")
    assert {n: w["metadata"]["uid"] for n, w in world.workloads().items() if true(w, "Admitted")} == before


def test_borrowed_extras_are_reclaimed_and_the_base_stays(world, play, eventually):
    """Two teams of a cohort, 4 GPUs each."""
    reclaim = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
    flavor = world.flavor("shared", {"pool": "a"})
    for team in ("ours", "theirs"):
        world.queue(team, {flavor: 4}, cohortName=world.namespace, preemption=reclaim)
    borrower = world.submit("borrower", 2, 8, queue="ours", priority="high")
    play(borrower)
    eventually(lambda: world.training(borrower) == 8, 40, "the job has borrowed the other team's idle quota")
    owner = world.submit("owner", 4, 4, queue="theirs")
    play(owner)
    eventually(lambda: world.training(owner) == 4, 40, "the owner of the quota has it back")
    eventually(lambda: world.training(borrower) == 4, 30, "the borrower keeps its own")
    assert true(world.base(borrower), "Admitted")
    assert world.holding() <= 8


def test_reservation_of_a_preempted_base_lasts_until_its_last_pod_is_gone(world, play, eventually):
    world.plain(4)
    low = world.submit("low", 3, 3)
    player = play(low)
    eventually(lambda: world.training(low) == 3, 30, "the first job trains")
    with player.paused():
        high = world.submit("high", 3, 3, priority="high")
        eventually(lambda: true(world.base(low), "Evicted"), 30, "Kueue evicts its base")
        eventually(lambda: world.condition("low", "Grown").get("reason") == "Evicted", 30, "the job says so")
        assert "admission" in world.base(low)["status"]
        assert not true(world.base(high), "Admitted")
    play(high)
    eventually(lambda: world.training(high) == 3, 40, "the other job trains")
    assert world.holding() <= 4
    assert ("Evicted", True) in {(r, "Preempted" in m) for r, m in world.events("low")}
    world.merge(world.job_path("high"), {"spec": {"suspend": True}})
    eventually(lambda: world.training(low) == 3, 40, "the first job is admitted again")


def reserved_anew(workload):
    return true(workload, "QuotaReserved") and not true(workload, "Evicted")


@pytest.mark.nightly
def test_updates_of_an_admission_check_are_on_each_pod_and_its_refusals_are_followed(world, play, eventually):
    check = world.check("capacity")
    world.plain(4, admissionChecksStrategy={"admissionChecks": [{"name": check}]})
    job = world.submit("checked", 1, 1)
    play(job)
    eventually(
        lambda: world.condition("checked", "Grown").get("reason") == "AdmissionCheck", 30, "it waits for the check"
    )
    world.answer(job, check, "Retry")
    eventually(lambda: world.checked(job, check) == "Pending" and not world.pods(), 30, "the check is asked again")
    update = {
        "name": "worker",
        "nodeSelector": {"claimed": "yes"},
        "labels": {"from": "check"},
        "annotations": {"autoscaling.x-k8s.io/consume-provisioning-request": "pr-1"},
        "tolerations": [{"key": "claimed", "operator": "Exists"}],
    }
    # The reservation that was evicted is still there for a while, and an answer to it may be lost.
    eventually(lambda: reserved_anew(world.base(job)), 30, "quota is reserved again")
    world.answer(job, check, "Ready", podSetUpdates=[update])
    eventually(lambda: world.training(job) == 1, 30, "it trains")
    [pod] = world.pods().values()
    assert pod["spec"]["nodeSelector"] == {"claimed": "yes", "pool": "a"}
    assert pod["metadata"]["labels"]["from"] == "check"
    assert update["annotations"].items() <= pod["metadata"]["annotations"].items()
    assert update["tolerations"][0] in pod["spec"]["tolerations"]
    world.answer(job, check, "Rejected", podSetUpdates=[update])
    eventually(lambda: not world.holding() and not world.reserved(), 30, "a rejected job gives its quota back")
    eventually(lambda: world.condition("checked", "Grown").get("reason") == "Deactivated", 30, "and says why it waits")


@pytest.mark.nightly
def test_a_job_follows_stops_of_its_workload_and_its_queue(world, play, eventually):
    queue = world.plain(4)
    job = world.submit("stopped", 2, 2)
    play(job)
    path = world.workload_path(world.base_name(job))

    def trains(what):
        eventually(lambda: world.training(job) == 2 and true(world.base(job), "Admitted"), 40, what)

    def is_released():
        return not world.holding() and "admission" not in world.base(job)["status"]

    trains("it trains")
    world.merge(path, {"spec": {"active": False}})
    eventually(is_released, 30, "a deactivated job gives its quota back")
    eventually(lambda: world.condition("stopped", "Grown").get("reason") == "Deactivated", 30, "it says so")
    world.merge(path, {"spec": {"active": True}})
    trains("an activated job trains again")
    world.patch_job("stopped", suspend=True)
    eventually(is_released, 30, "a suspended job gives its quota back")
    assert world.base(job)["spec"]["active"] is False
    world.patch_job("stopped", suspend=False)
    trains("a resumed job trains again")
    world.stop_policy(queue, "HoldAndDrain")
    eventually(is_released, 30, "a drained queue has its quota back")
    world.stop_policy(queue, "None")
    trains("it trains again")
    world.drop(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{world.namespace}/localqueues/lq")
    world.patch_job("stopped", backoffLimit=7)
    seen = world.job("stopped")["metadata"]["generation"]
    eventually(lambda: world.status("stopped")["observedGeneration"] == seen, 30, "the operator looked again")
    assert world.training(job) == 2, "a running job survives its queue"


def test_a_job_moves_to_another_queue_and_out_of_kueue(world, play, eventually):
    flavor = world.flavor("f", {"pool": "a"})
    for name in ("first", "second"):
        world.queue(name, {flavor: 2})
    job = world.submit("mover", 1, 2, queue="first")
    play(job)
    eventually(lambda: world.training(job) == 2, 30, "it trains")
    world.merge(world.job_path("mover"), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "second"}}})
    eventually(lambda: {w["spec"]["queueName"] for w in world.workloads(job).values()} == {"second"}, 40, "it moves")
    eventually(lambda: world.training(job) == 2, 40, "it trains there")
    world.merge(world.job_path("mover"), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": None}}})
    eventually(lambda: not world.workloads(job), 40, "it has left Kueue")
    eventually(lambda: world.training(job) == 2, 40, "it trains without")
    assert set(world.charged(job)) == {""}


@pytest.mark.nightly
def test_a_running_job_keeps_its_workers_if_its_new_queue_cannot_take_it(world, play, eventually):
    """A label with a typing error, then that of a stopped queue, then one that admits."""
    flavor = world.flavor("f", {"pool": "a"})
    world.queue("first", {flavor: 2})
    stopped = world.queue("stopped", {flavor: 2}, stopPolicy="Hold")
    job = world.submit("typo", 2, 2, queue="first")
    play(job)
    eventually(lambda: world.training(job) == 2, 30, "it trains")
    workers = {n: p["metadata"]["uid"] for n, p in world.pods().items()}

    def is_held(queue, words):
        world.merge(world.job_path("typo"), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": queue}}})

        def says():
            grown = world.condition("typo", "Grown")
            return grown.get("reason") == "Moves" and words in grown["message"]

        eventually(says, 30, f"it says why it does not move to {queue}")
        assert {n: p["metadata"]["uid"] for n, p in world.pods().items()} == workers
        assert true(world.base(job), "Admitted")

    is_held("frist", "there is no LocalQueue frist")
    is_held("stopped", "Can't submit new workloads to clusterQueue")
    lost = next(iter(workers))
    world.drop(f"{world.pods_path}/{lost}")
    eventually(lambda: world.training(job) == 2 and lost not in world.pods(), 40, "a lost worker is replaced meanwhile")
    world.stop_policy(stopped, "None")
    eventually(lambda: {w["spec"]["queueName"] for w in world.workloads(job).values()} == {"stopped"}, 40, "it moves")
    eventually(lambda: world.training(job) == 2, 40, "it trains there")


def test_an_ended_job_finishes_its_workload(world, play, eventually):
    world.plain(4)
    job = world.submit("ends", 1, 2)
    player = play(job)
    eventually(lambda: world.training(job) == 2, 30, "it trains")
    player.finish(step=9)
    eventually(lambda: true(world.base(job), "Finished"), 30, "Kueue learns of the end")
    eventually(lambda: set(world.workloads(job)) == {world.base_name(job)}, 30, "its extra is gone")
    assert world.condition("ends", "Succeeded").get("status") == "True"


def test_a_job_without_the_label_and_labels_of_pods_do_not_queue(world, play, eventually):
    world.plain(4)
    labelled = {"template": template(labels={"kueue.x-k8s.io/queue-name": "lq"})}
    job = world.submit("counted", 1, 2, **labelled)
    free = world.create_job("free", maxReplicas=1)
    play(job)
    play(free)
    eventually(lambda: world.training(job) == 2 and world.training(free) == 1, 40, "both train")
    assert world.charged(free) == {"": ["free-0"]}
    assert len(world.workloads()) == 2, "one for the minimum, one for the extra, none of the pods' own"
    assert all("kueue.x-k8s.io/queue-name" not in p["metadata"]["labels"] for p in world.pods().values())


def test_all_workers_of_a_job_use_one_flavor(world, play, eventually):
    flavors = {world.flavor(name, {"pool": name}): 3 for name in ("a", "b")}
    world.queue("lq", flavors)
    job = world.submit("one-flavor", 2, 6)
    play(job)
    eventually(lambda: world.training(job) == 3, 40, "it has all of the first flavor")
    eventually(lambda: world.condition("one-flavor", "Grown").get("reason") == "ExtrasWait", 30, "it says so")
    assert {p["spec"]["nodeSelector"]["pool"] for p in world.pods().values()} == {"a"}
    assert sum(not true(w, "QuotaReserved") for w in world.workloads(job).values()) <= 2


def test_workers_of_one_group_are_charged_to_one_workload(world, eventually):
    world.plain(6)
    job = world.submit("grouped", 1, 3, nprocPerNode=1, parallelism={"shards": 2})

    def homes():
        """Workload → groups of its pods."""
        pods = world.pods()
        return {
            workload: sorted(pods[n]["metadata"]["labels"]["elastrain.dev/group"] for n in names if n in pods)
            for workload, names in world.charged(job).items()
        }

    def whole():
        found = homes().values()
        return len(found) == 3 and all(len(groups) == 2 and len(set(groups)) == 1 for groups in found)

    eventually(whole, 40, "three groups of two workers, each with a Workload of its own")
    before = homes()
    for names in list(world.charged(job).values()):
        world.drop(f"{world.pods_path}/{names[-1]}")
    eventually(whole, 40, "lost workers are replaced")
    assert homes() == before, "in the Workloads of their mates"
    assert {w["spec"]["podSets"][0]["count"] for w in world.workloads(job).values()} == {2}
