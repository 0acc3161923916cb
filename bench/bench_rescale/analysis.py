"""From one run's step logs to its figures. Pure: all definitions but those about samples (``history``) are here."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench_harness.stats import percentile
from bench_rescale.events import DEFAULT
from bench_rescale.history import rolled_back
from bench_rescale.results import EventResult, Phases, RunResult, Samples, Undisturbed
from bench_rescale.steplog import Line

WARM_UP_STEPS = 3
"""Steps after the start that do not count as undisturbed."""
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Fired:
    """An event that was fired, as plain facts. Nodes are numbers, times are those of the step logs."""

    label: str
    at: float
    until: float
    """When the next thing was done."""
    survivors: tuple[int, ...]
    """Nodes that were not touched."""
    members: tuple[int, ...]
    """Nodes that should train together in the end, one rank each."""
    from_size: int
    resized: bool = True
    """Whether there is one time to size to measure."""
    restarted: int | None = None
    """The member whose rank was killed."""
    recovered: bool = True
    carried: int | None = None
    """Bytes that all nodes sent meanwhile; None: not counted."""
    begun: float | None = None
    """Start of its preparation, such as the start of a node that stands by, if that was before ``at``."""

    @property
    def to_size(self) -> int:
        return len(self.members)

    @property
    def changes_nothing(self) -> bool:
        """Training should continue at the same size in the same processes: there is no time to size to measure."""
        return self.restarted is None and self.members == self.survivors and self.to_size == self.from_size


@dataclass(frozen=True, slots=True)
class Recording:
    """One run as it was observed."""

    began: float
    """When the first nodes were started."""
    nodes: tuple[int, ...]
    """The first nodes."""
    fired: tuple[Fired, ...]
    lines: Sequence[Line]
    scenario: str = DEFAULT


def run_result(
    recording: Recording, samples: Samples | None, own_rescales: Sequence[Mapping[str, object]] = ()
) -> RunResult:
    """The figures of one run. ``own_rescales``: elastrain's records (``elastrain.api.records.Rescale``)."""
    by_node = lines_by_node(recording.lines)
    return RunResult(
        scenario=recording.scenario,
        nodes=len(recording.nodes),
        start=start_seconds(recording, by_node),
        undisturbed=undisturbed(quiet_windows(recording, by_node), by_node),
        events=tuple(event_result(fired, by_node, own_rescales) for fired in recording.fired),
        samples=samples,
        rolled_back=rolled_back(recording.lines),
    )


def lines_by_node(lines: Iterable[Line]) -> dict[int, list[Line]]:
    """In order of time."""
    by_node: dict[int, list[Line]] = defaultdict(list)
    for line in lines:
        by_node[line.node].append(line)
    for of_node in by_node.values():
        of_node.sort(key=lambda line: line.at)
    return by_node


# ---- one event -----------------------------------------------------------------------------------------------------
def event_result(
    fired: Fired, by_node: dict[int, list[Line]], own_rescales: Sequence[Mapping[str, object]] = ()
) -> EventResult:
    """The cost of ``fired``. ``own_rescales``: elastrain's records of the run."""
    survivors = [by_node.get(node, []) for node in fired.survivors]
    all_lines = [line for lines in by_node.values() for line in lines]
    return EventResult(
        label=fired.label,
        from_size=fired.from_size,
        to_size=fired.to_size,
        recovered=fired.recovered,
        stall=max((stall(lines, fired) for lines in survivors), default=0.0),
        time_to_size=time_to_size(fired, by_node)
        if fired.recovered and fired.resized and not fired.changes_nothing
        else None,
        redone=redone(all_lines, fired),
        discarded=max((discarded(lines, fired) for lines in survivors), default=0),
        pids_changed=any(pids_changed(lines, fired) for lines in survivors),
        rescales=rescales_within(fired, survivors, own_rescales),
        steps=max((len(commits_at(fired.to_size, n, fired, by_node)) for n in fired.members), default=0),
        seconds=fired.until - fired.at,
        carried=fired.carried,
    )


def commits_at(size: int, node: int, fired: Fired, by_node: dict[int, list[Line]]) -> list[Line]:
    """Steps that ``node`` committed after the event in a world of ``size`` as it should be after the event.

    Where a rank was killed and comes back, the size alone does not tell the world before from the one after: there
    steps count from the start of its new process on.
    """
    since = fired.at
    if fired.restarted is not None:
        starts = [x.at for x in by_node.get(fired.restarted, []) if x.kind == "start" and x.at > fired.at]
        since = starts[0] if starts else float("inf")
    return [x for x in by_node.get(node, []) if x.kind == "commit" and x.world == size and since < x.at]


def time_to_size(fired: Fired, by_node: dict[int, list[Line]]) -> float | None:
    """From the event to the first step at the new size on every member; None if some member did not get there."""
    firsts = [commits_at(fired.to_size, node, fired, by_node)[:1] for node in fired.members]
    if not all(firsts):
        return None
    return max(first[0].at for first in firsts) - fired.at


def stall(lines: Sequence[Line], fired: Fired) -> float:
    """The longest time between two steps that a survivor committed, from its last one before the event on.

    ``lines``: of that node. If the job did not recover, the time since the last step counts too.
    """
    commits = [x.at for x in lines if x.kind == "commit"]
    window = [t for t in commits if t <= fired.at][-1:] + [t for t in commits if fired.at < t <= fired.until]
    if not fired.recovered:
        window.append(fired.until)
    return max((b - a for a, b in pairwise(window)), default=0.0)


def redone(lines: Iterable[Line], fired: Fired) -> int:
    """Committed steps that the job was rolled back by. ``lines``: of all nodes.

    No rank begins a step before all have committed the one before it. So the steps of an undisturbed history never
    fall, in order of time over all nodes, and no node commits one twice. But a process that was stopped between the
    collective of a step and its commit commits that step, the next of its own, when it goes on, however far the others
    are by then: that is late, not back.
    """
    count, newest = 0, 0
    nodes: set[int] = set()  # that have committed the newest step
    own: dict[int, int] = {}  # newest step by process
    done: set[tuple[int, int]] = set()  # steps, with the size of the world that committed them
    for x in sorted((x for x in lines if x.kind == "commit" and x.at <= fired.until), key=lambda x: x.at):
        late = x.step < newest and own.get(x.pid) == x.step - 1 and (x.step, x.world) in done
        own[x.pid] = x.step
        done.add((x.step, x.world))
        if late:
            continue
        back = x.step < newest or (x.step == newest and x.node in nodes)
        if back and x.at > fired.at:
            count += newest - x.step + 1
        if back or x.step > newest:
            nodes = set()
        newest = x.step
        nodes.add(x.node)
    return count


def discarded(lines: Sequence[Line], fired: Fired) -> int:
    """Steps that a survivor began, and that were thrown away between the event and its end. ``lines``: of that node.

    A step that was begun but not committed is none if the same process goes on with a later one: then a peer had
    committed it, and the work is in.
    """
    count = 0
    for begun, then in pairwise(lines):
        if begun.kind != "begin" or then.kind == "commit" or not fired.at < then.at <= fired.until:
            continue
        committed_by_peer = then.kind == "begin" and then.pid == begun.pid and then.step > begun.step
        count += not committed_by_peer
    return count


def pids_changed(lines: Sequence[Line], fired: Fired) -> bool:
    """Whether another process trained on a survivor's node after the event. ``lines``: of that node."""
    before = {x.pid for x in lines if x.at <= fired.at and x.kind == "commit"}
    return any(x.pid not in before for x in lines if fired.at < x.at <= fired.until)


def rescales_within(
    fired: Fired, survivors: Iterable[Sequence[Line]], own: Sequence[Mapping[str, object]]
) -> tuple[Phases, ...]:
    """Those of the system's records that belong to the event: by the step of the switch."""
    commits = [x for lines in survivors for x in lines if x.kind == "commit" and x.at <= fired.until]
    first = max((x.step for x in commits if x.at <= fired.at), default=0)
    last = max((x.step for x in commits), default=0)
    return tuple(
        Phases(
            name=f"{r['reason']} {r['from_size']}→{r['to_size']}",
            pause=r["pause_seconds"],
            seconds=r["phases"],
        )
        for r in own
        if first <= int(str(r["step"])) < last and r["from_size"]
    )


# ---- one run -------------------------------------------------------------------------------------------------------
def start_seconds(recording: Recording, by_node: dict[int, list[Line]]) -> float | None:
    """From the start of the first nodes to the first step of all of them together."""
    size = len(recording.nodes)
    firsts = [[x.at for x in by_node.get(n, []) if x.kind == "commit" and x.world == size][:1] for n in recording.nodes]
    return max(f[0] for f in firsts) - recording.began if all(firsts) else None


def quiet_windows(recording: Recording, by_node: Mapping[int, Sequence[Line]]) -> list[Window]:
    """Times without an event: from the first steps of all first nodes to the first event, and from the end of an event
    from which the job recovered to the next action."""
    size, node = len(recording.nodes), recording.nodes[0]
    commits = [x.at for x in by_node.get(node, []) if x.kind == "commit" and x.world == size]
    if len(commits) <= WARM_UP_STEPS:
        return []
    starts = [commits[WARM_UP_STEPS], *(f.until for f in recording.fired)]
    ends = [*(f.at if f.begun is None else f.begun for f in recording.fired), max(x.at for x in recording.lines)]
    calm = [True, *(f.recovered for f in recording.fired)]
    return [(start, end) for start, end, is_calm in zip(starts, ends, calm, strict=True) if is_calm]


def undisturbed(windows: Iterable[Window], by_node: Mapping[int, Sequence[Line]]) -> tuple[Undisturbed, ...]:
    """Steps within ``windows`` by world size, smallest first. In each window the first node that committed a step
    counts: in a healthy world all nodes see the same step time."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for start, end in windows:
        for lines in (by_node[node] for node in sorted(by_node)):
            commits = [x for x in lines if x.kind == "commit" and start <= x.at <= end]
            for a, b in pairwise(commits):
                if a.world == b.world:
                    seconds[b.world].append(b.at - a.at)
            if commits:
                break
    return tuple(
        Undisturbed(size=size, steps=len(of), median=statistics.median(of), p95=percentile(of, 0.95), longest=max(of))
        for size, of in sorted(seconds.items())
    )
