"""A node goes away under a running job; test_release.py takes away the operator and etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import release
from harness.commands import eventually
from harness.example import digits
from harness.jobs import START, Audit, Job

pytestmark = pytest.mark.alone
Submit = Callable[[dict[str, Any]], Job]


@pytest.fixture
def nodes_restored() -> Iterator[None]:
    """Stopped nodes are started again, whatever happens."""
    yield
    for node in release.WORKER_NODES:
        release.start_node(node)


def test_survivors_train_on_and_the_lost_worker_is_replaced_if_a_node_stops(
    submit: Submit, nodes_restored: None
) -> None:
    job = submit(digits("stopped-node", replicas=2))
    before = job.wait_size(2)
    nodes = job.nodes
    assert set(nodes.values()) == set(release.WORKER_NODES), "the workers are on one node; the test needs them apart"
    victim, survivor = sorted(before)  # the victim leads, and its store serves the generation
    job.wait_steps(10)

    release.stop_node(nodes[victim])

    # By the lease (5 s), long before Kubernetes finds the node missing (40 s and more).
    eventually("one worker trains", lambda: job.status["generation"]["size"] == 1, 30, job.summary)
    job.wait_steps(20)
    assert not job.holds("PodsReady")

    after = job.wait_size(2, release.NODE_LOST + START)  # NotReady, then a replacement on the node that is left
    assert after[survivor] == before[survivor]
    assert victim not in after
    assert {job.nodes[w] for w in after} == {nodes[survivor]}
    assert job.status["restarts"]["infrastructure"] == 1
    assert any(reason == "WorkerLost" and victim in message for reason, message in job.events)

    release.start_node(nodes[victim])
    eventually(
        "the lost pod is cleared away",
        lambda: victim not in {p["metadata"]["name"] for p in job.pods},
        90,
        job.summary,
    )
    job.wait_steps(10)
    assert job.workers == after, "the node's return has replaced a worker"
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert len(audit["pids"][survivor]) == 1, "the survivor's process was replaced"
