"""Real torchrun processes with a stock DDP script (train_ddp.py) over a real etcd."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from warm import Warm, WarmProcess

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)  # several imports of torch in a row, on a machine that may be busy
SCRIPT = Path(__file__).with_name("train_ddp.py")
PATIENCE = 60.0
"""Seconds for a change of size: mostly the import of torch on a machine that is busy with other tests."""
SAVED = 5
"""Steps before the script's first checkpoint."""


@dataclass(frozen=True)
class Line:
    """One step as rank 0 logged it."""

    step: int
    world: int
    master: str
    agent: int
    """Pid of rank 0's torchrun agent."""


class Cluster:
    """Agents are forks of the warm process; torchrun executes their ranks, which import torch themselves."""

    def __init__(self, warm: Warm, endpoint: str, directory: Path) -> None:
        warm.imports("torch.distributed.run")
        self.warm, self.endpoint, self.directory = warm, endpoint, directory
        self.agents: list[WarmProcess] = []

    def start(self, steps: int = 100_000, nnodes: str = "1:4", conf: str = "") -> WarmProcess:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=etcd-v3"),
            *(f"--rdzv-endpoint={self.endpoint}", f"--rdzv-id={self.directory.name}", f"--nnodes={nnodes}"),
            *(f"--rdzv-conf=lease_ttl=2,settle=0.5{conf}", "--max-restarts=9", "--nproc-per-node=1"),
            *(str(SCRIPT), str(self.directory), str(steps)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        agent = self.warm.start(command, environment, (self.directory / f"agent-{len(self.agents)}").open("wb"))
        self.agents.append(agent)
        return agent

    def lines(self) -> list[Line]:
        path = self.directory / "log"
        if not path.exists():
            return []
        fields = [line.split() for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [Line(int(f[1]), int(f[2]), f[3], int(f[4])) for f in fields]

    def await_steps(self, world: int, after: int = 0) -> Line:
        """Wait until three steps in a row were made in a world of this size, later than line ``after``."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            newest = self.lines()[after:][-3:]
            if len(newest) == 3 and all(line.world == world for line in newest):
                return newest[-1]
            time.sleep(0.05)
        outputs = "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in self.directory.glob("agent-*"))
        pytest.fail(f"no steps in a world of {world} within {PATIENCE:g} s; last {self.lines()[-3:]}\n{outputs}")

    def rank0(self, line: Line) -> WarmProcess:
        return next(a for a in self.agents if a.pid == line.agent)

    def kill(self, agent: WarmProcess) -> None:
        """Like a machine that is switched off: the agent and its ranks end without a message."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(agent.pid)
            process.suspend()  # so that it does not replace a rank in between
            for rank in process.children(recursive=True):
                rank.kill()
            process.kill()
        agent.wait()

    def close(self) -> None:
        for agent in self.agents:
            self.kill(agent)
        for process in psutil.process_iter(["cmdline"]):  # ranks of an agent that was killed alone
            if str(self.directory) in (process.info["cmdline"] or ()):
                process.kill()


@pytest.fixture
def cluster(warm, etcd, tmp_path):
    one = Cluster(warm, etcd.endpoint, tmp_path)
    yield one
    one.close()


def test_the_job_grows_and_survives_the_loss_of_rank_0(cluster):
    cluster.start()
    alone = cluster.await_steps(world=1, after=SAVED)
    cluster.start()
    both = cluster.await_steps(world=2)
    assert both.step > SAVED, "the script goes on from its checkpoint"
    assert both.agent == alone.agent, "a surviving rank 0 stays rank 0 ..."
    assert both.master != alone.master, "... with a fresh store"
    cluster.kill(cluster.rank0(both))
    survivor = cluster.await_steps(world=1, after=len(cluster.lines()))
    assert survivor.agent not in (0, both.agent)
    assert survivor.master != both.master, "the master address belongs to the generation"


@pytest.mark.nightly
def test_the_job_continues_through_three_sizes_and_ends(cluster):
    for world in (1, 2, 3):
        cluster.start()
        line = cluster.await_steps(world=world)
    leaver = cluster.rank0(line)
    leaver.terminate()
    shrunk = cluster.await_steps(world=2, after=len(cluster.lines()))
    leaver.wait(PATIENCE)
    assert shrunk.agent != line.agent
    other = next(a for a in cluster.agents if a.poll() is None and a.pid != shrunk.agent)
    os.kill(other.pid, signal.SIGKILL)  # the agent alone: its rank continues for a while, and must not disturb
    last = cluster.await_steps(world=1, after=len(cluster.lines()))
    assert last.agent == shrunk.agent


@pytest.mark.nightly
def test_a_running_job_continues_if_etcd_restarts(warm, etcd_factory, tmp_path):
    server = etcd_factory()
    cluster = Cluster(warm, server.endpoint, tmp_path)
    try:
        agents = [cluster.start(nnodes="2:2") for _ in range(2)]
        before = cluster.await_steps(world=2)
        server.kill()
        server.start()
        after = cluster.await_steps(world=2, after=len(cluster.lines()) + 60)
        assert after.master == before.master, "a restart of etcd restarts no rank"
        assert [agent.poll() for agent in agents] == [None, None]
    finally:
        cluster.close()
