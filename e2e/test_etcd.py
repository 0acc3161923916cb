"""The node of etcd is drained, and etcd loses its data, under a job that trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import release
from harness.commands import eventually, kubectl
from harness.example import digits
from harness.jobs import RESCALE, Audit, Job

pytestmark = pytest.mark.alone
Submit = Callable[[dict[str, Any]], Job]


@pytest.fixture
def etcd_restored() -> Iterator[None]:
    """All nodes take pods, and all members of etcd serve, whatever happens."""
    yield
    for node in release.etcd_nodes().values():
        kubectl("uncordon", node)
    release.bring_back("etcd")


def assert_nothing_was_restarted(job: Job, before: dict[str, str]) -> None:
    assert before.items() <= job.workers.items(), "a worker was replaced"
    assert all(count == 0 for count in job.status["restarts"].values())
    assert all(c["restartCount"] == 0 for p in job.pods for c in p["status"]["containerStatuses"])


def test_jobs_are_rescaled_while_a_node_of_etcd_is_drained(submit: Submit, etcd_restored: None) -> None:
    job = submit(digits("drained", replicas=2))
    before = job.wait_size(2)
    job.wait_steps(10)
    first, second, _ = release.etcd_nodes().items()

    assert release.drain_etcd(first[1]), "one member may be evicted"
    release.wait_pod_gone(first[0])
    assert not release.drain_etcd(second[1]), "a second one would take the majority away"
    kubectl("uncordon", second[1])
    assert job.holds("CoordinationAvailable")
    job.scale(3)
    grown = job.wait_size(3, RESCALE)
    assert before.items() <= grown.items()

    kubectl("uncordon", first[1])
    release.wait_pod_of("etcd")
    job.wait_steps(10)
    assert_nothing_was_restarted(job, grown)
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values()), "a rank's process was replaced"


def test_the_records_return_and_jobs_are_rescaled_if_etcd_loses_its_data(submit: Submit, etcd_restored: None) -> None:
    job = submit(digits("forgotten", replicas=2))
    before = job.wait_size(2)
    job.wait_steps(10)
    generation = job.status["generation"]

    release.lose_data_of_etcd()

    job.wait_condition("CoordinationAvailable", timeout=120)
    job.wait_steps(20, timeout=90)
    assert job.status["generation"]["number"] >= generation["number"], "numbers never go back"
    job.scale(3)
    grown = job.wait_size(3, RESCALE)
    assert before.items() <= grown.items()
    eventually("the loss was reported", lambda: "DataLost" in job.reasons, 30, job.summary)
    assert_nothing_was_restarted(job, grown)
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values()), "a rank's process was replaced"
