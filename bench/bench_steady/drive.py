"""Runs one case: agents with a real etcd, ranks that train both variants; ends everything."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench_harness.agents import Agents, base_environment, worker
from bench_harness.names import ENV_DEVICE
from bench_harness.processes import Processes, cpu_of
from bench_harness.program import Failed
from bench_steady.analysis import Comparison, compare
from bench_steady.case import ENV_CASE, ENV_DIRECTORY, Block, Case

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**32)}
"""Makes glibc keep freed memory, in both variants. Otherwise it returns and fetches again tens of megabytes within some
steps, up to 14 ms at a time, and a few bytes of earlier allocations decide in which variant."""
POLL_SECONDS = 0.5
START_SECONDS = 600.0


def drive(case: Case, directory: Path, limit: float, cards: int) -> Comparison:
    """Measure ``case``, with logs in a new ``directory``; the blocks of a start within ``limit`` seconds. ``cards``:
    CUDA devices that the ranks share. Raises :class:`Failed`."""
    starts, shares = [], []
    for number in range(case.starts):
        place = directory / f"start-{number}"
        shares.append(_start(case, place, limit, cards))
        files = [place / f"blocks-{rank}.jsonl" for rank in range(case.ranks)]
        starts.append([Block.model_validate_json(line) for file in files for line in file.read_text().splitlines()])
    agent, etcd = (statistics.mean(of_service) for of_service in zip(*shares, strict=True))
    return compare(case, starts).model_copy(update={"agent_cpu": agent, "etcd_cpu": etcd})


def _start(case: Case, directory: Path, limit: float, cards: int) -> tuple[float, float]:
    """Start the processes, let them write their blocks into ``directory``, and end them. Returns the processor seconds
    per second of one agent, and of etcd."""
    directory.mkdir(parents=True)
    environment = {
        **base_environment(),
        **KEEPS_MEMORY,
        ENV_CASE: case.model_dump_json(),
        ENV_DIRECTORY: str(directory.resolve()),
        ENV_DEVICE: case.device,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = Processes(directory, environment)
    nodes = [worker(n) for n in range(case.ranks)]

    def wait(what: str, condition: Callable[[], bool], seconds: float, *, may_end: bool = False) -> None:
        end = time.monotonic() + seconds
        while not condition():
            gone = [n for n in nodes if not processes.runs(n) and not may_end]
            if time.monotonic() > end or (gone and not condition()):
                why = f"{', '.join(gone)} has ended" if gone else f"not within {seconds:g} s"
                raise Failed(f"{case.name}: waiting for {what}: {why}; see {directory}")
            time.sleep(POLL_SECONDS)

    with Agents(directory, "bench_steady.train") as agents:
        try:
            agents.want(len(nodes), least=len(nodes))
            for number, name in enumerate(nodes):
                command, own = agents.node(number)
                card = {"CUDA_VISIBLE_DEVICES": str(number % cards)} if case.device == "cuda" else {}
                processes.start(name, command, own | card)
            wait("the first block", lambda: _all(directory, "began-{}", case.ranks), START_SECONDS)
            services = [processes.tree(nodes[0])[0], *agents.service_pids]
            began, before = time.monotonic(), [cpu_of(pid) for pid in services]
            wait("the last block", lambda: _all(directory, "blocks-{}.jsonl", case.ranks), limit)
            seconds = time.monotonic() - began
            of_agent, of_etcd = ((cpu_of(pid) - b) / seconds for pid, b in zip(services, before, strict=True))
            wait("the end", lambda: not any(processes.runs(n) for n in nodes), START_SECONDS, may_end=True)
        finally:
            processes.end(spare=agents.service_pids)
    return of_agent, of_etcd


def _all(directory: Path, form: str, ranks: int) -> bool:
    return all((directory / form.format(rank)).exists() for rank in range(ranks))
