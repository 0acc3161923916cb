"""Runs one case: agents with a real etcd, ranks that train both variants, everything ended in the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from elastrain.api import names
from rescale_harness.events import MAX_NODES
from rescale_harness.processes import Processes
from rescale_harness.steplog import ENV_LOGS, ENV_NODE
from rescale_harness.systems import Elastrain, Settings, base_environment
from steady_harness.analysis import Comparison, compare
from steady_harness.case import ENV_CASE, ENV_DIRECTORY, Block, Case
from steady_harness.profile import Row, difference, read

KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_MMAP_THRESHOLD_": str(2**32)}
"""Has glibc keep what is freed, in both variants. Else it gives back, and fetches again, tens of megabytes within a
step, or not, by a few bytes' difference of what was allocated before: up to 14 ms, and chance decides whose."""
POLL_SECONDS = 0.5
START_SECONDS = 120.0


class Failed(RuntimeError):
    """A case could not be measured; the message says what happened and where the logs are."""


class Steady(Elastrain):
    """Without what plain DDP has not: durable checkpoints and the audit log."""

    program = "steady_harness.train"

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command, environment = super().node(number)
        for name in (names.ENV_CHECKPOINT, names.ENV_AUDIT_DIR):
            del environment[name]
        return command, environment | KEEPS_MEMORY


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one case."""

    comparison: Comparison
    profile: list[Row]
    """Empty if it was not asked for."""
    profiled_steps: int = 0


def drive(case: Case, directory: Path, limit: float) -> Outcome:
    """Measure ``case``, with logs in a new ``directory``; the blocks of a start within ``limit`` seconds. Raises
    :class:`Failed`."""
    starts, shares = [], []
    for number in range(case.starts):
        place = directory / f"start-{number}"
        profiled = case.model_copy(update={"profile": case.profile and number == 0})
        shares.append(_start(profiled, place, limit))
        files = [place / f"blocks-{rank}.jsonl" for rank in range(case.ranks)]
        starts.append([Block.model_validate_json(line) for file in files for line in file.read_text().splitlines()])
    agent, etcd = (statistics.mean(of_service) for of_service in zip(*shares, strict=True))
    comparison = compare(case, starts).model_copy(update={"agent_cpu": agent, "etcd_cpu": etcd})
    if not case.profile:
        return Outcome(comparison, [])
    first = directory / "start-0"
    steps = int((first / "profiled").read_text())
    ours, theirs = (read(first / f"{variant}.prof", steps) for variant in (case.subject, case.baseline))
    return Outcome(comparison, difference(ours, theirs), steps)


def _start(case: Case, directory: Path, limit: float) -> tuple[float, float]:
    """Start the processes, let them write their blocks into ``directory``, and end them. Returns the processor seconds
    that one agent, and etcd, took in a second meanwhile."""
    directory.mkdir(parents=True)
    environment = {
        **base_environment(),
        ENV_LOGS: str(directory),
        ENV_CASE: case.model_dump_json(),
        ENV_DIRECTORY: str(directory.resolve()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = Processes(directory, environment)
    nodes = [f"node-{n}" for n in range(case.ranks)]

    def wait(what: str, condition: Callable[[], bool], seconds: float, *, may_end: bool = False) -> None:
        end = time.monotonic() + seconds
        while not condition():
            gone = [n for n in nodes if not processes.runs(n) and not may_end]
            if time.monotonic() > end or (gone and not condition()):
                why = f"{', '.join(gone)} has ended" if gone else f"not within {seconds:g} s"
                raise Failed(f"{case.name}: waiting for {what}: {why}; see {directory}")
            time.sleep(POLL_SECONDS)

    with Steady(directory, Settings()) as system:
        try:
            if case.ranks != MAX_NODES:
                system.want(case.ranks)
            for number, name in enumerate(nodes):
                command, own = system.node(number)
                processes.start(name, command, own | {ENV_NODE: str(number)})
            wait("the first block", lambda: _all(directory, "began-{}", case.ranks), START_SECONDS)
            agent = psutil.Process(processes.tree(nodes[0])[0])
            services = [agent, *(psutil.Process(pid) for pid in system.service_pids)]
            began, before = time.monotonic(), [_cpu(p) for p in services]
            wait("the last block", lambda: _all(directory, "blocks-{}.jsonl", case.ranks), limit)
            seconds = time.monotonic() - began
            of_agent, of_etcd = ((_cpu(p) - b) / seconds for p, b in zip(services, before, strict=True))
            wait("the end", lambda: not any(processes.runs(n) for n in nodes), START_SECONDS, may_end=True)
        finally:
            processes.end(spare=system.service_pids)
    return of_agent, of_etcd


def _all(directory: Path, form: str, ranks: int) -> bool:
    return all((directory / form.format(rank)).exists() for rank in range(ranks))


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
