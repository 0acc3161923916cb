"""Workers that die, fall silent or are cut off at the worst time. Promises 1, 2, 5 and 6 hold."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

FAKE_RANK = Path(__file__).parents[2] / "shared" / "fake_rank.py"


def test_survivor_continues_and_both_return_if_two_ranks_die_in_the_same_step(job) -> None:
    job.want(3)
    job.start("a", "b", "c", delay=0.2)
    first = job.together("a", "b", "c")
    survivor = job["b"].rank_pid
    job["a"].kill_rank()
    job["c"].kill_rank()
    job.together("a", "b", "c", after=first)
    verdict = job.verdict()
    assert verdict.pids["b"] == (survivor,), "the survivor's process changed"
    assert len(verdict.pids["a"]) == len(verdict.pids["c"]) == 2
    assert all(job[w].process.poll() is None for w in "abc"), "an agent ended"


@pytest.mark.parametrize("when", ["before the record is written", "after the record is written"])
def test_the_next_oldest_leads_if_the_leader_dies_while_forming_a_generation(job, when) -> None:
    fake = [sys.executable, str(FAKE_RANK)]
    job.want(3)
    job.start("a", command=fake, FAKE_RANK_TRAIL=str(job.folder))
    job.wait("a to train alone", lambda: job.members().get("a") and job.members()["a"].generation == 1)
    job.start("b", "c", command=fake, FAKE_RANK_TRAIL=str(job.folder))
    job.wait("b to be ready", lambda: "b" in job.members() and job.members()["b"].phase == "ready")
    if when.startswith("after"):
        job.wait("a to have written it", lambda: job.generation().number > 1)
    job["a"].signal(signal.SIGKILL)
    job.wait("b and c to train together", lambda: job.entered("b", "c"))
    assert job.generation().leader.startswith(("b.", "c."))
    assert all(job[w].process.poll() is None for w in "bc")


def unsent(pid: int) -> int:
    """Bytes that a process has written to its connections and no peer has taken."""
    with suppress(FileNotFoundError):  # one that has just been closed
        links = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
        rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
        return sum(int(row[4].partition(":")[0], 16) for row in rows if f"socket:[{row[9]}]" in links)
    return 0


def wait_for_a_transfer(job, source: str) -> None:
    """Return while the rank of ``source`` sends its state: no other message fills a connection."""
    pid = job[source].rank_pid
    job.wait(f"{source} to send its state", lambda: unsent(pid) > 1 << 19, pause=0.001)


def test_joiner_gets_the_state_from_another_survivor_if_its_source_dies_during_the_transfer(job) -> None:
    job.want(2)
    job.start("a", "b", BALLAST_MB="384")
    first = job.together("a", "b")
    source, other = (m.worker for m in job.generation().members)
    survivor = job[other].rank_pid
    job.want(3)
    job.start("j", BALLAST_MB="384")
    wait_for_a_transfer(job, source)
    joiner = job["j"].rank_pid
    os.kill(joiner, signal.SIGSTOP)  # the next part of the test takes longer than the rest of the transfer
    assert job["j"].adopted <= first, "the transfer was over: use a larger BALLAST_MB"
    job[source].kill_rank()
    os.kill(joiner, signal.SIGCONT)
    job.together("a", "b", "j", after=first + 1)  # the source has restarted and joins
    verdict = job.verdict()
    assert verdict.pids[other] == (survivor,), "the survivor's process changed"
    assert len(verdict.pids[source]) == 2


def test_survivors_continue_with_the_same_step_if_a_joiner_dies_while_it_gets_their_state(job) -> None:
    job.want(2)
    job.start("a", "b", BALLAST_MB="384")
    first = job.together("a", "b")
    pids = {w: job[w].rank_pid for w in "ab"}
    source = job.generation().members[0].worker
    job.want(3)
    job.start("j", BALLAST_MB="384")
    wait_for_a_transfer(job, source)
    job["j"].kill_rank()
    job.together("a", "b", "j", after=first + 1)  # it has restarted and joins
    verdict = job.verdict()
    assert {w: verdict.pids[w] for w in "ab"} == {w: (p,) for w, p in pids.items()}, "a survivor's process changed"


def test_survivors_continue_after_the_lease_and_the_thawed_member_rejoins_if_a_node_falls_silent(job) -> None:
    job.want(3)
    job.start("a", "b", "c")
    first = job.together("a", "b", "c")
    pids = {w: job[w].rank_pid for w in "ac"}
    job["b"].signal(signal.SIGSTOP)
    alone = job.together("a", "c", after=first)
    job["b"].signal(signal.SIGCONT)
    job.together("a", "b", "c", after=alone)
    verdict = job.verdict()
    assert {w: verdict.pids[w] for w in "ac"} == {w: (p,) for w, p in pids.items()}, "a survivor's process changed"


def test_a_fenced_member_stops_before_it_is_replaced(job, proxy) -> None:
    way = proxy(job.etcd.endpoint)
    job.want(3)
    job.start("a", "c")
    job.together("a", "c")
    job.start("b", endpoint=way.endpoint)
    first = job.together("a", "b", "c")
    way.cut()  # its lease expires; it trains with the others until they replace it
    job.steps(3)
    after = job.together("a", "c", after=first)
    os.kill(job["b"].rank_pid, 0)  # it lives
    by_b = [x["step"] for x in job.commits() if x["worker"] == "b"]
    of_next = [x["step"] for x in job.commits() if x["generation"] >= after]
    assert max(by_b) < min(of_next), "two generations have trained at once"
    way.mend()
    job.together("a", "b", "c", after=after)
    job.verdict()
