"""The history that counts, of all steps committed in a run, and its samples. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from bench_rescale.results import Samples
from bench_rescale.steplog import Line


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
    """Samples of an endless stream that is consumed in order, rank by rank.

    A step is committed only after a collective of all its ranks. So rank 0's line proves that the parts of all
    ranks are in, also of ranks that were killed before they could write.

    Raises ``ValueError`` if no step was committed.
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

    A shard's samples before its last committed one were all read: those in no committed step are lost.
    Raises ``ValueError`` if no step was committed.
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
