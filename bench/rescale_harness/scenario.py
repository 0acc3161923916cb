"""One run: start a system with two nodes, fire the events one by one, watch the step logs, end everything."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from rescale_harness.analysis import Fired, Recording, commits_at, event_result, lines_by_node, run_result
from rescale_harness.processes import Processes
from rescale_harness.results import EventResult, RunResult
from rescale_harness.steplog import ENV_LOGS, ENV_NODE, StepLogs
from rescale_harness.systems import MAX_NODES, System, base_environment

START_NODES = 2
BASELINE_STEPS = 50
"""Steps before the first event. The undisturbed step is measured on them, checkpoints included."""
SETTLED_STEPS = 8
"""Steps of every member at the new size, after which an event counts as over."""
REST_SECONDS = 1.0
"""Between two events."""
POLL_SECONDS = 0.2


class Event(StrEnum):
    """What can happen to a job; the node that it happens to is the youngest one unless it says otherwise."""

    GROW = "grow"
    KILL_RANK = "kill-rank"
    TERM = "term"
    KILL_NODE = "kill-node"
    KILL_FIRST = "kill-first"


EVENTS = {
    Event.GROW: "one more node is started",
    Event.KILL_RANK: "kill -9 of the rank of the youngest node; its agent lives and starts another one",
    Event.TERM: "SIGTERM of the agent of the youngest node, as when its pod is deleted; nobody replaces it",
    Event.KILL_NODE: "kill -9 of agent and rank of the youngest node, as when its machine dies; nobody replaces it",
    Event.KILL_FIRST: "the same to the first node, which holds rank 0 (and torchrun's c10d store)",
}
DEFAULT_EVENTS = (Event.GROW, Event.KILL_RANK, Event.TERM, Event.GROW, Event.KILL_NODE)


def sizes(events: Sequence[Event], start: int = START_NODES) -> list[int]:
    """World size before each event and after the last. Raises ``ValueError`` if it leaves 1 to ``MAX_NODES``."""
    change = {Event.GROW: 1, Event.KILL_RANK: 0}
    path = [start]
    for event in events:
        size = path[-1] + change.get(event, -1)
        if not 1 <= size <= MAX_NODES:
            raise ValueError(f"{event} after {len(path) - 1} events: {size} nodes, must be 1 to {MAX_NODES}")
        path.append(size)
    return path


def labels(events: Sequence[Event]) -> list[str]:
    """A name for each, with ``#2`` for the second of its kind."""
    names = [events[: i + 1].count(e) for i, e in enumerate(events)]
    return [e.value if n == 1 else f"{e.value} #{n}" for e, n in zip(events, names, strict=True)]


class Watcher(Protocol):
    """Who hears how a run goes."""

    def waiting(self, what: str) -> None:
        """What is being waited for now."""

    def over(self, event: EventResult) -> None:
        """An event is over."""


class Run:
    """One run of one system. Use once, from the main thread."""

    def __init__(self, system: System, limit: float, watcher: Watcher) -> None:
        """``limit``: seconds that the start and each event may take."""
        self._system = system
        self._limit = limit
        self._watcher = watcher
        steps = system.directory / "steps"
        steps.mkdir()
        self._logs = StepLogs(steps)
        self._processes = Processes(system.directory, base_environment() | {ENV_LOGS: str(steps)})
        self._nodes: list[int] = []
        self._next_node = 0
        self._fired: list[Fired] = []

    def run(self, events: Sequence[Event]) -> RunResult:
        """The figures. Events after one from which the job did not recover are not fired. Ends all processes."""
        with self._system:
            try:
                began = time.monotonic()
                first = tuple(self._start_node() for _ in range(START_NODES))
                if self._await(f"the first steps of {START_NODES} nodes", lambda: self._trained(first)):
                    self._fire_all(events)
                account = self._system.own_account()
            finally:
                self._processes.end(spare=self._system.service_pids)
                remove_checkpoints(self._system.directory)
        lines = self._logs.poll()
        samples = self._system.samples(lines) if any(x.kind == "commit" for x in lines) else None
        return run_result(Recording(began, first, tuple(self._fired), lines), samples, account)

    # ---- events ----------------------------------------------------------------------------------------------------
    def _fire_all(self, events: Sequence[Event]) -> None:
        for event, label in zip(events, labels(events), strict=True):
            time.sleep(REST_SECONDS)
            fired = self._and_after(self._fire(event, label))
            self._fired.append(fired)
            self._watcher.over(event_result(fired, lines_by_node(self._logs.poll())))
            if not fired.recovered:
                return

    def _and_after(self, fired: Fired) -> Fired:
        what = f"{fired.label}: {SETTLED_STEPS} steps at {fired.to_size} nodes"
        recovered = self._await(what, lambda: self._settled(fired))
        return replace(fired, until=time.monotonic(), recovered=recovered)

    def _fire(self, event: Event, label: str) -> Fired:
        """Do it. ``at`` is the moment just before; ``until`` is open."""
        before = tuple(self._nodes)
        if event is Event.GROW:
            at = time.monotonic()
            self._start_node()
            return Fired(label, at, float("inf"), before, tuple(self._nodes), len(before))
        victim = before[0] if event is Event.KILL_FIRST else before[-1]
        survivors = tuple(n for n in before if n != victim)
        if event is Event.KILL_RANK:
            at = self._processes.kill([self._rank_pid(victim)])
            return Fired(label, at, float("inf"), survivors, before, len(before), restarted=victim)
        self._nodes.remove(victim)
        name = _name(victim)
        if event is Event.TERM:
            at = self._processes.terminate(name)
        else:
            at = self._processes.kill(self._processes.tree(name))
        return Fired(label, at, float("inf"), survivors, survivors, len(before))

    def _start_node(self) -> int:
        node, self._next_node = self._next_node, self._next_node + 1
        command, environment = self._system.node(node)
        self._processes.start(_name(node), command, environment | {ENV_NODE: str(node)})
        self._nodes.append(node)
        return node

    def _rank_pid(self, node: int) -> int:
        return [x.pid for x in self._logs.poll() if x.node == node][-1]

    # ---- waiting ---------------------------------------------------------------------------------------------------
    def _await(self, what: str, condition: Callable[[], bool]) -> bool:
        """False if ``condition`` did not hold within the limit, or a node that should run has ended."""
        self._watcher.waiting(what)
        end = time.monotonic() + self._limit
        while time.monotonic() < end and all(self._processes.runs(_name(n)) for n in self._nodes):
            if condition():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _trained(self, nodes: Sequence[int]) -> bool:
        lines = lines_by_node(self._logs.poll())
        commits = ([x for x in lines.get(n, []) if x.kind == "commit" and x.world == len(nodes)] for n in nodes)
        return all(len(of_node) >= BASELINE_STEPS for of_node in commits)

    def _settled(self, fired: Fired) -> bool:
        lines = lines_by_node(self._logs.poll())
        return all(len(commits_at(fired.to_size, n, fired, lines)) >= SETTLED_STEPS for n in fired.members)


def _name(node: int) -> str:
    return f"node-{node}"


def remove_checkpoints(directory: Path) -> None:
    """They are large and nobody reads them any more; the logs stay."""
    for path in directory.glob("checkpoint*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
