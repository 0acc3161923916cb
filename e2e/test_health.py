"""What workers find out about their nodes before they train."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from harness import release
from harness.commands import kubectl
from harness.example import digits
from harness.jobs import START, Job

Submit = Callable[[dict[str, Any]], Job]


def test_nodes_measure_each_other_before_the_first_step_if_preflight_asks_for_pairs(submit: Submit) -> None:
    job = submit(digits("checked", replicas=2, preflight={"pairs": {}}))

    workers = job.wait_size(2, 2 * START)  # torch is imported once more, for the check

    nodes = job.nodes
    assert len(set(nodes.values())) == 2, "the workers prefer nodes of their own"
    for worker in workers:
        table = kubectl("logs", "-n", job.namespace, worker, "-c", "elastrain-preflight")
        partner = next(node for name, node in nodes.items() if name != worker)
        measured = re.search(r"^ok +pair +(\S+) +([0-9.]+) ms, ([0-9.]+) GB/s$", table, re.M)
        assert measured, table
        assert measured[1] == partner
        assert float(measured[2]) > 0, table
        assert float(measured[3]) > 0, table
    assert not job.status.get("excludedNodes")
    assert "WorkerLost" not in job.reasons


@pytest.mark.xdist_group("gpus")
def test_a_node_is_left_and_named_if_its_accelerators_do_not_answer(submit: Submit) -> None:
    """The GPUs of this cluster are promised by its nodes only: no process finds one."""
    job = submit(digits("no-driver", gpus=1, replicas=1, preflight={}))

    told = job.wait_condition("NodesExcluded", timeout=START)

    assert told["reason"] == "Excluded"
    assert "failed the pre-flight check: accelerator all: 0 visible of 1" in told["message"]
    excluded = {entry["node"] for entry in job.status["excludedNodes"]}
    assert excluded <= set(release.WORKER_NODES)
    assert not job.holds("Failed"), "a bad node is not the script's fault"
    assert job.status["restarts"].get("user", 0) == 0
