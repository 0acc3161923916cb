"""Operator, etcd and API server away at the same time, under a job that trains.

For as long as ELASTRAIN_OUTAGE_SECONDS says: five minutes in `make nightly`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import release
from harness.commands import eventually
from harness.example import digits
from harness.jobs import RESCALE, Audit, Job

pytestmark = [pytest.mark.alone, pytest.mark.nightly]
Submit = Callable[[dict[str, Any]], Job]
SECONDS = float(os.environ.get("ELASTRAIN_OUTAGE_SECONDS", "30"))
LOOK = 10.0
"""Seconds in which a job that trains has written something to its audit log."""
RETURN = 120 + min(2 * SECONDS, 480)
"""Kubernetes' own controllers end without an API server, and are restarted with a back-off that grows up to 5 min."""


@pytest.fixture
def all_restored() -> Iterator[None]:
    """Everything is there again, whatever happens."""
    yield
    release.bring_back_apiserver()
    release.bring_back("operator", "etcd", timeout=RETURN)


@pytest.mark.timeout(420 + SECONDS + 2 * RETURN)
def test_no_worker_is_replaced_if_operator_etcd_and_api_server_are_away_together(
    submit: Submit, all_restored: None
) -> None:
    job = submit(digits("left-alone", replicas=2))
    before = job.wait_size(2)
    job.wait_steps(10)
    generation = job.status["generation"]

    release.take_away("operator", "etcd")
    release.take_away_apiserver()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        written = job.audited_bytes
        eventually("the job trains meanwhile", lambda seen=written: job.audited_bytes > seen, LOOK)

    release.bring_back_apiserver()
    assert job.workers == before
    release.bring_back("etcd", "operator", timeout=RETURN)
    job.wait_condition("CoordinationAvailable", timeout=90)
    job.wait_steps(10, timeout=90)
    assert job.workers == before, "a worker was replaced"
    assert job.status["generation"] == generation, "the outage has changed the generation"
    assert all(count == 0 for count in job.status["restarts"].values())
    assert all(c["restartCount"] == 0 for p in job.pods for c in p["status"]["containerStatuses"])
    job.scale(3)
    assert before.items() <= job.wait_size(3, RESCALE).items()
    audit = Audit.at_the_end_of(job)
    assert (audit["lost"], audit["repeated"], audit["redone"]) == (0, 0, 0)
    assert all(len(pids) == 1 for pids in audit["pids"].values()), "a rank's process was replaced"
