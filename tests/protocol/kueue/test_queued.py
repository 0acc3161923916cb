"""Jobs in a queue of a real Kueue: admission, sharing, eviction, ends. The test simulates kubelet and agents."""

from __future__ import annotations

from kueue_world import true


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
    eventually(lambda: world.training(second) == 2, 40, "the second job has its minimum")
    eventually(lambda: world.training(first) == 6, 30, "the first job lost two extras")
    left = {n: p["metadata"]["uid"] for n, p in world.pods().items() if n.startswith("first")}
    assert left.items() <= survivors.items(), "no survivor was restarted"
    assert true(world.base(first), "Admitted")
    assert world.holding() <= 8
    eventually(lambda: world.condition("first", "Grown").get("reason") == "QuotaExhausted", 30, "it says why")
    world.drop(world.job_path("second"))
    eventually(lambda: not world.workloads(second), 30, "Kubernetes collects the Workloads of a deleted job")
    for pod in [n for n in world.pods() if n.startswith("second")]:
        world.drop(f"{world.pods_path}/{pod}")
    eventually(lambda: world.training(first) == 8, 60, "the first job grows back")
