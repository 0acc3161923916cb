"""Sizes by measured speed on a real API server: played jobs report step times, and the real operator sizes them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from node_pool import Pool
from played import Played
from raw_cluster import Cluster

pytestmark = pytest.mark.apiserver

FLAGS = ("--capacity", "--capacity-hysteresis=0", "--capacity-sharing=efficient")
FIXED = {"badly": 0.6, "well": 0.0}
"""Part of a job's step that more workers do not shorten."""


class Training:
    """Jobs that commit steps whenever their sizes are asked for."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._jobs: dict[str, Played] = {}

    def add(self, name: str, job: Played) -> None:
        self._jobs[name] = job

    def sizes(self) -> dict[str, int]:
        """Each generation commits 10 steps more, and reports their time; workers that train, by job."""
        for name, job in self._jobs.items():
            if job.in_generation:
                fixed = FIXED[name]
                job.commit(job.step + 10, seconds=lambda size, fixed=fixed: fixed + (1 - fixed) / size)
        return {name: self._cluster.status(name).get("readyReplicas", 0) for name in self._jobs}

    def __str__(self) -> str:
        """For messages of failed tests."""
        shown = ("readyReplicas", "desiredReplicas", "measuredSizes", "lastRescale")
        of = {name: self._cluster.status(name) for name in self._jobs}
        grown = {name: self._cluster.condition(name, "Grown") for name in self._jobs}
        return "\n".join(f"{n}: {[s.get(key) for key in shown]} {grown[n].get('message')}" for n, s in of.items())

    def measured(self, name: str) -> set[int]:
        """Sizes of which the status keeps a time."""
        return {m["workers"] for m in self._cluster.status(name).get("measuredSizes", ())}


@pytest.fixture
def pool(cluster, operator_process):
    operator_process.stop()  # it serves all namespaces, and does not share them out
    return Pool(cluster)


@pytest.fixture
def start(cluster, pool, play) -> Callable[..., Played]:
    def created(name: str) -> Played:
        job = play(cluster.create_job(name, minReplicas=1, maxReplicas=8, template=pool.template()))
        job.may_start = pool.bound
        return job

    return created


@pytest.mark.timeout(500)
def test_accelerators_go_to_the_job_that_gets_faster_and_a_new_operator_goes_on_with_what_was_learned(
    cluster, pool, start, operator_factory, etcd, eventually
):
    training = Training(cluster)

    def becomes(condition: Callable[[dict[str, int]], bool], what: str, within: float = 120.0) -> dict[str, int]:
        """The sizes, when ``condition`` holds for them and each has a measured speed. A job rests for ten of its
        pauses, and these are seconds on a busy machine."""
        sizes: dict[str, int] = {}

        def there() -> bool:
            sizes.update(training.sizes())
            return condition(sizes) and all(size in training.measured(name) for name, size in sizes.items())

        eventually(there, within, lambda: f"{what}: {training}", pause=0.3)
        return sizes

    operator = operator_factory(etcd, cluster.namespace, *FLAGS)
    pool.join("one", 8)
    training.add("badly", start("badly"))
    becomes(lambda sizes: sizes["badly"] == 8, "the first job has the node")
    training.add("well", start("well"))
    becomes(lambda sizes: sizes["badly"] <= 3 and sizes["well"] >= 4, "the job that gets faster has most")
    gain = r"[\d.]+ samples/s \([\d.]+ %\)"
    there = f"of {cluster.namespace}/well gained more: {gain}"
    wanted = rf"not grown: \d workers? would add {gain} here; \d workers? {there}"

    def explained() -> bool:  # the message may be some seconds older than the newest speeds
        training.sizes()
        grown = cluster.condition("badly", "Grown")
        told = (grown["status"], grown["reason"]) == ("False", "OthersGainMore")
        return told and re.fullmatch(wanted, grown["message"]) is not None

    eventually(explained, 120, lambda: f"both gains are named: {training}", pause=0.3)

    operator.stop()  # now no size changes
    workers = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    known = training.measured("badly")
    operator_factory(etcd, cluster.namespace, *FLAGS)
    pool.join("two", 2)
    becomes(
        lambda sizes: sizes["badly"] <= 3 and sum(sizes.values()) == 10,
        "the new operator gives the new accelerators away, and most to the job that gets faster",
    )
    now = {name: pod["metadata"]["uid"] for name, pod in cluster.pods().items()}
    kept = {name: uid for name, uid in workers.items() if name.startswith("well")}
    assert kept.items() <= now.items(), "no worker of the job that grows was replaced"
    assert training.measured("badly") >= known, "what was measured is kept"
