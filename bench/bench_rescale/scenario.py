"""One run: start a system with a few nodes, fire the events one by one, watch the step logs, end everything."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from bench_harness.agents import MAX_NODES, Agents, base_environment, worker
from bench_harness.processes import Processes
from bench_rescale.analysis import Fired, Recording, commits_at, event_result, lines_by_node, run_result
from bench_rescale.events import MANY_NODES, Event, Scenario, labels
from bench_rescale.growth import footprint
from bench_rescale.results import EventResult, Footprint, RunResult
from bench_rescale.steplog import ENV_LOGS, ENV_NODE, StepLogs
from bench_rescale.systems import Elastrain, System

BASELINE_STEPS = 50
"""Steps before the first event; the undisturbed step is measured on them, checkpoints included."""
SETTLED_STEPS = 8
"""Steps of every member at the new size, after which an event counts as over."""
REST_STEPS = 12
"""Steps of every member between two events: undisturbed ones at that size."""
CYCLE_STEPS = 2
"""Steps of every member between two events of a cycle."""
FOOTPRINTS = 10
"""Number of footprints of each rank during the cycles, besides the first."""
WATCHED_SECONDS = 15.0
"""Observation time after an outage of etcd: longer than any lease."""
POLL_SECONDS = 0.2
FOREVER = float("inf")


class Watcher(Protocol):
    """Hears of the progress of a run."""

    def waiting(self, what: str) -> None:
        """The run waits for ``what``."""

    def says(self, words: str) -> None:
        """Something is over."""


class Run:
    """One run of one system. Use once, from the main thread."""

    def __init__(
        self, system: System, limit: float, watcher: Watcher, cycles: int = 1, spare_pids: Collection[int] = ()
    ) -> None:
        """``limit``: seconds that the start and each event may take; ``spare_pids``: children of this process that
        live on."""
        self._system = system
        self._limit = limit
        self._watcher = watcher
        self._cycles = cycles
        self._spare_pids = spare_pids
        steps = system.directory / "steps"
        steps.mkdir()
        self._logs = StepLogs(steps)
        self._processes = Processes(system.directory, base_environment() | {ENV_LOGS: str(steps)})
        self._nodes: list[int] = []
        """That train, or should."""
        self._silent: dict[int, list[int]] = {}
        """Stopped nodes with their pids."""
        self._next_node = 0
        self._wanted = MAX_NODES
        self._fired: list[Fired] = []
        self._footprints: dict[str, list[Footprint]] = {}

    def run(self, name: str, scenario: Scenario) -> RunResult:
        """The figures. Events after one from which the job did not recover are not fired. Ends all processes."""
        with self._system:
            try:
                began = time.monotonic()
                first = tuple(self._start_node() for _ in range(scenario.nodes))
                if self._await(f"the first steps of {scenario.nodes} nodes", lambda: self._trained(first)):
                    self._fire_all(scenario.events)
                rescales = self._system.rescales()
            finally:
                self._processes.end(spare=(*self._system.service_pids, *self._spare_pids))
                remove_checkpoints(self._system.directory)
        lines = self._logs.poll()
        samples = self._system.samples(lines) if any(x.kind == "commit" for x in lines) else None
        result = run_result(Recording(began, first, tuple(self._fired), lines, name), samples, rescales)
        return result.model_copy(update={"footprints": {k: tuple(v) for k, v in self._footprints.items()}})

    # ---- events ----------------------------------------------------------------------------------------------------
    def _fire_all(self, events: Sequence[Event]) -> None:
        for event, label in zip(events, labels(events), strict=True):
            fired = self._fire(event, label)
            if fired.recovered:
                since = fired.at
                if event is Event.ETCD:
                    since = time.monotonic() + WATCHED_SECONDS
                    self._await(f"{label}: trouble", lambda since=since: time.monotonic() > since)  # type: ignore[misc]
                fired = replace(fired, recovered=self._settle(fired, since, SETTLED_STEPS))
            fired = replace(fired, until=time.monotonic())
            self._fired.append(fired)
            self._watcher.says(in_words(event_result(fired, lines_by_node(self._logs.poll()))))
            if not fired.recovered or not self._settle(fired, fired.until, REST_STEPS):
                return

    def _fire(self, event: Event, label: str) -> Fired:
        """``at`` of the result is the moment just before the event; ``until`` is open."""
        before = tuple(self._nodes)
        match event:
            case Event.GROW | Event.GROW_MANY:
                self._want(MAX_NODES)
                at = time.monotonic()
                for _ in range(1 if event is Event.GROW else MANY_NODES - len(before)):
                    self._start_node()
                return Fired(label, at, FOREVER, before, tuple(self._nodes), len(before))
            case Event.GROW_SPARE | Event.JOIN_ONE | Event.KILL_SPARE:
                return self._fire_with_spare(event, label)
            case Event.CYCLES:
                return self._fire_cycles(label)
            case Event.TRAIN:
                return self._fire_train(label)
            case Event.ETCD:
                at = time.monotonic()
                self._agents.restart_etcd(self._system.settings.etcd_away)
                return Fired(label, at, FOREVER, before, before, len(before))
            case Event.WAKE:
                node, pids = self._silent.popitem()
                self._nodes.append(node)
                at = self._processes.send(pids, signal.SIGCONT)
                return Fired(label, at, FOREVER, before, tuple(self._nodes), len(before))
            case _:
                return self._fire_at(event, label, victim=before[0] if event is Event.KILL_FIRST else before[-1])

    def _fire_at(self, event: Event, label: str, victim: int) -> Fired:
        before = tuple(self._nodes)
        survivors = tuple(n for n in before if n != victim)
        if event is Event.KILL_RANK:
            at = self._processes.kill([self._rank_pid(victim)])
            return Fired(label, at, FOREVER, survivors, before, len(before), restarted=victim)
        self._nodes.remove(victim)
        name = worker(victim)
        if event is Event.TERM:
            at = self._processes.terminate(name)
        elif event is Event.SILENT:
            self._silent[victim] = self._processes.tree(name)
            at = self._processes.send(self._silent[victim], signal.SIGSTOP)
        else:
            at = self._kill_node(victim)
        return Fired(label, at, FOREVER, survivors, survivors, len(before))

    def _fire_with_spare(self, event: Event, label: str) -> Fired:
        """Let one more node stand by; then it takes a new place, or that of the youngest node that trains."""
        begun, before = time.monotonic(), tuple(self._nodes)
        self._want(len(before))
        spare = self._start_node()
        warm = self._await(f"{label}: a node that stands by", lambda: self._agents.stands_by(spare))
        # Its start has taken processor time from the others: wait until that is over.
        rest = Fired(label, time.monotonic(), FOREVER, before, before, len(before))
        ready = warm and self._settle(rest, rest.at, REST_STEPS)
        if event is not Event.KILL_SPARE:
            at, survivors = time.monotonic(), before
            self._want(len(before) + 1)
        else:
            victim, survivors = before[-1], before[:-1]
            self._nodes.remove(victim)
            at = self._kill_node(victim)
        return Fired(label, at, FOREVER, survivors, tuple(self._nodes), len(before), recovered=ready, begun=begun)

    def _fire_train(self, label: str) -> Fired:
        """Nothing is done. The job recovers if all nodes train on to the end."""
        at, before, carried = time.monotonic(), tuple(self._nodes), self._agents.carried()
        seconds = 60 * self._system.settings.train_minutes
        recovered = self._await(f"{label}: the time to be over", lambda: time.monotonic() > at + seconds, 2 * seconds)
        sent = None if carried is None else (self._agents.carried() or 0) - carried
        return Fired(label, at, FOREVER, before, before, len(before), recovered=recovered, carried=sent)

    def _fire_cycles(self, label: str) -> Fired:
        """A node falls silent in the middle of training and wakes, again and again; the processes live."""
        at, before = time.monotonic(), tuple(self._nodes)
        every = max(1, self._cycles // FOOTPRINTS)
        recovered = True
        for cycle in range(self._cycles + 1):
            if cycle % every == 0:
                for node in before:
                    self._footprints.setdefault(worker(node), []).append(footprint(self._rank_pid(node)))
            if cycle == self._cycles or not recovered:
                break
            for event in (Event.SILENT, Event.WAKE):
                fired = self._fire(event, f"{label}: {cycle + 1} of {self._cycles}, {event}")
                recovered = recovered and self._settle(fired, fired.at, CYCLE_STEPS)
        return Fired(label, at, FOREVER, before[:-1], before, len(before), resized=False, recovered=recovered)

    def _kill_node(self, node: int) -> float:
        at = self._processes.kill_tree(worker(node))
        self._system.ended(node)
        return at

    @property
    def _agents(self) -> Agents:
        assert isinstance(self._system, Elastrain), "events that need agents are left out for other systems"
        return self._system.agents

    def _want(self, nodes: int) -> None:
        if nodes != self._wanted:
            self._agents.want(nodes)
            self._wanted = nodes

    def _start_node(self) -> int:
        node, self._next_node = self._next_node, self._next_node + 1
        command, environment = self._system.node(node)
        self._processes.start(worker(node), command, environment | {ENV_NODE: str(node)})
        self._nodes.append(node)
        return node

    def _rank_pid(self, node: int) -> int:
        return [x.pid for x in self._logs.poll() if x.node == node][-1]

    # ---- waiting ---------------------------------------------------------------------------------------------------
    def _await(self, what: str, condition: Callable[[], bool], limit: float | None = None) -> bool:
        """False if ``condition`` did not hold within the limit, or a node that should run has ended."""
        self._watcher.waiting(what)
        end = time.monotonic() + (limit or self._limit)
        while time.monotonic() < end and all(self._processes.runs(worker(n)) for n in self._nodes):
            if condition():
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _trained(self, nodes: Sequence[int]) -> bool:
        lines = lines_by_node(self._logs.poll())
        commits = ([x for x in lines.get(n, []) if x.kind == "commit" and x.world == len(nodes)] for n in nodes)
        return all(len(of_node) >= BASELINE_STEPS for of_node in commits)

    def _settle(self, fired: Fired, since: float, steps: int) -> bool:
        """Wait until every member has done so many ``steps`` at the new size after ``since``."""

        def settled() -> bool:
            lines = lines_by_node(self._logs.poll())
            done = ([x for x in commits_at(fired.to_size, n, fired, lines) if x.at > since] for n in fired.members)
            return all(len(of_node) >= steps for of_node in done)

        return self._await(f"{fired.label}: {steps} steps at {fired.to_size} nodes", settled)


def in_words(event: EventResult) -> str:
    """One line of progress."""
    failed = "" if event.recovered else "NOT RECOVERED; "
    sized = "" if event.time_to_size is None else f", time to size {event.time_to_size:.2f} s"
    replaced = ", survivors' pids changed" if event.pids_changed else ""
    return (
        f"  {event.label} {event.from_size}→{event.to_size}: {failed}stall {event.stall:.2f} s{sized}, "
        f"{event.redone} redone, {event.discarded} discarded{replaced}"
    )


def remove_checkpoints(directory: Path) -> None:
    """Checkpoints are large; the logs stay."""
    for path in directory.glob("checkpoint*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
