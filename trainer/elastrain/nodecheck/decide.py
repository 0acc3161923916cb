"""Who is measured with whom, and whom the measurements blame. Pure.

A bad pair has two ends, and one measurement cannot tell which of them is sick. Other partners can: two rounds pair
everybody with two others, and further ones pair those who are still suspect with somebody who has proved to be well.
(DLRover's network check does the same in two rounds: https://github.com/intelligent-machine-learning/dlrover.)

The rule of blame is sound if a pair is bad only where one of its ends is sick: whoever is in a good pair is well, so a
bad pair with somebody who is well is one's own fault. To be sure of that in an imperfect world two different partners
are asked for; with less the answer is "unknown", which blames nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from elastrain.nodecheck.records import Contestant, Report, Sick

MOST_ROUNDS = 4
"""Two for everybody, and up to two more for those who are suspect after that."""
SLOW_FACTOR = 4.0
"""A pair is slow if its rate is so many times below the upper quartile of all, or its latency above the lower one."""
SLOW_LATENCY = 0.001
"""Seconds; a lower latency is no reason to call a pair slow: noise of a busy machine is as large."""
FEW = 3
"""Fewer working pairs cannot say what is usual, so none of them is slow."""
MOST_SEATS = 64
"""Contestants of one heat; more make several heats, so that what one reads stays small."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one pair, by what both ends said."""

    pair: tuple[str, str]
    good: bool
    words: str
    """The figures, or what went wrong."""


def is_complete(unseated: int, elsewhere: int, desired: int | None, waited: float, wait: float) -> bool:
    """Whether nobody else is to be waited for before a heat begins.

    ``unseated``: contestants that are in no heat yet; ``elsewhere``: workers that are past the check or in another
    heat; ``desired``: workers that the job is to have, None: not known. ``waited``, ``wait``: seconds.
    """
    return (desired is not None and unseated + elsewhere >= desired) or waited >= wait


def seats(contestants: Sequence[Contestant]) -> tuple[Contestant, ...]:
    """Who is measured: the oldest of each node. ``contestants``: oldest first; one without a node's name counts."""
    nodes: dict[str, Contestant] = {}
    for c in contestants:
        nodes.setdefault(c.node or f"worker {c.worker}", c)
    return tuple(nodes.values())


def next_round(
    ids: Sequence[str],
    rounds: Sequence[Collection[tuple[str, str]]],
    outcomes: Iterable[Outcome],
    alive: Collection[str],
) -> tuple[tuple[str, str], ...]:
    """The pairs of the next round; none: it is over. Nobody is in two of them, and no pair meets twice.

    ``ids``: all seats, in an order that does not change; ``alive``: those that can still be measured.
    """
    number, known = len(rounds), list(outcomes)
    if number >= MOST_ROUNDS:
        return ()
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    if number < 2:
        drawn = [p for p in _circle(ids, number) if frozenset(p) not in met]
        return tuple(p for p in drawn if p[0] in alive and p[1] in alive)
    well, blamed = _well(known), _blamed(known, alive)
    suspects = [i for i in _bad_partners(known) if i in alive and i not in well and i not in blamed]
    healthy = [i for i in ids if i in well and i in alive]
    pairs: list[tuple[str, str]] = []
    taken: set[str] = set()
    for suspect in suspects:
        # Suspects also meet each other: of three nodes, one of them sick, the two others may not have met yet.
        partners = (p for p in (*healthy, *suspects) if p != suspect and p not in taken)
        partner = next((p for p in partners if frozenset((suspect, p)) not in met), None)
        if suspect not in taken and partner is not None:
            pairs.append((partner, suspect))
            taken |= {suspect, partner}
    return tuple(pairs)


def is_over(pairs: Iterable[tuple[str, str]], number: int, contestants: Mapping[str, Contestant]) -> bool:
    """Whether all who are still there have reported about round ``number``."""
    return all(
        _report(contestants[i], number) is not None for pair in pairs for i in pair if i in contestants
    )  # fmt: skip


def judge(rounds: Sequence[Iterable[tuple[str, str]]], contestants: Mapping[str, Contestant]) -> list[Outcome]:
    """What came of each pair of which enough is known.

    ``contestants``: those who are still there. What somebody says about a partner that has gone without a word says
    nothing about either's network, and a pair of which one end has not said anything (yet) is unknown.
    """
    told: list[tuple[tuple[str, str], Report, Report]] = []
    for number, pairs in enumerate(rounds):
        for pair in pairs:
            one, other = (_report(contestants[i], number) if i in contestants else None for i in pair)
            if one is not None and other is not None:
                told.append((pair, one, other))
    rates = sorted(min(a.rate, b.rate) for _, a, b in told if a.ok and b.ok)
    delays = sorted(max(a.latency, b.latency) for _, a, b in told if a.ok and b.ok)
    usual = (rates[ceil(0.75 * (len(rates) - 1))], delays[(len(delays) - 1) // 4]) if len(rates) >= FEW else None
    return [_outcome(pair, one, other, usual) for pair, one, other in told]


def blame(outcomes: Iterable[Outcome], contestants: Mapping[str, Contestant]) -> tuple[Sick, ...]:
    """The nodes that are sick, with words for a person."""
    known = list(outcomes)
    found = []
    for sick in _blamed(known, contestants):
        partners = [
            f"{_name(contestants, other)} ({o.words})"
            for o in known
            if sick in o.pair and not o.good
            for other in o.pair
            if other != sick
        ]
        well = len(_well(known))
        words = (
            f"all-reduce with {' and '.join(partners)}, while {well} of {len(contestants)} nodes did well with others"
        )
        found.append(Sick(id=sick, node=contestants[sick].node, words=words))
    return tuple(found)


def _outcome(pair: tuple[str, str], one: Report, other: Report, usual: tuple[float, float] | None) -> Outcome:
    failed = next((r.why for r in (one, other) if not r.ok), None)
    if failed is not None:
        return Outcome(pair, False, failed)
    rate, latency = min(one.rate, other.rate), max(one.latency, other.latency)
    words = f"{latency * 1000:.2f} ms, {rate:.2f} GB/s"
    if usual is None:
        return Outcome(pair, True, words)
    slow = rate * SLOW_FACTOR < usual[0] or latency > max(usual[1] * SLOW_FACTOR, SLOW_LATENCY)
    return Outcome(pair, not slow, f"{words}; usual: {usual[1] * 1000:.2f} ms, {usual[0]:.2f} GB/s" if slow else words)


def _circle(ids: Sequence[str], number: int) -> list[tuple[str, str]]:
    """Round ``number`` of a round-robin tournament, by the circle method: one stays, the others move on by a seat."""
    places: list[str | None] = [*ids, *([None] if len(ids) % 2 else [])]
    if len(places) < 2:
        return []
    moving = places[1:]
    shift = number % len(moving)
    ring = [places[0], *moving[shift:], *moving[:shift]]
    pairs = ((ring[n], ring[-1 - n]) for n in range(len(ring) // 2))
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _well(outcomes: Iterable[Outcome]) -> set[str]:
    return {i for o in outcomes if o.good for i in o.pair}


def _bad_partners(outcomes: Iterable[Outcome]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for a, b in (o.pair for o in outcomes if not o.good):
        found.setdefault(a, set()).add(b)
        found.setdefault(b, set()).add(a)
    return found


def _blamed(outcomes: Sequence[Outcome], alive: Collection[str]) -> list[str]:
    well = _well(outcomes)
    return [
        i
        for i, partners in _bad_partners(outcomes).items()
        if i in alive and i not in well and len(partners) >= 2 and partners & well
    ]


def _report(contestant: Contestant, number: int) -> Report | None:
    return next((r for r in contestant.reports if r.round == number), None)


def _name(contestants: Mapping[str, Contestant], contestant_id: str) -> str:
    found = contestants.get(contestant_id)
    return (found.node or found.worker) if found else contestant_id
