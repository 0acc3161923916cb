"""Ranks as real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastrain.agent.process.supervisor import Supervisor, split_exit_code


def collect(supervisor: Supervisor, count: int, timeout: float = 20.0):
    """Reap until ``count`` ranks have ended; waits for the processes themselves, bounded."""
    ended = []
    end = time.monotonic() + timeout
    while len(ended) < count:
        fds = [os.pidfd_open(pid) for pid in supervisor.pids.values()]
        try:
            assert select.select(fds, [], [], end - time.monotonic())[0], f"{count} ranks did not end in {timeout} s"
        finally:
            for fd in fds:
                os.close(fd)
        ended += supervisor.reap()
    return sorted(ended, key=lambda r: r.local_rank)


def started(code: str, nproc: int = 1) -> Supervisor:
    supervisor = Supervisor([sys.executable, "-c", code], os.environ, nproc)
    supervisor.start(Path("/nowhere"))
    return supervisor


def test_each_rank_gets_its_local_rank_and_its_output_is_forwarded(capfd):
    supervisor = started("import os; print('rank', os.environ['LOCAL_RANK'], 'of', os.environ['LOCAL_WORLD_SIZE'])", 2)
    ended = collect(supervisor, 2)
    assert [(r.code, r.signal, r.log_tail) for r in ended] == [(0, 0, "rank 0 of 2"), (0, 0, "rank 1 of 2")]
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.startswith("rank ")) == ["rank 0 of 2", "rank 1 of 2"]


def test_the_log_tail_holds_the_last_lines_of_both_streams_if_much_is_printed():
    (ended,) = collect(started("import sys\nfor i in range(999): print(i)\nsys.exit('no\\rgone wrong')"), 1)
    assert ended.code == 1
    lines = ended.log_tail.splitlines()
    assert len(lines) == 50
    assert "gone wrong" in lines
    assert "998" in lines


def test_a_signal_is_distinguished_from_an_exit_code():
    (ended,) = collect(started("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"), 1)
    assert (ended.code, ended.signal) == (0, signal.SIGSEGV)


def test_all_ranks_end_if_their_groups_are_killed():
    supervisor = started("import time; time.sleep(600)", 2)
    supervisor.kill(signal.SIGKILL)
    assert [r.signal for r in collect(supervisor, 2)] == [9, 9]


def test_grandchildren_do_not_outlive_their_rank():
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], stdout=2).pid)"
    (ended,) = collect(started(code), 1)
    fd = None
    try:
        fd = os.pidfd_open(int(ended.log_tail))
        assert select.select([fd], [], [], 10)[0], "the grandchild still runs"
    except ProcessLookupError:
        pass  # reaped already
    finally:
        if fd is not None:
            os.close(fd)


def test_ranks_die_if_their_agent_is_killed():
    code = (
        "import os, structlog, sys; from pathlib import Path\n"
        "from elastrain.agent.process.supervisor import Supervisor\n"
        "structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))\n"
        "s = Supervisor(['sleep', '600'], os.environ, 1); s.start(Path('/nowhere'))\n"
        "print(s.pids[0], flush=True); sys.stdin.read()"
    )
    agent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    rank = os.pidfd_open(int(agent.stdout.readline()))
    try:
        agent.kill()
        agent.wait()
        assert select.select([rank], [], [], 10)[0], "the rank outlived its agent"
    finally:
        os.close(rank)
        agent.stdout.close()


def test_a_command_that_cannot_be_executed_ends_with_127_and_a_message():
    supervisor = Supervisor(["/no/such/command"], os.environ, 1)
    supervisor.start(Path("/nowhere"))
    (ended,) = collect(supervisor, 1)
    assert (ended.code, ended.log_tail) == (
        127,
        "command: '/no/such/command' cannot be executed: No such file or directory",
    )


@pytest.mark.parametrize(
    ("status", "split"), [(0, (0, 0)), (3, (3, 0)), (-9, (0, 9)), (137, (0, 9)), (139, (0, 11)), (255, (255, 0))]
)
def test_a_shells_report_of_a_signal_counts_as_the_signal(status, split):
    assert split_exit_code(status) == split
