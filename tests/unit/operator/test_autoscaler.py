"""Elastic jobs make a cluster grow and let it shrink. ``Autoscaler`` is a stand-in: it follows the documented rules of
Kubernetes' cluster autoscaler (its FAQ), not its code."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest

from shared_cluster import PER_NODE, Cluster

PROVISION = timedelta(seconds=180)
"""From the decision to a ready node."""
UNNEEDED = timedelta(seconds=600)
"""``--scale-down-unneeded-time`` and ``--scale-down-delay-after-add``."""
UTILIZATION = 0.5
"""``--scale-down-utilization-threshold``."""


class Autoscaler:
    """Adds a node if a Pending pod would fit on one; drains a node that is used by less than half, whose pods fit
    elsewhere, after 10 minutes."""

    def __init__(self, cluster: Cluster, most: int) -> None:
        self.cluster, self.most = cluster, most
        self.coming: list[datetime] = []
        self.added = cluster.now
        self.unneeded: dict[str, datetime] = {}

    def run(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            self.cluster.run(10)
            self._join()
            self._scale_up()
            self._scale_down()

    def _join(self) -> None:
        for when in [w for w in self.coming if w <= self.cluster.now]:
            self.coming.remove(when)
            self.cluster.add_node()
            self.added = self.cluster.now

    def _scale_up(self) -> None:
        free = sum(PER_NODE - self.cluster.held(n.name) for n in self.cluster.nodes)
        upcoming = PER_NODE * len(self.coming) + free  # Pending pods that fit there are none of its business
        while self.cluster.pending() > upcoming and len(self.cluster.nodes) + len(self.coming) < self.most:
            self.coming.append(self.cluster.now + PROVISION)
            upcoming += PER_NODE

    def _scale_down(self) -> None:
        cluster = self.cluster
        for node in [n for n in cluster.nodes if n.going]:
            cluster.evict(node.name)
            cluster.remove_node(node.name)
        held = {n.name: cluster.held(n.name) for n in cluster.nodes}
        free = sum(PER_NODE - h for h in held.values())
        idle = [n for n, h in held.items() if h < UTILIZATION * PER_NODE and h <= free - (PER_NODE - h)]
        self.unneeded = {n: self.unneeded.get(n, cluster.now) for n in idle if len(held) > 1}
        if self.coming or cluster.pending() or cluster.now - self.added < UNNEEDED:
            return
        ripe = sorted((held[n], n) for n, since in self.unneeded.items() if cluster.now - since >= UNNEEDED)
        for _, name in ripe[:1]:
            at = next(i for i, n in enumerate(cluster.nodes) if n.name == name)
            cluster.nodes[at] = dataclasses.replace(cluster.nodes[at], going=True)  # ToBeDeletedByClusterAutoscaler


def grown(most: int = 4, **policy) -> tuple[Cluster, Autoscaler]:
    cluster = Cluster(**{"pending": 1, **policy})
    return cluster, Autoscaler(cluster, most)


def test_an_elastic_job_makes_the_cluster_grow_until_it_has_its_maximum():
    cluster, autoscaler = grown()
    cluster.arrive("a", 1, 20)
    autoscaler.run(900)
    assert cluster.bound("a") == 20
    assert len(cluster.nodes) == 3
    assert cluster.pending() == 0, "a job at its maximum asks for nothing"


def test_a_gang_starts_what_fits_and_asks_for_the_rest_only():
    cluster, autoscaler = grown()
    cluster.arrive("a", 5, 5)
    cluster.run(5)
    cluster.arrive("b", 10, 10)
    cluster.run(5)
    assert (cluster.bound("b"), cluster.pending()) == (3, 7)
    share = cluster.shares["b"]
    assert (share.reason, share.awaiting) == ("AwaitsNodes", 7)
    assert share.message.startswith("waits for nodes: there is room for 3 of 10 workers (minReplicas)")
    autoscaler.run(300)
    assert (len(cluster.nodes), cluster.bound("b")) == (2, 10)


def test_no_worker_is_pending_without_the_signal():
    cluster, autoscaler = grown(pending=0)
    cluster.arrive("a", 1, 20)
    cluster.arrive("b", 9, 9)
    autoscaler.run(600)
    assert (cluster.pending(), len(cluster.nodes)) == (0, 1)


def test_a_signal_takes_no_room_that_is_promised_to_another_job():
    cluster, _ = grown(most=1)
    cluster.arrive("a", 1, 20)
    cluster.run(5)
    assert (cluster.bound("a"), cluster.pending()) == (8, 1)
    before = {w for w, node in cluster.jobs["a"].workers.items() if node}
    cluster.arrive("b", 6, 6)
    for _ in range(5):
        cluster.run(1)
        assert {w for w, node in cluster.jobs["a"].workers.items() if node} <= before, "no signal was bound"
    assert (cluster.bound("a"), cluster.bound("b")) == (2, 6)
    assert cluster.pending() == 1


def test_an_idle_cluster_shrinks_under_a_job_at_its_maximum():
    cluster, autoscaler = grown()
    cluster.arrive("a", 20, 20)
    cluster.arrive("b", 1, 4)
    autoscaler.run(400)
    assert len(cluster.nodes) == 3
    cluster.arrive("c", 1, 1)
    del cluster.jobs["a"]
    del cluster.shares["a"]
    cluster.step = 10
    autoscaler.run(3600)
    assert len(cluster.nodes) == 1, "workers on a node that the autoscaler drains move to another one"
    assert (cluster.bound("b"), cluster.bound("c")) == (4, 1)


@pytest.mark.parametrize("hysteresis", [0.0, 60.0])
def test_a_worker_on_a_new_node_is_kept_though_its_job_was_resized_recently(hysteresis):
    cluster, autoscaler = grown(hysteresis=hysteresis)
    cluster.arrive("a", 1, 9)
    autoscaler.run(600)
    names = set(cluster.jobs["a"].workers)
    autoscaler.run(300)
    assert set(cluster.jobs["a"].workers) == names
    assert cluster.bound("a") == 9
