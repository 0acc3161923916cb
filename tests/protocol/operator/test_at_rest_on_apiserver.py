"""What an operator asks of the API server while nothing changes: jobs that train, wait for room, or are suspended."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node_pool import Pool

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly, pytest.mark.timeout(600)]

JOBS = 20
"""Of each kind."""
QUIET = 10.0
"""Seconds without a write, after which nothing changes any more."""
SECONDS = 60.0
BY_TIME = {"leases", "subjectaccessreviews", "selfsubjectaccessreviews", "namespaces"}
"""Asked by the clock, however many jobs there are."""


def requests(operator) -> Counter[str]:
    """All requests up to now, by verb and resource."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(operator.metrics()):
        for sample in family.samples:
            if sample.name == "elastrain_operator_api_requests_total":
                found[f"{sample.labels['verb']} {sample.labels['resource']}"] += int(sample.value)
    return found


def test_a_minute_at_rest_costs_no_request_for_any_job(
    cluster, operator_process, operator_factory, etcd, play, eventually
):
    pool = Pool(cluster)
    pool.join("one", JOBS)
    operator_process.stop()  # it serves all namespaces, and does not share them out
    operator = operator_factory(etcd, cluster.namespace, "--capacity")
    trains = {"minReplicas": 1, "maxReplicas": 1, "template": pool.template()}
    for n in range(JOBS):
        player = play(cluster.create_job(f"trains{n}", **trains))
        player.may_start = pool.bound
        eventually(lambda n=n: cluster.status(f"trains{n}").get("readyReplicas") == 1, 60, f"trains{n} trains")
        player.close()
    for n in range(JOBS):
        cluster.create_job(f"waits{n}", **{**trains, "minReplicas": 2, "maxReplicas": 2})
        cluster.create_job(f"rests{n}", **trains, suspend=True)
    last, since = requests(operator), time.monotonic()

    def quiet() -> bool:
        nonlocal last, since
        if (now := requests(operator)) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > QUIET

    eventually(quiet, 120, "nothing changes any more", pause=0.5)
    began, before = time.monotonic(), requests(operator)
    eventually(lambda: time.monotonic() - began > SECONDS, SECONDS + 10, "a rest", pause=1)
    found = {k: n for k, n in (requests(operator) - before).items() if k.split()[1] not in BY_TIME}
    print(f"at rest, {3 * JOBS} jobs, {SECONDS:g} s: {found}; by the clock: {dict(requests(operator) - before)}")
    assert sum(found.values()) <= SECONDS / 10, f"watches that are renewed, and nothing for a job: {found}"
    assert not [k for k in found if k.split()[0] in ("create", "patch", "update", "delete")], found
