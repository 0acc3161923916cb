"""Live ranks with problems: stuck, slow, too few, failing."""

from __future__ import annotations

from elastrain.api.records import Health, Outcome


def health(job, worker: str) -> str:
    member = job.members().get(worker)
    return member.health if member else ""


def test_a_rank_stuck_in_user_code_is_named_with_its_stacks_and_restarted(job) -> None:
    job.want(2)
    job.start("a", "b", ELASTRAIN_STUCK_TIMEOUT="2")
    first = job.together("a", "b")
    survivor, stuck = job["a"].rank_pid, job["b"].rank_pid
    job.ask("b", "hang")
    job.wait("b to be named", lambda: health(job, "b") == Health.STUCK)
    assert "does not return from the script's code" in job.members()["b"].health_message
    job.together("a", "b", after=first)
    assert "train_faults.py" in job["b"].out() and "time.sleep" not in job["a"].out()
    assert "most recent call first" in job["b"].out(), "its stacks were not printed"
    (killed,) = job["b"].log("killing a rank")
    assert "hung in the script's code" in killed["why"]
    assert not job["a"].log("killing a rank"), "a rank that only waits was killed"
    verdict = job.verdict()
    assert verdict.pids["a"] == (survivor,), "the survivor's process changed"
    assert stuck in verdict.pids["b"] and len(verdict.pids["b"]) == 2
    assert job.members()["b"].restarts == 1
    job.wait("all to be well again", lambda: {health(job, "a"), health(job, "b")} == {""})


def test_a_straggler_is_named_in_its_record_and_in_progress_until_it_recovers(job) -> None:
    job.want(3)
    job.start("a", "b", "c", delay=0.03)
    job.together("a", "b", "c")
    job.ask("b", "slow")
    job.wait("b to be named", lambda: health(job, "b") == Health.SLOW)
    assert "times as long per step" in job.members()["b"].health_message
    assert job.members()["b"].health_rank == 0
    job.wait("progress to name it", lambda: job.progress().stragglers == ("b",))
    assert [health(job, w) for w in "ac"] == ["", ""], "waiting ranks were named"
    (job.folder / "b.slow").unlink()
    job.wait("b to be like the others", lambda: health(job, "b") == "" and job.progress().stragglers == ())
    job.verdict()


def test_a_straggler_leaves_if_it_is_to_be_excluded_and_enough_remain(job) -> None:
    job.want(3, min=2)
    job.start("a", "b", "c", delay=0.03, ELASTRAIN_STRAGGLERS="exclude")
    first = job.together("a", "b", "c")
    job.ask("b", "slow")
    last = job["b"].ends()
    assert last.outcome is Outcome.DRAINED
    assert last.message.startswith("straggler: local rank 0 computes")
    second = job.together("a", "c", after=first)
    job.ask("c", "slow")
    job.wait("c to be named", lambda: health(job, "c") == Health.SLOW)
    job.steps(20)  # it would leave as it is named
    assert job.generation().number == second, "the straggler left although only the minimum is there"
    job.verdict()


def test_survivors_wait_bounded_with_the_reason_if_fewer_than_min_are_left(job) -> None:
    job.want(2, min=2)
    job.start("a", "b", ELASTRAIN_MIN_TIMEOUT="14")
    job.together("a", "b")
    job["b"].process.kill()
    job.wait("a to say that it waits", lambda: health(job, "a") == Health.BELOW_MIN)
    assert "until 2 members are ready (minReplicas)" in job.members()["a"].health_message
    assert {m.worker for m in job.generation().members} == {"a", "b"}, "none was formed below the minimum"
    last = job["a"].ends()
    assert last.outcome is Outcome.DRAINED
    assert last.message == "fewer than minReplicas members were ready for 14 s"


def test_the_failing_rank_and_its_traceback_are_reported_and_no_other_fails_if_a_script_raises(job) -> None:
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    rank = next(m.rank_offset for m in job.generation().members if m.worker == "b")
    job.ask("b", "raise")
    last = job["b"].ends()
    assert (last.outcome, last.reason, last.exit_code, last.rank) == (Outcome.FAILED, "ScriptFailed", 1, rank)
    assert last.message.startswith("ValueError: the batch of step ")
    assert "train_faults.py" in last.message
    assert "Traceback (most recent call last)" in last.log_tail
    job.together("a", after=first)
    assert job["a"].process.poll() is None, "a peer failed for it"
    assert not job["b"].log("ranks started")[1:], "a script that raises was restarted in place"
