"""Plays a trace to one system. Thin: starts, stops and ends processes by their pids, and keeps what it did."""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench_ettr.account import JOIN, Account, Mark, account
from bench_ettr.results import Fired, Rescaled, RunResult
from bench_ettr.systems import committed
from bench_ettr.trace import Failure, Kind
from bench_harness.agents import base_environment, worker
from bench_harness.processes import Processes
from bench_harness.program import Failed
from bench_rescale.scenario import Watcher, remove_checkpoints
from bench_rescale.steplog import ENV_LOGS, ENV_NODE, StepLogs
from bench_rescale.systems import Elastrain, System

WARM_STEPS = 20
"""Of the full size, before the measured time begins."""
TICK_SECONDS = 0.05
LOOK_SECONDS = 1.0
"""Between two looks at the logs."""
SLOW_SECONDS = 0.3
"""A slow rank is stopped for so long, and runs for so long."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds."""

    repair: float
    """Until a lost node is replaced, a frozen one wakes, a slow one is fast again."""
    start: float
    """For the first full-size steps."""
    hang: float
    """Without a step, after which all nodes are started again."""


class Drive:
    """One run of one system. Use once, from the main thread."""

    def __init__(self, system: System, ranks: int, spares: int, limits: Limits, watcher: Watcher) -> None:
        """``spares``: warm nodes beyond those that train, where the system has such."""
        self._system, self._ranks, self._limits, self._watcher = system, ranks, limits, watcher
        self._nodes = ranks + (spares if isinstance(system, Elastrain) else 0)
        steps = system.directory / "steps"
        steps.mkdir()
        self._logs = StepLogs(steps)
        self._processes = Processes(system.directory, base_environment() | {ENV_LOGS: str(steps)})
        self._numbers = itertools.count()
        self._training: list[int] = []
        """Nodes that were started and not taken away."""
        self._frozen: dict[int, list[int]] = {}
        self._slow: dict[int, float] = {}
        """Since when; stopped or not follows from the time."""
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._fired: list[Fired] = []
        self._rescales: dict[object, Rescaled] = {}
        """By the number of the generation."""
        self._began = self._last_step_at = self._away = 0.0
        self._highest = self._ended = self._hangs = 0

    def run(self, name: str, trace: tuple[Failure, ...], minutes: float) -> RunResult:
        """The figures. Ends all processes. Raises :class:`Failed` if the job does not start."""
        with self._system:
            try:
                started = time.monotonic()
                if isinstance(self._system, Elastrain):
                    self._system.agents.want(self._ranks)
                for _ in range(self._nodes):
                    self._start_node()
                self._await_start(started)
                self._began = self._last_step_at = time.monotonic()
                load = os.getloadavg()[0]
                self._play(trace, self._began + 60 * minutes)
                end = time.monotonic()
            finally:
                for pids in self._frozen.values():
                    self._processes.send(pids, signal.SIGCONT)
                self._processes.end(spare=self._system.service_pids)
                remove_checkpoints(self._system.directory)
        lines = self._logs.poll()
        found = self._account(committed(self._system, lines, self._ranks), end)
        return RunResult(
            system=name, about=self._system.about, start=self._began - started, load=round(load, 2), wall=found.wall,
            ettr=found.productive / found.wall, lost=found.lost, step=found.step, longest=found.longest,
            rolled_back=found.rolled_back, ended=self._ended, hangs=self._hangs, away=self._away,
            missing=found.missing, of_paid=found.productive * self._ranks / (found.wall * self._nodes - self._away),
            samples=self._system.samples(lines), fired=tuple(self._fired), rescales=tuple(self._rescales.values()),
        )  # fmt: skip

    def _account(self, steps: list[Mark], end: float) -> Account:
        blamed = [(self._began + fired.at, fired.kind) for fired in self._fired if fired.kind != "skipped"]
        return account(steps, blamed, (self._began, end), self._ranks)

    def _await_start(self, started: float) -> None:
        self._watcher.waiting(f"{WARM_STEPS} steps of {self._ranks} ranks")
        while True:
            full = [x for x in self._logs.poll() if x.kind == "commit" and x.world == self._ranks]
            if sum(x.rank == full[0].rank for x in full) >= WARM_STEPS:
                return
            if time.monotonic() > started + self._limits.start:
                raise Failed(f"no {WARM_STEPS} steps of {self._ranks} ranks within {self._limits.start:g} s; logs: "
                             f"{self._system.directory}")  # fmt: skip
            time.sleep(LOOK_SECONDS / 4)

    # ---- the measured time -----------------------------------------------------------------------------------------
    def _play(self, trace: tuple[Failure, ...], end: float) -> None:
        for failure in trace:
            self._at(self._began + failure.at, lambda failure=failure: self._fail(failure))  # type: ignore[misc]
        looked = before = time.monotonic()
        while (now := time.monotonic()) < end:
            self._away += (now - before) * max(0, self._nodes - len(self._training))
            before = now
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self._pulse(now)
            if now > looked + LOOK_SECONDS:
                looked = now
                self._look(now, end)
            time.sleep(TICK_SECONDS)

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def _look(self, now: float, end: float) -> None:
        """What the run has done, and who has ended by itself."""
        self._watcher.waiting(f"the end in {end - now:.0f} s; {len(self._fired)} events, step {self._highest}")
        lines = self._logs.poll()
        newest = [x for x in lines[-400:] if x.kind == "commit"]
        self._last_step_at = max([self._last_step_at, *(x.at for x in newest)])
        self._highest = max([self._highest, *(x.step for x in newest)])
        for record in self._system.rescales():
            found = Rescaled(
                reason=str(record["reason"]),
                from_size=record["from_size"],
                to_size=record["to_size"],
                pause=record["pause_seconds"],
                phases=record["phases"],
            )
            self._rescales.setdefault(record["generation"], found)
        for node in [n for n in self._training if not self._processes.runs(worker(n))]:
            self._ended += 1
            self._lose(node)
            self._start_node("ended by itself")
        if now - self._last_step_at > self._limits.hang:
            self._restart(now)

    def _restart(self, now: float) -> None:
        """As a supervisor does with a job that hangs."""
        self._hangs += 1
        self._watcher.says(f"no step for {self._limits.hang:g} s: all nodes are started again")
        self._last_step_at = now
        for node in list(self._training):
            self._lose(node)
            self._kill(node)
        for _ in range(self._nodes):
            self._start_node("hang")

    # ---- what happens to nodes -------------------------------------------------------------------------------------
    def _fail(self, failure: Failure) -> None:
        able = sorted(set(self._training) - self._frozen.keys() - self._slow.keys())
        if len(able) < 2:  # a failure leaves one node that trains
            self._note(failure.cause, "skipped", -1)
            return
        node = able[int(failure.place * len(able))]
        self._note(failure.cause, failure.kind, node)
        again = time.monotonic() + self._limits.repair
        match failure.kind:
            case Kind.RANK:
                self._processes.kill(self._rank(node))
            case Kind.SLOW:
                self._slow[node] = time.monotonic()
                self._at(again, lambda: self._fast(node))
            case Kind.FROZEN:
                self._frozen[node] = self._processes.tree(worker(node))
                self._processes.send(self._frozen[node], signal.SIGSTOP)
                self._at(again, lambda: self._wake(node))
            case Kind.RECLAIMED:
                self._lose(node)
                self._processes.terminate(worker(node))
                self._at(again, lambda: self._start_node(failure.cause))
            case Kind.NODE:
                self._lose(node)
                self._kill(node)
                self._at(again, lambda: self._start_node(failure.cause))

    def _kill(self, node: int) -> None:
        self._processes.kill_tree(worker(node))
        self._system.ended(node)

    def _lose(self, node: int) -> None:
        self._training.remove(node)
        self._slow.pop(node, None)
        self._frozen.pop(node, None)

    def _wake(self, node: int) -> None:
        if pids := self._frozen.pop(node, None):
            self._note("wakes", JOIN, node)
            self._processes.send(pids, signal.SIGCONT)

    def _fast(self, node: int) -> None:
        if self._slow.pop(node, None) is not None:
            self._processes.send(self._rank(node), signal.SIGCONT)

    def _pulse(self, now: float) -> None:
        """Stop and continue the slow ranks in turns."""
        for node, since in self._slow.items():
            stopped = int((now - since) / SLOW_SECONDS) % 2 == 0
            self._processes.send(self._rank(node), signal.SIGSTOP if stopped else signal.SIGCONT)

    def _start_node(self, why: str = "") -> None:
        node = next(self._numbers)
        if why:
            self._note(why, JOIN, node)
        command, environment = self._system.node(node)
        self._processes.start(worker(node), command, environment | {ENV_NODE: str(node)})
        self._training.append(node)

    def _rank(self, node: int) -> list[int]:
        """Its rank, if it has written and still belongs to the node."""
        tree = set(self._processes.tree(worker(node)))
        return [x.pid for x in self._logs.lines if x.node == node and x.pid in tree][-1:]

    def _note(self, cause: str, kind: str, node: int) -> None:
        self._fired.append(Fired(at=time.monotonic() - self._began, cause=cause, kind=kind, node=node))
