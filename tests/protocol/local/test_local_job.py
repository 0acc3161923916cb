"""A whole local job: etcd, agents and ranks as processes."""

from __future__ import annotations

import pytest

from elastrain_cli.local.plan import Result


def together(workers: int):
    def condition(status):
        return status.in_force == workers and len(status.generation.members) == workers

    return condition


def test_a_job_grows_survives_a_loss_shrinks_and_drains(manifest, run_job):
    job = run_job(manifest(replicas=1))
    job.wait(together(1), timeout=60, what="one worker")
    job.scale(3)
    job.wait(together(3), timeout=60, what="three workers")
    pids = {name: job.worker(name).rank_pids() for name in job.members()}

    job.kill_worker("fake-1", "worker")
    job.wait(lambda s: any(w.name == "fake-3" for w in s.workers), timeout=60, what="a replacement")
    job.wait(together(3), timeout=60, what="three workers again")
    killed = job.worker("fake-1").ended
    assert killed is not None
    assert killed.reason == "AgentKilled"
    assert job.worker("fake-0").rank_pids() == pids["fake-0"]

    job.scale(1)
    job.wait(lambda s: together(1)(s) and len(s.running) == 1, timeout=60, what="one worker")
    assert job.worker("fake-0").rank_pids() == pids["fake-0"], "the oldest stays, in its process"

    job.drain()
    job.wait(timeout=60)
    assert job.result is Result.DRAINED


def test_a_killed_rank_restarts_in_its_worker(manifest, run_job):
    job = run_job(manifest(replicas=1))
    job.wait(together(1), timeout=60)
    (pid,) = job.worker("fake-0").rank_pids()
    job.kill_worker("fake-0", "rank")
    job.wait(lambda s: together(1)(s) and s.workers[0].restarts == 1, timeout=60, what="the restarted rank")
    assert job.worker("fake-0").rank_pids() != [pid]
    assert len(job.status().workers) == 1


def test_the_job_finishes_if_its_ranks_do(manifest, run_job):
    job = run_job(manifest(replicas=2, env={"FAKE_RANK_STEPS": "40"}))
    status = job.wait(timeout=60)
    assert job.result is Result.FINISHED
    assert status.progress is not None
    assert status.progress.finished


def test_the_job_fails_with_the_scripts_message_if_it_raises(manifest, run_job):
    job = run_job(manifest(replicas=1, backoffLimit=1, env={"FAKE_RANK_FAIL": "raise"}))
    status = job.wait(timeout=60)
    assert job.result is Result.FAILED
    assert ": ScriptFailed: ValueError: the batch is empty" in status.message
    assert "Traceback" in job.failure_tail(20)


def test_scaling_is_refused_with_field_value_and_rule_if_out_of_range(manifest, run_job):
    job = run_job(manifest(replicas=1))
    with pytest.raises(ValueError, match=r"replicas: 5: must be between minReplicas \(1\) and maxReplicas \(4\)"):
        job.scale(5)


def test_a_failed_wait_names_what_was_awaited_if_the_job_ends_first(manifest, run_job):
    job = run_job(manifest(replicas=1, env={"FAKE_RANK_STEPS": "5"}))
    with pytest.raises(RuntimeError, match="waited for ten workers, but the job ended: finished"):
        job.wait(lambda s: len(s.workers) == 10, timeout=60, what="ten workers")


def test_a_spare_replaces_a_lost_worker_and_is_replaced(manifest, run_job):
    job = run_job(manifest(replicas=2, warmSpares=1))
    job.wait(lambda s: together(2)(s) and s.standing_by == ("fake-2",), timeout=60, what="a spare")
    job.kill_worker("fake-1", "worker")
    taken = {"fake-0", "fake-2"}
    job.wait(
        lambda s: together(2)(s) and {m.worker for m in s.generation.members} == taken, timeout=60, what="the spare"
    )
    job.wait(lambda s: s.standing_by == ("fake-3",), timeout=60, what="another spare")
    job.drain()
    job.wait(timeout=60)
    assert job.result is Result.DRAINED
