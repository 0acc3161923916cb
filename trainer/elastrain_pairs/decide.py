"""Chooses the pairs to measure and the nodes to blame. Pure.

A bad pair has two ends, and one measurement cannot tell which end is faulty. Further partners can. Two rounds pair
every participant with two others; later rounds pair each remaining suspect with a healthy participant. (DLRover's
network check does the same in two rounds: https://github.com/intelligent-machine-learning/dlrover.)

The rule assumes that a pair is bad only if one of its ends is faulty. So a participant of a good pair is healthy, and a
bad pair with a healthy partner blames the other end. As a margin for measurement errors the rule requires two different
bad partners; otherwise the result is "unknown", which blames no node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from elastrain_pairs.records import Participant, Report, Sick

MOST_ROUNDS = 4
"""Two rounds for all participants, and up to two more for suspects."""
SLOW_FACTOR = 4.0
"""A pair is slow if its rate is this many times below the upper quartile, or its latency above the lower quartile."""
SLOW_LATENCY = 0.001
"""Seconds; a lower latency is never slow, since the noise of a busy machine reaches it."""
FEW = 3
"""Fewer working pairs do not define a usual rate, so none of them is slow."""
MOST_PARTICIPANTS = 64
"""Participants of one group; more form several groups, which bounds the size of a read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one pair, from both ends."""

    pair: tuple[str, str]
    good: bool
    detail: str
    """The measurements, or the error."""


def is_complete(ungrouped: int, elsewhere: int, desired: int | None, waited: float, wait: float) -> bool:
    """Whether a group can form without waiting for more participants.

    ``ungrouped``: participants without a group; ``elsewhere``: workers that are past the check or in another group;
    ``desired``: desired workers of the job, None: unknown. ``waited``, ``wait``: seconds.
    """
    return (desired is not None and ungrouped + elsewhere >= desired) or waited >= wait


def representatives(participants: Sequence[Participant]) -> tuple[Participant, ...]:
    """The measured participants: the oldest of each node. ``participants``: oldest first; an unnamed node counts by its
    worker."""
    nodes: dict[str, Participant] = {}
    for c in participants:
        nodes.setdefault(c.node or f"worker {c.worker}", c)
    return tuple(nodes.values())


def next_round(
    ids: Sequence[str],
    rounds: Sequence[Collection[tuple[str, str]]],
    outcomes: Iterable[Outcome],
    alive: Collection[str],
) -> tuple[tuple[str, str], ...]:
    """The pairs of the next round; empty after the last. A participant is in one pair at most, and no pair repeats.

    ``ids``: all measured participants, in a fixed order; ``alive``: the ones that can still be measured.
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
        # Suspects also pair with each other: of three nodes with one faulty, the other two may not have met.
        partners = (p for p in (*healthy, *suspects) if p != suspect and p not in taken)
        partner = next((p for p in partners if frozenset((suspect, p)) not in met), None)
        if suspect not in taken and partner is not None:
            pairs.append((partner, suspect))
            taken |= {suspect, partner}
    return tuple(pairs)


def is_over(pairs: Iterable[tuple[str, str]], number: int, participants: Mapping[str, Participant]) -> bool:
    """Whether all remaining participants have reported on round ``number``."""
    return all(
        _report(participants[i], number) is not None for pair in pairs for i in pair if i in participants
    )  # fmt: skip


def judge(rounds: Sequence[Iterable[tuple[str, str]]], participants: Mapping[str, Participant]) -> list[Outcome]:
    """The result of each pair with reports from both ends; other pairs are unknown.

    ``participants``: the remaining ones. A report about a partner that has gone proves nothing about either network.
    """
    reported: list[tuple[tuple[str, str], Report, Report]] = []
    for number, pairs in enumerate(rounds):
        for pair in pairs:
            one, other = (_report(participants[i], number) if i in participants else None for i in pair)
            if one is not None and other is not None:
                reported.append((pair, one, other))
    rates = sorted(min(a.rate, b.rate) for _, a, b in reported if a.ok and b.ok)
    delays = sorted(max(a.latency, b.latency) for _, a, b in reported if a.ok and b.ok)
    usual = (rates[ceil(0.75 * (len(rates) - 1))], delays[(len(delays) - 1) // 4]) if len(rates) >= FEW else None
    return [_outcome(pair, one, other, usual) for pair, one, other in reported]


def blame(outcomes: Iterable[Outcome], participants: Mapping[str, Participant]) -> tuple[Sick, ...]:
    """The faulty nodes, each with a message."""
    known = list(outcomes)
    found = []
    for sick in _blamed(known, participants):
        partners = [
            f"{_name(participants, other)} ({o.detail})"
            for o in known
            if sick in o.pair and not o.good
            for other in o.pair
            if other != sick
        ]
        well = len(_well(known))
        others = f"{well} of {len(participants)} nodes passed with other partners"
        message = f"all-reduce with {' and '.join(partners)}, while {others}"
        found.append(Sick(id=sick, node=participants[sick].node, message=message))
    return tuple(found)


def _outcome(pair: tuple[str, str], one: Report, other: Report, usual: tuple[float, float] | None) -> Outcome:
    failed = next((r.why for r in (one, other) if not r.ok), None)
    if failed is not None:
        return Outcome(pair, False, failed)
    rate, latency = min(one.rate, other.rate), max(one.latency, other.latency)
    figures = f"{latency * 1000:.2f} ms, {rate:.2f} GB/s"
    if usual is None:
        return Outcome(pair, True, figures)
    slow = rate * SLOW_FACTOR < usual[0] or latency > max(usual[1] * SLOW_FACTOR, SLOW_LATENCY)
    return Outcome(
        pair, not slow, f"{figures}; usual: {usual[1] * 1000:.2f} ms, {usual[0]:.2f} GB/s" if slow else figures
    )


def _circle(ids: Sequence[str], number: int) -> list[tuple[str, str]]:
    """Round ``number`` of a round-robin tournament, by the circle method: one entry stays, the others rotate."""
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


def _report(participant: Participant, number: int) -> Report | None:
    return next((r for r in participant.reports if r.round == number), None)


def _name(participants: Mapping[str, Participant], participant_id: str) -> str:
    found = participants.get(participant_id)
    return (found.node or found.worker) if found else participant_id
