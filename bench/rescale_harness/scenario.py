"""One run: start a system with a few nodes, fire the events one by one, watch the step logs, end everything."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rescale_harness.analysis import Fired, Recording, commits_at, event_result, lines_by_node, run_result
from rescale_harness.events import JOINER_DIES, MAX_NODES, Event, Scenario, labels
from rescale_harness.processes import Processes
from rescale_harness.results import EventResult, RunResult
from rescale_harness.steplog import ENV_LOGS, ENV_NODE, StepLogs
from rescale_harness.systems import Steered, System, base_environment

BASELINE_STEPS = 50
"""Steps before the first event. The undisturbed step is measured on them, checkpoints included."""
SETTLED_STEPS = 8
"""Steps of every member at the new size, after which an event counts as over."""
REST_STEPS = 12
"""Steps of every member after an event, before anything else is done: undisturbed ones at that size."""
WATCHED_SECONDS = 15.0
"""For which a job is watched after something that it should not notice: more than any lease lasts."""
POLL_SECONDS = 0.2
CLOSE_LOOK_SECONDS = 0.005
"""Between two looks at something that is to be interrupted in the middle."""
WARMING_SECONDS = 0.2
"""After the start of a joiner's script, when its rank has said hello and builds its model."""
IMPORTING_SECONDS = 0.3
"""After the start of a joiner's first child process: torch alone takes longer to import."""
FOREVER = float("inf")


class Watcher(Protocol):
    """Who hears how a run goes."""

    def waiting(self, what: str) -> None:
        """What is being waited for now."""

    def over(self, event: EventResult) -> None:
        """An event is over."""


class Run:
    """One run of one system. Use once, from the main thread."""

    def __init__(self, system: System, limit: float, watcher: Watcher, spare_pids: Collection[int] = ()) -> None:
        """``limit``: seconds that the start and each event may take; ``spare_pids``: our children that live on."""
        self._system = system
        self._limit = limit
        self._watcher = watcher
        self._spare_pids = spare_pids
        steps = system.directory / "steps"
        steps.mkdir()
        self._logs = StepLogs(steps)
        self._processes = Processes(system.directory, base_environment() | {ENV_LOGS: str(steps)})
        self._nodes: list[int] = []
        """That train, or should."""
        self._silent: dict[int, list[int]] = {}
        """Nodes that were stopped, with their pids."""
        self._next_node = 0
        self._wanted = MAX_NODES
        self._fired: list[Fired] = []

    def run(self, name: str, scenario: Scenario) -> RunResult:
        """The figures. Events after one from which the job did not recover are not fired. Ends all processes."""
        with self._system:
            try:
                began = time.monotonic()
                first = tuple(self._start_node() for _ in range(scenario.nodes))
                if self._await(f"the first steps of {scenario.nodes} nodes", lambda: self._trained(first)):
                    self._fire_all(scenario.events)
                account = self._system.own_account()
            finally:
                self._processes.end(spare=(*self._system.service_pids, *self._spare_pids))
                remove_checkpoints(self._system.directory)
        lines = self._logs.poll()
        samples = self._system.samples(lines) if any(x.kind == "commit" for x in lines) else None
        return run_result(Recording(began, first, tuple(self._fired), lines, name), samples, account)

    # ---- events ----------------------------------------------------------------------------------------------------
    def _fire_all(self, events: Sequence[Event]) -> None:
        for event, label in zip(events, labels(events), strict=True):
            fired = self._fire(event, label)
            if fired.recovered:
                fired = self._and_after(fired, watched=event is Event.ETCD or event in JOINER_DIES)
            fired = replace(fired, until=time.monotonic())
            self._fired.append(fired)
            self._watcher.over(event_result(fired, lines_by_node(self._logs.poll())))
            if not fired.recovered or not self._settle(fired, fired.until, REST_STEPS):
                return

    def _and_after(self, fired: Fired, watched: bool) -> Fired:
        """Wait until it is over, or the limit is reached."""
        since = fired.at
        if watched:
            since = time.monotonic() + WATCHED_SECONDS
            self._await(f"{fired.label}: trouble", lambda: time.monotonic() > since)
        return replace(fired, recovered=self._settle(fired, since, SETTLED_STEPS))

    def _fire(self, event: Event, label: str) -> Fired:
        """Do it. ``at`` is the moment just before; ``until`` is open."""
        before = tuple(self._nodes)
        match event:
            case Event.GROW | Event.GROW_MANY:
                self._want(MAX_NODES)
                at = time.monotonic()
                for _ in range(1 if event is Event.GROW else MAX_NODES - len(before)):
                    self._start_node()
                return Fired(label, at, FOREVER, before, tuple(self._nodes), len(before))
            case Event.GROW_SPARE | Event.KILL_SPARE:
                return self._fire_with_spare(event, label)
            case Event.DIES_IMPORTING | Event.DIES_WARMING | Event.DIES_CONNECTING:
                return self._fire_at_joiner(event, label)
            case Event.ETCD:
                at = time.monotonic()
                self._steered.restart_coordinator()
                return Fired(label, at, FOREVER, before, before, len(before))
            case Event.WAKE:
                node, pids = self._silent.popitem()
                self._nodes.append(node)
                at = self._processes.send(pids, signal.SIGCONT)
                return Fired(label, at, FOREVER, before, tuple(self._nodes), len(before))
            case _:
                return self._fire_at(event, label, victim=before[0] if event is Event.KILL_FIRST else before[-1])

    def _fire_at(self, event: Event, label: str, victim: int) -> Fired:
        """Do it to ``victim``."""
        before = tuple(self._nodes)
        survivors = tuple(n for n in before if n != victim)
        if event is Event.KILL_RANK:
            at = self._processes.kill([self._rank_pid(victim)])
            return Fired(label, at, FOREVER, survivors, before, len(before), restarted=victim)
        self._nodes.remove(victim)
        name = _name(victim)
        if event is Event.TERM:
            at = self._processes.terminate(name)
        elif event is Event.SILENT:
            self._silent[victim] = self._processes.tree(name)
            at = self._processes.send(self._silent[victim], signal.SIGSTOP)
        else:
            at = self._processes.kill(self._processes.tree(name))
        return Fired(label, at, FOREVER, survivors, survivors, len(before))

    def _fire_with_spare(self, event: Event, label: str) -> Fired:
        """Let one more node stand by; then have it take a new place, or that of the youngest one that trains."""
        begun, before = time.monotonic(), tuple(self._nodes)
        self._want(len(before))
        spare = self._start_node()
        warm = self._await(f"{label}: a node that stands by", lambda: self._steered.stands_by(spare))
        # Its start has cost the others processor time: let that be over.
        rest = Fired(label, time.monotonic(), FOREVER, before, before, len(before))
        ready = warm and self._settle(rest, rest.at, REST_STEPS)
        if event is Event.GROW_SPARE:
            at, survivors = time.monotonic(), before
            self._want(len(before) + 1)
        else:
            victim, survivors = before[-1], before[:-1]
            self._nodes.remove(victim)
            at = self._processes.kill(self._processes.tree(_name(victim)))
        return Fired(label, at, FOREVER, survivors, tuple(self._nodes), len(before), recovered=ready, begun=begun)

    def _fire_at_joiner(self, event: Event, label: str) -> Fired:
        """Start a node and kill it in the middle of its preparations."""
        at, before = time.monotonic(), tuple(self._nodes)
        self._want(MAX_NODES)
        joiner = self._start_node()
        name = _name(joiner)
        if event is Event.DIES_IMPORTING:
            came = self._await(f"{name} to begin", lambda: len(self._processes.tree(name)) > 1, 5 * CLOSE_LOOK_SECONDS)
            time.sleep(IMPORTING_SECONDS)
        else:
            came = self._await(
                f"{name} to join", lambda: any(x.node == joiner for x in self._logs.poll()), 5 * CLOSE_LOOK_SECONDS
            )
            if event is Event.DIES_WARMING:
                time.sleep(WARMING_SECONDS)
            else:
                came = came and self._await(
                    f"{name} in a proposal", lambda: self._steered.proposed(joiner), CLOSE_LOOK_SECONDS
                )
        self._nodes.remove(joiner)
        self._processes.kill(self._processes.tree(name))
        return Fired(label, at, FOREVER, before, before, len(before), recovered=came)

    @property
    def _steered(self) -> Steered:
        assert isinstance(self._system, Steered), "events that need it are left out for other systems"
        return self._system

    def _want(self, nodes: int) -> None:
        if nodes != self._wanted:
            self._steered.want(nodes)
            self._wanted = nodes

    def _start_node(self) -> int:
        node, self._next_node = self._next_node, self._next_node + 1
        command, environment = self._system.node(node)
        self._processes.start(_name(node), command, environment | {ENV_NODE: str(node)})
        self._nodes.append(node)
        return node

    def _rank_pid(self, node: int) -> int:
        return [x.pid for x in self._logs.poll() if x.node == node][-1]

    # ---- waiting ---------------------------------------------------------------------------------------------------
    def _await(self, what: str, condition: Callable[[], bool], every: float = POLL_SECONDS) -> bool:
        """False if ``condition`` did not hold within the limit, or a node that should run has ended."""
        self._watcher.waiting(what)
        end = time.monotonic() + self._limit
        while time.monotonic() < end and all(self._processes.runs(_name(n)) for n in self._nodes):
            if condition():
                return True
            time.sleep(every)
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


def _name(node: int) -> str:
    return f"node-{node}"


def remove_checkpoints(directory: Path) -> None:
    """They are large and nobody reads them any more; the logs stay."""
    for path in directory.glob("checkpoint*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
