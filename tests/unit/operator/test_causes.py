"""Why a worker ended: the table of causes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest

from elastrain.api.records import Outcome, Termination
from elastrain_operator.facts import Cause, Ending, Pod
from elastrain_operator.policy.losses.causes import judge

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POD = Pod("job-1", "uid-1", 1, NOW, started=True)
SCRIPT = Termination(
    outcome=Outcome.FAILED, exit_code=1, rank=3, reason="ScriptFailed", message="ValueError: no data", log_tail="tail"
)
KILLED = Termination(outcome=Outcome.FAILED, signal=9, exit_code=137, reason="RankKilled", message="rank 3 was killed")
ETCD = Termination(outcome=Outcome.FAILED, exit_code=75, reason="EtcdDenied", message="wrong password")
DRAINED = Termination(outcome=Outcome.DRAINED)
FINISHED = Termination(outcome=Outcome.FINISHED)

CASES = {
    "script error": (Ending(NOW, SCRIPT, 1), "", Cause.USER, "ScriptFailed", "job-1, rank 3: ValueError: no data"),
    "rank killed": (Ending(NOW, KILLED, 137), "", Cause.INFRASTRUCTURE, "RankKilled", "was killed"),
    "etcd refused the agent": (Ending(NOW, ETCD, 75), "", Cause.INFRASTRUCTURE, "EtcdDenied", "wrong password"),
    "out of memory": (Ending(NOW, None, 137, "OOMKilled"), "", Cause.INFRASTRUCTURE, "OOMKilled", "memory"),
    "killed": (Ending(NOW, None, 137, "Error"), "", Cause.INFRASTRUCTURE, "Killed", "signal 9"),
    "no agent in the image": (
        Ending(NOW, None, 128, "StartError", 'exec: "elastrain": not found'),
        "", Cause.USER, "CommandNotStarted", 'exec: "elastrain": not found',
    ),
    "no last words": (Ending(NOW, None, 3, "Error"), "", Cause.USER, "NoTerminationRecord", "exit code 3"),
    "silent success": (Ending(NOW, None, 0, "Completed"), "", Cause.USER, "NoTerminationRecord", "exit code 0"),
    "evicted": (Ending(NOW, None, None, "Evicted", "low on disk"), "", Cause.INFRASTRUCTURE, "Evicted", "low on disk"),
    "evicted while failing": (Ending(NOW, SCRIPT, 1), "EvictionByEvictionAPI", Cause.INFRASTRUCTURE, "Evicted", ""),
    "preempted": (Ending(NOW, None, 143, "Error"), "PreemptionByScheduler", Cause.PREEMPTION, "Preempted", ""),
    "preempted and drained": (Ending(NOW, DRAINED, 0), "PreemptionByScheduler", Cause.PREEMPTION, "Preempted", ""),
    "refused by the node": (
        Ending(NOW, None, None, "OutOfvendor.example/gpu", refused=True),
        "", Cause.INFRASTRUCTURE, "PodFailed", "refused worker job-1 (OutOfvendor.example/gpu)",
    ),
    "evicted before a container ran": (
        Ending(NOW, None, None, "Evicted", refused=True), "EvictionByEvictionAPI", Cause.INFRASTRUCTURE, "Evicted", "",
    ),
    "its node restarted": (Ending(NOW, None, 255, "Unknown"), "", Cause.INFRASTRUCTURE, "Killed", "exit code 255"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_cause_is_known(case):
    ending, disruption, cause, reason, words = CASES[case]
    loss = judge(dataclasses.replace(POD, ending=ending, disruption=disruption))
    assert (loss.cause, loss.reason) == (cause, reason)
    assert words in loss.message
    assert "job-1" in loss.message


def test_log_tail_is_kept_if_the_script_failed():
    assert judge(dataclasses.replace(POD, ending=Ending(NOW, SCRIPT, 1))).log_tail == "tail"


@pytest.mark.parametrize("record", [DRAINED, FINISHED])
def test_worker_is_not_lost_if_it_finished_or_drained(record):
    assert judge(dataclasses.replace(POD, ending=Ending(NOW, record, 0))) is None


def test_finished_worker_is_not_lost_if_it_is_evicted_afterwards():
    assert judge(dataclasses.replace(POD, ending=Ending(NOW, FINISHED, 0), disruption="EvictionByEvictionAPI")) is None
