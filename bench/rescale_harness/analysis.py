"""From step logs to figures. Pure: definitions are here and nowhere else."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rescale_harness import undisturbed
from rescale_harness.events import DEFAULT, START_NODES
from rescale_harness.results import EventResult, EventSummary, Phases, RunResult, Samples, Spread, SystemResult
from rescale_harness.steplog import Line


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
    restarted: int | None = None
    """The member whose rank was killed."""
    recovered: bool = True
    begun: float | None = None
    """When something was first done for it, if that was before ``at``: a node to stand by was started, say."""

    @property
    def to_size(self) -> int:
        return len(self.members)

    @property
    def changes_nothing(self) -> bool:
        """Those who trained before should go on as if nothing had happened: there is no pause to measure."""
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


def run_result(recording: Recording, samples: Samples | None, own_account: dict[str, object]) -> RunResult:
    """The figures of one run."""
    by_node = lines_by_node(recording.lines)
    quiet = undisturbed.figures(undisturbed.quiet_steps(quiet_windows(recording, by_node), by_node))
    start = next((u for u in quiet if u.size == START_NODES), None)
    own = own_account.get("rescales", [])
    assert isinstance(own, list)
    return RunResult(
        scenario=recording.scenario,
        nodes=len(recording.nodes),
        start=start_seconds(recording, by_node),
        step=start.median if start else None,
        longest_step=start.longest if start else None,
        undisturbed=quiet,
        events=tuple(event_result(fired, by_node, own) for fired in recording.fired),
        samples=samples,
        rolled_back=rolled_back(recording.lines),
        own_account=own_account,
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
    """What ``fired`` cost. ``own_rescales``: the system's records (``elastrain.api.records.Rescale``) of the run."""
    survivors = [by_node.get(node, []) for node in fired.survivors]
    everybody = [line for lines in by_node.values() for line in lines]
    return EventResult(
        label=fired.label,
        from_size=fired.from_size,
        to_size=fired.to_size,
        recovered=fired.recovered,
        stall=max((stall(lines, fired) for lines in survivors), default=0.0),
        pause=pause(fired, by_node) if fired.recovered and not fired.changes_nothing else None,
        redone=redone(everybody, fired),
        discarded=max((discarded(lines, fired) for lines in survivors), default=0),
        pids_changed=any(pids_changed(lines, fired) for lines in survivors),
        changes=max((size_changes(lines, fired) for lines in survivors), default=0),
        rescales=rescales_within(fired, survivors, own_rescales),
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


def pause(fired: Fired, by_node: dict[int, list[Line]]) -> float | None:
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


def size_changes(lines: Sequence[Line], fired: Fired) -> int:
    """How often the world size changed for a survivor. ``lines``: of that node."""
    commits = [x for x in lines if x.kind == "commit" and x.at <= fired.until]
    before = [x for x in commits if x.at <= fired.at][-1:]
    return sum(a.world != b.world for a, b in pairwise(before + [x for x in commits if x.at > fired.at]))


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


def quiet_windows(recording: Recording, by_node: dict[int, list[Line]]) -> list[undisturbed.Window]:
    """When nothing happened: from the first steps of all first nodes to the first event, and between the end of an
    event that was recovered from and whatever was done next."""
    size, node = len(recording.nodes), recording.nodes[0]
    commits = [x.at for x in by_node.get(node, []) if x.kind == "commit" and x.world == size]
    if len(commits) <= undisturbed.WARM_UP_STEPS:
        return []
    starts = [commits[undisturbed.WARM_UP_STEPS], *(f.until for f in recording.fired)]
    ends = [*(f.at if f.begun is None else f.begun for f in recording.fired), max(x.at for x in recording.lines)]
    calm = [True, *(f.recovered for f in recording.fired)]
    return [(start, end) for start, end, is_calm in zip(starts, ends, calm, strict=True) if is_calm]


def lineage(lines: Iterable[Line]) -> dict[int, Line]:
    """The history that counts: step -> the line of rank 0 that committed it last. A rank 0 that commits a step again
    takes back that step and all later ones."""
    history: dict[int, Line] = {}
    zero = sorted((x for x in lines if x.kind == "commit" and x.rank == 0), key=lambda line: line.at)
    for line in zero:
        for step in [s for s in history if s >= line.step]:
            del history[step]
        history[line.step] = line
    return history


def rolled_back(lines: Iterable[Line]) -> float:
    """Part of rank 0's committed work that is not in the history that counts."""
    lines = list(lines)
    done = sum(x.world for x in lines if x.kind == "commit" and x.rank == 0)
    kept = sum(x.world for x in lineage(lines).values())
    return (done - kept) / done if done else 0.0


def lineage_samples(lines: Sequence[Line]) -> Samples:
    """What became of the samples of an endless stream that is consumed in order, rank by rank.

    A step is committed only after a collective of all its ranks. So rank 0's line proves that the parts of all are in,
    also those of ranks that were killed before they could write. Raises ``ValueError`` if nobody committed a step.
    """
    history = lineage(lines)
    if not history:
        raise ValueError("no step was committed")
    others: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in lines:
        if line.kind == "commit":
            others[line.step, line.world].append(line)
    consumed: Counter[int] = Counter()
    problems: list[str] = []
    for step, zero in sorted(history.items()):
        for rank in range(zero.world):
            first = zero.first + rank * zero.count
            logged = min(
                (x for x in others[step, zero.world] if x.rank == rank), key=lambda x: abs(x.at - zero.at), default=None
            )
            if logged is not None and logged.first != first:
                problems.append(f"step {step}: rank {rank} began at sample {logged.first}, not at {first}")
                first = logged.first
            consumed.update(range(first, first + zero.count))
    return Samples(
        committed=consumed.total(),
        lost=max(consumed) + 1 - len(consumed),
        repeated=consumed.total() - len(consumed),
        problems=tuple(problems[:20]),
    )


def sharded_samples(lines: Sequence[Line]) -> Samples:
    """The same of data that is cut into shards, each of which its node (``rank``) goes through from the start on.

    A shard's samples before the last one that was ever committed were all consumed by somebody: those that are in no
    committed step are lost. Raises ``ValueError`` if nobody committed a step.
    """
    consumed: dict[int, Counter[int]] = defaultdict(Counter)
    for line in lines:
        if line.kind == "commit":
            consumed[line.rank].update(range(line.first, line.first + line.count))
    if not consumed:
        raise ValueError("no step was committed")
    return Samples(
        committed=sum(of.total() for of in consumed.values()),
        lost=sum(max(of) + 1 - len(of) for of in consumed.values()),
        repeated=sum(of.total() - len(of) for of in consumed.values()),
    )


# ---- all runs ------------------------------------------------------------------------------------------------------
def system_result(about: str, runs: Sequence[RunResult]) -> SystemResult:
    """Min, median and max over ``runs``."""
    samples = [r.samples for r in runs if r.samples is not None]
    return SystemResult(
        about=about,
        runs=tuple(runs),
        start=Spread.of(r.start for r in runs if r.nodes == START_NODES),
        step=Spread.of(r.step for r in runs),
        longest_step=Spread.of(r.longest_step for r in runs),
        undisturbed=undisturbed.over_runs(runs),
        events=event_summaries(runs),
        samples_committed=sum(s.committed for s in samples),
        samples_lost=sum(s.lost for s in samples),
        samples_repeated=sum(s.repeated for s in samples),
        rolled_back=Spread.of(r.rolled_back for r in runs),
        problems=tuple(p for s in samples for p in s.problems),
    )


def event_summaries(runs: Sequence[RunResult]) -> tuple[EventSummary, ...]:
    """Per event, in the order of their first coming."""
    by_label: dict[str, list[EventResult]] = defaultdict(list)
    for run in runs:
        for event in run.events:
            by_label[event.label].append(event)
    return tuple(_event_summary(label, events) for label, events in by_label.items())


def _event_summary(label: str, events: Sequence[EventResult]) -> EventSummary:
    stalls, again, thrown = (
        Spread.of(figures)
        for figures in ([e.stall for e in events], [e.redone for e in events], [e.discarded for e in events])
    )
    assert stalls is not None and again is not None and thrown is not None
    return EventSummary(
        label=label,
        from_size=events[0].from_size,
        to_size=events[0].to_size,
        runs=len(events),
        recovered=sum(e.recovered for e in events),
        stall=stalls,
        pause=Spread.of(e.pause for e in events),
        redone=again,
        discarded=thrown,
        pids_changed=sum(e.pids_changed for e in events),
        changes=Spread.of(e.changes for e in events),
        phases=phase_medians([r for e in events for r in e.rescales]),
    )


def phase_medians(rescales: Sequence[Phases]) -> tuple[Phases, ...]:
    """One for each name, in the order of their first coming; a phase counts in those that have it."""
    by_name: dict[str, list[Phases]] = defaultdict(list)
    for rescale in rescales:
        by_name[rescale.name].append(rescale)
    return tuple(
        Phases(
            name=name,
            pause=statistics.median(r.pause for r in of),
            seconds={
                phase: statistics.median(r.seconds[phase] for r in of if phase in r.seconds)
                for phase in dict.fromkeys(p for r in of for p in r.seconds)
            },
        )
        for name, of in by_name.items()
    )


def with_ratios(systems: dict[str, SystemResult], reference: str) -> dict[str, SystemResult]:
    """The same, with each median as a multiple of the ``reference`` system's; unchanged where that is missing."""
    if reference not in systems:
        return systems
    base = {e.label: e for e in systems[reference].events}
    return {
        name: system.model_copy(update={"events": tuple(_with_ratios(e, base.get(e.label)) for e in system.events)})
        for name, system in systems.items()
    }


def _with_ratios(event: EventSummary, base: EventSummary | None) -> EventSummary:
    if base is None:
        return event
    return event.model_copy(
        update={"stall_ratio": _ratio(event.stall, base.stall), "pause_ratio": _ratio(event.pause, base.pause)}
    )


def _ratio(figure: Spread | None, base: Spread | None) -> float | None:
    if figure is None or base is None or base.median == 0:
        return None
    return figure.median / base.median
