"""One loop per job: what it does when watch, API server or etcd are late or wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from elastrain.etcd import EtcdConfig
from elastrain_operator import loops, observe, plan
from elastrain_operator.apply import Executor
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.kube import ApiError
from elastrain_operator.loops import JobLoop, Loops
from elastrain_operator.model import Coordination, Outage, Trouble

CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"]}]}}


class World:
    """API server and etcd in one; ``watched`` is what the watch has shown so far."""

    def __init__(self) -> None:
        self.down = False
        """Neither of the two answers."""
        self.pods: dict[str, dict] = {}
        self.watched: list = []
        self.statuses: list[dict] = []
        self.failures: list[Exception] = []
        self.target = None

    @property
    def outage(self):
        return Outage() if self.down else None

    def of(self, keys):
        return None if self.down else Coordination(target=self.target)

    def _answer(self) -> None:
        if self.down:
            raise ApiError("reach it", 0, "Unreachable", "connection refused")

    async def put_target(self, keys, target):
        self._answer()
        self.target = target

    async def patch_status(self, namespace, name, status, version=None):
        self._answer()
        if self.failures:
            raise self.failures.pop()
        self.statuses.append(status)

    async def create_event(self, namespace, event):
        self._answer()

    async def create_pod(self, namespace, manifest):
        self._answer()
        name = manifest["metadata"]["name"]
        meta = {**manifest["metadata"], "uid": f"uid-{name}", "creationTimestamp": datetime.now(UTC).isoformat()}
        self.pods[name] = {**manifest, "metadata": meta}
        return self.pods[name]

    async def get_pod(self, namespace, name):
        self._answer()
        return self.pods.get(name)

    async def delete_pod(self, namespace, name, uid):
        self._answer()
        self.pods.pop(name, None)


def body(**spec) -> dict:
    meta = {"namespace": "ns", "name": "job", "uid": "uid", "generation": 1}
    return {"metadata": meta, "spec": {"maxReplicas": 2, "template": TEMPLATE, **spec}}


def named(name: str) -> dict:
    job = body()
    job["metadata"] = {**job["metadata"], "name": name, "uid": name}
    return job


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(loops, "COALESCE", 0.001)
    monkeypatch.setattr(loops, "PACE", 0.01)
    monkeypatch.setattr(loops, "ROUTINE", 0.02)
    monkeypatch.setattr(loops, "RETRY_DELAYS", (0.02,))


def run(scenario) -> None:
    """Runs ``scenario(world, jobs)`` in an event loop."""

    async def main():
        world = World()
        executor = Executor(world, world, CONFIG)
        jobs = Loops(lambda job: JobLoop(job, executor, world, world, CONFIG))
        try:
            await asyncio.wait_for(scenario(world, jobs), 20)
        finally:
            await jobs.stop()

    asyncio.run(main())


async def until(condition, what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def test_pods_are_created_once_though_the_watch_is_late():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        for _ in range(5):
            jobs.wake("uid")
            await asyncio.sleep(0.02)
        assert set(world.pods) == {"job-0", "job-1"}
        world.watched = [observe.pod(p) for p in world.pods.values()]
        jobs.wake("uid")
        await asyncio.sleep(0.02)
        assert set(world.pods) == {"job-0", "job-1"}

    run(scenario)


def test_pod_that_the_watch_never_showed_is_replaced_if_the_api_server_says_that_it_is_gone(monkeypatch):
    monkeypatch.setattr(loops, "UNSEEN", timedelta(seconds=0.05))

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await asyncio.sleep(0.05)
        assert set(world.pods) == {"job-0", "job-1"}, "both exist, so nothing is done"
        del world.pods["job-0"]
        await asyncio.sleep(0.1)
        jobs.wake("uid")
        await until(lambda: set(world.pods) == {"job-1", "job-2"}, "a replacement")

    run(scenario)


@pytest.mark.parametrize("fault", [ApiError("write", 503, "", "busy"), RuntimeError("a fault of ours")])
def test_pass_is_repeated_if_it_fails(fault):
    async def scenario(world, jobs):
        world.failures = [fault]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods after the retry")

    run(scenario)


def test_pass_is_repeated_as_soon_as_the_newer_version_is_seen_if_the_job_has_changed_meanwhile(monkeypatch):
    monkeypatch.setattr(loops, "RETRY_DELAYS", (60.0,))

    async def scenario(world, jobs):
        world.failures = [ApiError("write", 409, "Conflict", "the object has been modified")]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: not world.failures, "a refused status")
        assert not world.pods, "what follows the status is not done without it"
        jobs.see(body(replicas=2), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")

    run(scenario)


def test_job_stands_still_if_nothing_answers_and_converges_afterwards_with_the_same_pods():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        world.watched = [observe.pod(p) for p in world.pods.values()]
        before = dict(world.pods)
        world.down = True
        jobs.see(body(replicas=1), lambda _: world.watched)
        for _ in range(10):
            jobs.wake("uid")
            await asyncio.sleep(0.03)
        assert world.pods == before
        world.down = False
        await until(lambda: len(world.pods) == 1, "the surplus one is gone")
        assert world.pods == {"job-0": before["job-0"]}

    run(scenario)


def test_newer_of_two_versions_counts():
    assert loops.newest("9", "10") == loops.newest("10", "9") == loops.newest(None, "10") == "10"
    assert loops.newest(None, None) is None


def test_poisoned_job_says_so_and_slows_no_other(monkeypatch):
    passes = []
    healthy = plan.plan

    def poisoned(spec, status, observed, *rest):
        if observed.job.name != "poison":
            return healthy(spec, status, observed, *rest)
        passes.append(observed)
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(plan, "plan", poisoned)
    monkeypatch.setattr(loops, "RETRY_DELAYS", (0.2, 60.0))

    async def scenario(world, jobs):
        jobs.see(named("poison"), lambda _: [])
        await until(lambda: world.statuses, "a status")
        for number in range(20):
            jobs.see(named(f"neighbour-{number}"), lambda _: [])
            jobs.wake("poison")
        await until(lambda: len(world.pods) == 40, "all pods of all others")
        await until(lambda: len(passes) == 2, "the second attempt")
        for _ in range(20):
            jobs.wake("poison")
            await asyncio.sleep(0.01)
        assert len(passes) == 2, "the third one is not due yet, whatever happens"
        told = [s["conditions"][0] for s in world.statuses if s["conditions"][0]["reason"] == "OperatorFault"]
        assert len(told) == 1, "it is said once"
        assert "ZeroDivisionError: a fault of ours" in told[0]["message"]

    run(scenario)


def test_loop_goes_on_if_even_the_fault_cannot_be_told(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a fault of ours")

    async def scenario(world, jobs):
        with monkeypatch.context() as patch:
            patch.setattr(plan, "plan", broken)
            patch.setattr(plan, "fault", broken)
            jobs.see(body(), lambda _: world.watched)
            await asyncio.sleep(0.1)
        await until(lambda: len(world.pods) == 2, "two pods when the fault is gone")

    run(scenario)


def test_nothing_is_done_if_the_job_is_being_deleted():
    async def scenario(world, jobs):
        deleted = body()
        deleted["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        jobs.see(deleted, lambda _: world.watched)
        await asyncio.sleep(0.05)
        assert not world.pods
        assert not world.statuses

    run(scenario)


def test_invalid_spec_is_said_and_healed():
    async def scenario(world, jobs):
        jobs.see(body(maxReplicas=0), lambda _: world.watched)
        await until(lambda: world.statuses, "a status")
        condition = world.statuses[0]["conditions"][0]
        assert (condition["type"], condition["reason"]) == ("PodsReady", "SpecInvalid")
        assert "spec.maxReplicas" in condition["message"]
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")

    run(scenario)


def test_loop_ends_with_its_job():
    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)
        await until(lambda: len(world.pods) == 2, "two pods")
        await jobs.forget("uid")
        assert len(jobs) == 0
        assert not [t for t in asyncio.all_tasks() if t.get_name() == "job ns/job"]

    run(scenario)


def test_job_of_the_same_name_is_another_job():
    async def scenario(world, jobs):
        first, second = body(), body()
        second["metadata"] = {**second["metadata"], "uid": "uid2"}
        jobs.see(first, lambda _: world.watched)
        jobs.see(second, lambda _: world.watched)
        assert len(jobs) == 2
        assert "uid2" in jobs

    run(scenario)


class Counting(World):
    """Counts passes: each looks at the records once."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def of(self, keys):
        self.passes += 1
        return super().of(keys)


def run_counting(scenario) -> None:
    """Runs ``scenario(world, jobs)`` after both workers of a job were created and the loop has come to rest."""

    async def main():
        world = Counting()
        executor = Executor(world, world, CONFIG)
        jobs = Loops(lambda job: JobLoop(job, executor, world, world, CONFIG))
        try:
            jobs.see(body(), lambda _: world.watched)
            await until(lambda: len(world.pods) == 2, "two pods")
            await until(lambda: world.passes == 2, "a look at what was created")
            assert jobs.unplanned == 0
            await asyncio.wait_for(scenario(world, jobs), 20)
        finally:
            await jobs.stop()

    asyncio.run(main())


def test_echo_of_our_own_status_makes_no_pass():
    async def scenario(world, jobs):
        before = world.passes
        echo = body()
        echo["metadata"] |= {"resourceVersion": "7", "managedFields": [{"manager": "elastrain"}]}
        echo["status"] = {"phase": "Pending"}
        jobs.see(echo, lambda _: world.watched)
        await asyncio.sleep(0.05)
        assert world.passes == before
        echo["metadata"]["annotations"] = {"who": "a user"}
        jobs.see(dict(echo, metadata=dict(echo["metadata"])), lambda _: world.watched)
        await until(lambda: world.passes > before, "a pass for what a user wrote")

    run_counting(scenario)


def test_pod_that_looks_as_it_was_created_makes_no_pass():
    async def scenario(world, jobs):
        before = world.passes
        for pod in world.pods.values():
            jobs.pod_seen("uid", observe.pod(pod))
        await asyncio.sleep(0.05)
        assert world.passes == before
        running = observe.pod({**world.pods["job-0"], "status": {"phase": "Succeeded"}})
        jobs.pod_seen("uid", running)
        await until(lambda: world.passes > before, "a pass for a pod that has changed")

    run_counting(scenario)


def test_what_happens_in_a_few_moments_is_one_pass(monkeypatch):
    monkeypatch.setattr(loops, "PACE", 0.1)

    async def scenario(world, jobs):
        await asyncio.sleep(0.15)
        before = world.passes
        for _ in range(20):
            jobs.wake("uid")
            await asyncio.sleep(0)
        await asyncio.sleep(0.25)
        assert before < world.passes <= before + 2

    run_counting(scenario)


@pytest.mark.parametrize(("took", "apart"), [(0.0, 0.2), (0.1, 0.2), (0.3, 0.6), (25.0, 1.0)])
def test_job_rests_for_as_long_as_a_pass_took_within_bounds(monkeypatch, took, apart):
    monkeypatch.setattr(loops, "PACE", 0.2)
    assert loops.pace(took) == pytest.approx(apart)


def test_start_that_goes_on_as_expected_is_looked_at_later_and_trouble_at_once(monkeypatch):
    async def scenario(world, jobs):
        before, pods = world.passes, [observe.pod(p) for p in world.pods.values()]
        monkeypatch.setattr(loops, "ROUTINE", 60.0)
        for pod in pods:
            jobs.pod_seen("uid", replace(pod, node="node-1", bound=pod.created))
            jobs.pod_seen("uid", replace(pod, node="node-1", bound=pod.created, started=True))
        await asyncio.sleep(0.05)
        assert world.passes == before, "its members' records say when it trains"
        jobs.pod_seen("uid", replace(pods[0], trouble=Trouble("Unschedulable", "no node")))
        await until(lambda: world.passes > before, "a pass for the trouble")
        assert jobs._loops["uid"]._later is None, "what waited was looked at with it"

    run_counting(scenario)


def test_what_waits_is_looked_at_by_the_earliest_of_its_times(monkeypatch):
    monkeypatch.setattr(loops, "STATUS_INTERVAL", 60.0)

    async def scenario(world, jobs):
        before = world.passes
        jobs.wake_later("uid")
        [pod, _] = (observe.pod(p) for p in world.pods.values())
        jobs.pod_seen("uid", replace(pod, node="node-1"))
        await until(lambda: world.passes > before, "a pass long before the next status")

    run_counting(scenario)


def test_steps_are_looked_at_when_the_next_status_is_due(monkeypatch):
    monkeypatch.setattr(loops, "STATUS_INTERVAL", 0.1)

    async def scenario(world, jobs):
        jobs.see(body(), lambda _: world.watched)  # takes the interval over
        before = world.passes
        for _ in range(10):
            jobs.wake_later("uid")
        assert world.passes == before
        await until(lambda: world.passes > before, "a pass")
        await asyncio.sleep(0.05)
        assert world.passes <= before + 2, "one for the ten, and perhaps one for the status that was due"

    run_counting(scenario)


def test_all_jobs_together_write_steps_at_a_bounded_rate():
    async def scenario(world, jobs):
        for n in range(199):
            another = body()
            another["metadata"] |= {"uid": f"uid-{n}", "deletionTimestamp": "2030-01-01T00:00:00Z"}
            jobs.see(another, lambda _: ())
        jobs.see(body(suspend=False), lambda _: world.watched)
        assert jobs._loops["uid"].status_interval == 200 * loops.STATUS_SHARE

    run_counting(scenario)
