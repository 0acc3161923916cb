"""The judge of audit logs (:mod:`elastrain.data.audit`). It needs only these logs, and is pure but for reading them."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastrain.data.audit import INCOMPLETE, Line
from elastrain.data.order import Order
from elastrain.data.share import Share


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the judge. ``ok``: every sample of every complete epoch was consumed exactly once.

    With a sampler: as often as the sampler has it in the epoch.
    """

    steps: int
    """Distinct committed steps."""
    epochs: int
    """Complete epochs."""
    samples: int
    """Samples consumed by the committed steps."""
    lost: int = 0
    """Samples that a complete epoch did not consume."""
    repeated: int = 0
    """Samples consumed more than once within an epoch."""
    redone: int = 0
    """Steps that were committed again by a later generation (after a restart from a checkpoint, or with ``shards: all``
    after the loss of a rank)."""
    problems: tuple[str, ...] = ()
    """Every contradiction found, one line each, at most 20."""
    incomplete: int | None = None
    """The first step that a log lacks which could not be written, and no other log has. The verdict is on those before
    it; None: no log lacks a step."""
    pids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Process ids of the training processes, by worker."""

    @property
    def ok(self) -> bool:
        return self.incomplete is None and not (self.lost or self.repeated or self.problems)


def verify(directory: Path) -> Verdict:
    """Judge all logs of a directory.

    Raises ``ValueError`` naming file and line for a line that is no audit line, and for a directory without logs. A
    torn last line of a killed rank is skipped.
    """
    files = sorted(directory.glob("*.jsonl"))
    of_data: dict[_Data, list[Line]] = defaultdict(list)
    lines: list[Line] = []
    whole: list[Line] = []
    """Of logs that could be written."""
    for file in files:
        before, data = len(lines), None
        for record in _records(file):
            if not isinstance(record, Line):
                data = record
            elif data is None:
                raise ValueError(f"{file}: its first line is not the order of the data")
            else:
                lines.append(record)
                of_data[data].append(record)
        whole += lines[before:] if INCOMPLETE not in file.name else []
    if not lines:
        raise ValueError(f"{directory}: no audit lines in {len(files)} *.jsonl files; is $ELASTRAIN_AUDIT_DIR set?")
    try:
        ends = [int(file.stem.rpartition(INCOMPLETE)[2]) for file in files if INCOMPLETE in file.name]
        incomplete = first_lacking(lines, whole, min(ends)) if ends else None
        kept = {d: [x for x in of if incomplete is None or x.step < incomplete] for d, of in of_data.items()}
        if not any(kept.values()):
            raise ValueError("the logs could not be written from their first step on")
        return replace(_judge_in_turn({data: of for data, of in kept.items() if of}), incomplete=incomplete)
    except _DAMAGE as e:
        raise ValueError(f"{directory}: {e}") from e


def _judge_in_turn(of_data: dict[_Data, list[Line]]) -> Verdict:
    """The verdict on loops that follow each other, each over its own data: a labelled set that grows, for instance.

    Raises ``ValueError`` for data of which a script cannot have the second behind the first. Pure.
    """
    turns = sorted(of_data.items(), key=lambda one: min(line.step for line in one[1]))
    begins = [min(line.step for line in turns[0][1])]
    for ((before, _), earlier), ((order, _), own) in itertools.pairwise(turns):
        goes_on = order.first_step <= before.first_step  # epochs of equally many steps as before
        begins.append(begin := min(line.step for line in own) if goes_on else order.first_step)
        over = max(line.step + line.span for line in earlier) <= begin <= min(line.step for line in own)
        if not over or order.behind(before, begin) != order or (goes_on and order.where(begin)[1]):
            raise ValueError(_apart(of_data))
    verdicts = [
        judge(own, order if sampled is None else replace(order, batch_sampler=_Logged(own, order, sampled)), begin, end)
        for ((order, sampled), own), begin, end in zip(turns, begins, [*begins[1:], None], strict=True)
    ]
    counts = ("steps", "epochs", "samples", "lost", "repeated", "redone")
    pids = {
        worker: tuple(sorted({p for v in verdicts for p in v.pids.get(worker, ())}))
        for v in verdicts
        for worker in v.pids
    }
    return Verdict(
        **{name: sum(getattr(verdict, name) for verdict in verdicts) for name in counts},
        problems=tuple([problem for verdict in verdicts for problem in verdict.problems][:20]),
        pids=dict(sorted(pids.items())),
    )


def first_lacking(lines: Sequence[Line], whole: Sequence[Line], since: int) -> int | None:
    """The first step from ``since`` on that no log has; None if the last one is in a log of those that are ``whole``:
    training has ended with it. Pure."""
    known = _newest_generations(lines)
    first = next(step for step in itertools.count(since) if step not in known)
    ended = first > max(known, default=-1) and first - 1 in _newest_generations(whole)
    return None if ended else first


def _apart(of_data: dict[_Data, list[Line]]) -> str:
    """How the data of the workers differs, or that of the jobs."""
    described = {key: {**asdict(key[0]), "steps_per_epoch": key[0].steps_per_epoch} for key in of_data}
    values = list(described.values())
    names = [name for name in values[0] if any(each[name] != values[0][name] for each in values)]
    each = [
        f"{', '.join(f'{name}={described[key][name]}' for name in names) or f'{key[1]} batches of a sampler'} of "
        f"{', '.join(sorted({line.worker for line in lines}))}"
        for key, lines in of_data.items()
    ]
    return (
        f"{len(of_data)} different orders of data: {'; '.join(each)}. Workers of one job had other data, the script "
        "has changed it, or the directory has logs of several jobs, each of which needs its own"
    )


class _Logged:
    """The batches that a sampler made, from the logs."""

    def __init__(self, lines: Iterable[Line], order: Order, steps_per_epoch: int) -> None:
        size = order.global_batch_size
        self._batches = {
            line.step + i: line.batch[i * size : (i + 1) * size]
            for line in lines
            if line.batch is not None
            for i in range(line.span)
        }
        self.batch_size, self.samples = size, order.length or 0
        self._order, self._steps_per_epoch = order, steps_per_epoch

    def __len__(self) -> int:
        return self._steps_per_epoch

    def batch(self, epoch: int, number: int) -> tuple[int, ...]:
        first = self._order.first_step + (epoch - self._order.first_epoch) * self._steps_per_epoch
        return self._batches[first + number]


def judge(lines: Sequence[Line], order: Order, begin: int | None = None, end: int | None = None) -> Verdict:
    """The verdict on ``lines`` of one job over ``order``, from step ``begin`` to before ``end``. Pure."""
    by_step: dict[int, list[Line]] = defaultdict(list)
    pids: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        by_step[line.step].append(line)
        pids[line.worker].add(line.pid)
    problems: list[str] = []
    redone = 0
    consumed: dict[int, Counter[int]] = defaultdict(Counter)
    expected: dict[int, Counter[int]] = defaultdict(Counter)
    """Of an order by a sampler: what it has for the steps that were logged."""
    newest = _newest_generations(lines)
    for step, of_step in sorted(by_step.items()):
        committed = {line.generation for line in of_step if line.kind == "commit"}
        if not committed:
            problems.append(f"step {step}: adopted from a peer, but no rank committed it")
            continue
        if len({line.batch for line in of_step}) > 1:
            problems.append(f"step {step}: the sampler made different batches on the ranks")
        last = max(committed)
        if newest[step] > last:  # within a step of a later generation, cut in another way
            redone += len(committed)
            continue
        redone += len(committed) - 1
        if len(taken := {x.span for x in of_step if x.generation == last}) > 1:
            problems.append(f"step {step}: ranks of generation {last} took {sorted(taken)} batches")
            continue
        samples, found = _step_samples(step, [x for x in of_step if x.generation == last], order)
        problems += found
        consumed[order.where(step)[0]].update(samples)
        if order.sampled:
            expected[order.where(step)[0]].update(order.batch(step, taken.pop()))
    first = min(by_step) if begin is None else begin
    last = max([*by_step, *newest]) if end is None else end - 1
    known = {*newest, *by_step}
    problems += [f"step {s}: committed by no rank" for s in range(first, last + 1) if s not in known]
    complete = [e for e in consumed if first <= order.end_of(e) and order.end_of(e + 1) <= last + 1]
    if not order.sampled:  # every sample once
        all_samples = order.samples_before(order.first_step + order.steps_per_epoch) - order.first_sample
        lost = sum(max(0, all_samples - len(consumed[e])) for e in complete)
        repeated = sum(n - 1 for c in consumed.values() for n in c.values())
    else:
        lost = sum((expected[e] - consumed[e]).total() for e in complete)
        repeated = sum((c - expected[e]).total() for e, c in consumed.items())
    return Verdict(
        steps=len(known),
        epochs=len(complete),
        samples=sum(c.total() for c in consumed.values()),
        lost=lost,
        repeated=repeated,
        redone=redone,
        problems=tuple(problems[:20]),
        pids={worker: tuple(sorted(p)) for worker, p in sorted(pids.items())},
    )


def _newest_generations(lines: Iterable[Line]) -> dict[int, int]:
    """By position: the newest generation that committed a step with it."""
    newest: dict[int, int] = {}
    for line in lines:
        for position in range(line.step, line.step + line.span) if line.kind == "commit" else ():
            newest[position] = max(newest.get(position, 0), line.generation)
    return newest


def _step_samples(step: int, lines: list[Line], order: Order) -> tuple[list[int], list[str]]:
    """The samples that the generation of ``lines`` consumed in ``step``, and the contradictions to the order."""
    problems = []
    worlds = {(line.world_size, line.share.parts, line.share.weights) for line in lines}
    if len(worlds) != 1:
        return [], [f"step {step}: one generation with world sizes and parts {sorted(worlds)}"]
    _, parts, weights = worlds.pop()
    seen: dict[int, Line] = {}
    for line in lines:
        before = seen.setdefault(line.rank, line)
        if (before.indices, before.share) != (line.indices, line.share):
            problems.append(f"step {step}: rank {line.rank} logged two different parts")
    owners: dict[int, Line] = {}
    for line in seen.values():
        expected = _samples_of(order, step, line.share, line.span)
        if line.indices != expected:
            problems.append(
                f"step {step}: rank {line.rank} had part {line.share.part} of {parts} and trained on {line.indices}, "
                f"not on {expected}"
            )
        owner = line if line.share.learner else owners.setdefault(line.share.part, line)
        if owner.rank not in (line.rank, *line.mates):
            problems.append(f"step {step}: part {line.share.part} was computed by two ranks")
    samples: list[int] = []
    span = lines[0].span
    for part in range(parts):
        samples += (
            owners[part].indices if part in owners else _samples_of(order, step, Share(part, parts, weights), span)
        )
    return samples, problems


def _samples_of(order: Order, step: int, share: Share, span: int) -> tuple[int, ...]:
    return () if share.learner else order.slice(step, *share, span=span).indices


_Data = tuple[Order, int | None]
"""Also the batches of an epoch, if a sampler makes them."""
_DAMAGE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What values of other types and sizes than a log has raise."""


def _records(file: Path) -> Iterable[Line | _Data]:
    text = file.read_text(errors="replace").split("\n")
    for number, raw in enumerate(text, 1):
        if not raw:
            continue
        try:
            record = _record(**json.loads(raw))
        except _DAMAGE as e:
            if number == len(text):  # no newline at its end: the rank was killed while it wrote
                return
            raise ValueError(f"{file}:{number}: not an audit line: {e!r}") from e
        yield record


def _record(kind: str, **values: Any) -> Line | _Data:
    if kind == "order":
        sampled = values.pop("sampled")
        hash(order := Order(**values))  # raises for a list
        return order, sampled
    part, parts, weights = values["share"]
    batch = None if values["batch"] is None else tuple(values["batch"])
    tuples = {"indices": tuple(values["indices"]), "mates": tuple(values["mates"]), "batch": batch}
    return Line(kind, **{**values, **tuples, "share": Share(part, parts, tuple(weights))})
