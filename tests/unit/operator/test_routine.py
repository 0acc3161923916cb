"""Which changes of a pod can wait."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from elastrain_operator.facts import Ending, Pod, Trouble
from elastrain_operator.policy.report.routine import is_routine

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
CREATED = Pod("job-0", "uid-0", 0, NOW)
CREATING = replace(CREATED, trouble=Trouble("ContainerNotCreated", "not created yet", patience=60.0))
BOUND = replace(CREATED, node="node-1", bound=NOW)
STARTED = replace(BOUND, started=True)
READY = replace(STARTED, ready=True)
REFUSED = Trouble("ImagePullFailed", "no such image")


@pytest.mark.parametrize(
    ("before", "now"),
    [(None, CREATED), (None, READY), (CREATED, BOUND), (BOUND, CREATING), (CREATING, STARTED), (STARTED, READY)],
)
def test_a_change_can_wait_if_it_is_a_normal_step_of_a_start(before, now):
    assert is_routine(before, now)


@pytest.mark.parametrize(
    "change",
    [
        {"ending": Ending(NOW)},
        {"over": True},
        {"terminating": True},
        {"disruption": "PreemptionByScheduler"},
        {"went_unready": True},
        {"trouble": REFUSED},
    ],
)
@pytest.mark.parametrize("before", [None, CREATED, READY])
def test_a_change_cannot_wait_if_the_pod_is_in_trouble_or_ends(before, change):
    assert not is_routine(before, replace(before or CREATED, **change))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (READY, STARTED),
        (STARTED, BOUND),
        (replace(CREATED, trouble=REFUSED), BOUND),
        (CREATED, replace(CREATED, template="another")),
        (CREATED, replace(CREATED, accelerators=2)),
    ],
)
def test_a_change_cannot_wait_if_it_is_not_a_step_of_a_start(before, now):
    assert not is_routine(before, now)
