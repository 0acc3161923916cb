"""How long a rank takes to start, executed and forked: an agent's cold start, and ``kill -9`` of its rank.

One worker with one rank, whose script imports torch only. *Ready* is the moment at which the agent publishes that the
rank is. CPU seconds are of the agent and all that it has started, but for the killed rank. ``python bench/rank_start.py
--help`` has the options.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Target
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.server import EtcdServer

PATIENCE = 120.0
SCRIPT = """
import time, torch, elastrain
with elastrain.join() as job:
    model = job.wrap(torch.nn.Linear(8, 8))
    optimizer = torch.optim.Adam(model.parameters())
    job.track(optimizer=optimizer)
    loader = job.dataloader(torch.utils.data.TensorDataset(torch.randn(64, 8)), global_batch_size=8)
    for (x,) in job.steps(loader, steps=10**9):
        time.sleep(0.05)
        optimizer.zero_grad()
        job.backward(model(x).pow(2).mean())
        optimizer.step()
"""


@dataclass(frozen=True)
class Result:
    mode: str
    cold_seconds: float
    cold_cpu: float
    back_seconds: list[float]
    back_cpu: float
    memory: dict[str, dict[str, int]]
    """MiB of each process: rss, pss (shared pages divided among those who share them), uss (its own pages)."""


class Worker:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = psutil.Process(process.pid)
        self._log = log

    def _lines(self, event: str) -> list[dict]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def wait_ready(self, times: int) -> None:
        """Until as many incarnations of the rank have become ready."""
        end = time.monotonic() + PATIENCE
        while len({line["id"] for line in self._lines("member") if line["phase"] == "ready"}) < times:
            if time.monotonic() > end:
                raise TimeoutError(f"not ready within {PATIENCE:g} s:\n{self._log.read_text()}")
            time.sleep(0.005)

    def rank(self) -> int:
        return self._lines("ranks started")[-1]["pids"]["0"]

    def cpu(self, without: int | None = None) -> float:
        seconds = 0.0
        for process in (self.process, *self.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if process.pid != without:
                    seconds += sum(process.cpu_times()[:2])
        return seconds

    def memory(self) -> dict[str, dict[str, int]]:
        called = {self.process.pid: "agent", self.rank(): "rank"}
        infos = {called.get(p.pid, "zygote"): p.memory_full_info() for p in (self.process, *self.process.children())}
        return {who: {kind: getattr(m, kind) >> 20 for kind in ("rss", "pss", "uss")} for who, m in infos.items()}


@contextmanager
def worker(mode: str, directory: Path, etcd: EtcdServer) -> Iterator[Worker]:
    keys = JobKeys("bench", "rank-start", mode)
    config = EtcdConfig.of(etcd.endpoint)
    with EtcdClient(config) as client:
        client.put(keys.target, Target(min=1, max=1, desired=1).encode())
    script, log = directory / "train.py", directory / f"{mode}.log"
    script.write_text(SCRIPT)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("ELASTRAIN_")},
        **config.to_environment(),
        names.ENV_NAMESPACE: keys.namespace,
        names.ENV_JOB: keys.job,
        names.ENV_JOB_UID: keys.uid,
        names.ENV_WORKER: "worker",
        names.ENV_ADDRESS: "127.0.0.1",
        names.ENV_TERMINATION_LOG: str(directory / "termination.json"),
        names.ENV_FORK_RANKS: mode,
        ENV_AGENT_LOG: str(log),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "elastrain", "agent", "--", sys.executable, str(script)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield Worker(process, log)
    finally:
        process.kill()
        process.wait()


def measure(mode: str, kills: int, directory: Path, etcd: EtcdServer) -> Result:
    began = time.monotonic()
    with worker(mode, directory, etcd) as w:
        w.wait_ready(1)
        cold, cold_cpu = time.monotonic() - began, w.cpu()
        back, cpu = [], []
        for killed in range(1, kills + 1):
            time.sleep(1.5)
            rank = w.rank()
            before, at = w.cpu(without=rank), time.monotonic()
            os.kill(rank, 9)
            w.wait_ready(killed + 1)
            back.append(round(time.monotonic() - at, 3))
            cpu.append(w.cpu() - before)
        return Result(mode, round(cold, 2), round(cold_cpu, 2), back, round(statistics.median(cpu), 2), w.memory())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4, help="an agent restarts a rank five times in a row at most")
    parser.add_argument("--mode", choices=("on", "off", "both"), default="both", help=names.ENV_FORK_RANKS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, EtcdServer() as etcd:
        for mode in ("off", "on") if arguments.mode == "both" else (arguments.mode,):
            result = measure(mode, arguments.kills, Path(directory), etcd)
            back = result.back_seconds
            kill, slowest = statistics.median(back), max(back)
            print(f"{names.ENV_FORK_RANKS}={mode}")
            print(f"  cold start to ready {result.cold_seconds:6.2f} s, CPU {result.cold_cpu:.2f} s")
            print(f"  kill -9 to ready    {kill:6.2f} s (max {slowest:.2f}), CPU {result.back_cpu:.2f} s")
            for who, memory in result.memory.items():
                print(f"  memory of the {who:7} " + ", ".join(f"{kind} {mib} MiB" for kind, mib in memory.items()))
            print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
