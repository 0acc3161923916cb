"""Detects stuck ranks and stragglers from heartbeat pages. Pure.

*stuck*
    A rank stays in the script's code while others wait for it in the step's collective. Its own page shows the former;
    a sibling's page or another member's record shows the latter. A member whose ranks wait for long publishes that; to
    avoid N writes, members later in rank order first leave time to the earlier ones. If all ranks are in the script's
    code at the same time (a long evaluation), none waits and none is stuck.

*straggler*
    The seconds that each rank computes per step travel with the gradients as a sum, so every rank can compare itself
    with the mean of the others: a straggler reports itself, with one write. At most about a third of the ranks do,
    for any distribution of times: s >= 3 (T - s) / (N - 1) gives s >= 3 T / (N + 2), and all s together are at most T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.api.records import Health

NAME_SECONDS = 60.0
NAME_STEPS = 20.0
"""A rank that others wait for is reported as stuck after the longer of ``NAME_SECONDS`` and ``NAME_STEPS`` usual steps
in the script's code; it is restarted after ``Policy.stuck_timeout``."""
DUMP_SECONDS = 0.5
"""Seconds between the request for a stuck rank's stacks and its end: the stacks must be printed first."""
SLOW_RATIO = 3.0
"""Least ratio of a straggler's seconds per step to the mean of the others."""
FAST_RATIO = 2.0
"""The ratio below which it is no longer one."""
SLOW_SECONDS = 0.005
"""Smaller differences per step are ignored."""
HOLD_SECONDS = 3.0
HOLD_STEPS = 10
"""Seconds and steps for which the evidence must hold before the verdict on a straggler changes."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The reactions to bad health (settings of the agent)."""

    stuck_timeout: float = 300.0
    """Seconds in the script's code after which a rank that others wait for is restarted, or ``NAME_STEPS`` steps if
    that is longer; 0: never."""
    exclude_stragglers: bool = False
    """A straggler leaves as if drained, as long as ``target.min`` members remain."""
    min_timeout: float = 3600.0
    """Seconds that a worker waits for the least number of members before it leaves."""

    @property
    def look_seconds(self) -> float:
        """Interval at which the pages should be read."""
        return min(1.0, self.stuck_timeout / 4) if self.stuck_timeout else 1.0


@dataclass(frozen=True, slots=True)
class Peers:
    """The other members of the generation that the ranks train in."""

    place: int = 0
    """Place of this member in rank order, from 0."""
    members: int = 1
    waiting: bool = False
    """Another member has published that its ranks wait."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of :meth:`Watch.look`."""

    health: Health = Health.OK
    message: str = ""
    dump: tuple[int, ...] = ()
    """Local ranks whose stacks should be printed now."""
    restart: tuple[tuple[int, str], ...] = ()
    """Local ranks that should be killed now, and why."""
    rank: int | None = None
    """Local rank that is slow or stuck, the first of several."""


@dataclass(slots=True)
class Watch:
    """State between two calls, for one incarnation of the ranks."""

    slow: Verdict | None = None
    slow_since: float = 0.0
    dumped: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By local rank: since when it is in the body, and when its stacks were requested."""
    said_waiting: bool = False
    _contrary: tuple[float, int] | None = None
    """Since when, and since which number of commits, the evidence contradicts ``slow``."""

    def look(self, beats: Mapping[int, Beat], peers: Peers, now: float, policy: Policy) -> Verdict:
        """Judge the pages of all local ranks that have one."""
        self._weigh(beats, now)
        named = stuck(beats, peers, now, policy)
        self.dumped = {r: seen for r, seen in self.dumped.items() if r in named and seen[0] == beats[r].since}
        dump = tuple(r for r in named if r not in self.dumped)
        self.dumped.update({r: (beats[r].since, now) for r in dump})
        self.said_waiting = not named and waits(beats, peers, now, policy, self.said_waiting)
        if named:
            due = [
                r for r in named if self._printed(r, now) and now - beats[r].since >= restart_after(beats[r], policy)
            ]
            restart = tuple((r, f"local rank {r} hung in the script's code for {named[r]:.0f} s") for r in due)
            words = f"local rank {min(named)} does not return from the script's code, others wait for it"
            return Verdict(Health.STUCK, words, dump, restart, min(named))
        if self.slow is not None:
            return self.slow
        if self.said_waiting:
            return Verdict(Health.WAITING, "its ranks wait for others in the collective of a step")
        return Verdict()

    def _printed(self, rank: int, now: float) -> bool:
        return now - self.dumped[rank][1] >= DUMP_SECONDS

    def _weigh(self, beats: Mapping[int, Beat], now: float) -> None:
        """Update the evidence about a straggler, which must hold for a while to change the verdict."""
        found = pace(beats)
        if found is None:
            self._contrary = None
            return
        rank, ratio = found
        commits = min(b.commits for b in beats.values())
        contrary = ratio < FAST_RATIO if self.slow is not None else ratio >= SLOW_RATIO
        if not contrary:
            self._contrary = None
        elif self._contrary is None:
            self._contrary = (now, commits)
        elif now - self._contrary[0] >= HOLD_SECONDS and commits - self._contrary[1] >= HOLD_STEPS:
            self._contrary = None
            words = f"local rank {rank} computes {ratio:.1f} times as long per step as the others on average"
            self.slow = None if self.slow is not None else Verdict(Health.SLOW, words, rank=rank)
            self.slow_since = now


def named_after(beat: Beat, policy: Policy) -> float:
    """Seconds in the script's code after which a rank that others wait for is reported."""
    usual = max(NAME_SECONDS, NAME_STEPS * beat.compute)
    return min(usual, restart_after(beat, policy)) if policy.stuck_timeout else usual


def restart_after(beat: Beat, policy: Policy) -> float:
    """Seconds in the script's code after which a rank that others wait for is restarted."""
    return max(policy.stuck_timeout, NAME_STEPS * beat.compute) if policy.stuck_timeout else float("inf")


def stuck(beats: Mapping[int, Beat], peers: Peers, now: float, policy: Policy) -> dict[int, float]:
    """Local ranks that hang in the script's code while others wait for them, with the seconds since they entered it.

    Excluded are ranks that have not committed a step yet (compilation), are in the runtime (a checkpoint) or outside of
    the loop.
    """
    hanging = {
        rank: now - beat.since
        for rank, beat in beats.items()
        if beat.where is Where.BODY and beat.commits and now - beat.since >= named_after(beat, policy)
    }
    sibling_waits = any(_waits(b, now, named_after(b, policy) / 2) for b in beats.values())
    return {r: s for r, s in hanging.items() if peers.waiting or sibling_waits or beats[r].world_size == 1}


def waits(beats: Mapping[int, Beat], peers: Peers, now: float, policy: Policy, said: bool) -> bool:
    """Whether this member must publish that its ranks wait: no earlier member has published it in its time. ``said``:
    this member has already published it."""
    if peers.members <= 1 or not beats or (peers.waiting and not said):
        return False
    half = max(named_after(b, policy) for b in beats.values()) / 2
    patience = half if said else half * (1 + peers.place / peers.members)
    return any(_waits(b, now, patience) for b in beats.values())


def pace(beats: Mapping[int, Beat]) -> tuple[int, float] | None:
    """The slowest local rank, and the ratio of its seconds per step to those of the others: the greater of the rank
    alone to all other ranks, and of all local ranks to those of other members. None: not comparable (yet)."""
    if not beats or any(b.commits < HOLD_STEPS or b.total <= 0 for b in beats.values()):
        return None
    rank, slowest = max(beats.items(), key=lambda item: item[1].compute)
    ratios = [_ratio([slowest], slowest)]
    if len(beats) > 1:
        ratios.append(_ratio(list(beats.values()), slowest))
    return rank, max(ratios)


def _ratio(ours: list[Beat], beat: Beat) -> float:
    """Mean of ``ours`` over the mean of all other ranks; 0 without other ranks or for a negligible difference."""
    others = beat.world_size - len(ours)
    if others <= 0:
        return 0.0
    mine = sum(b.compute for b in ours) / len(ours)
    theirs = max(0.0, beat.total - sum(b.compute for b in ours)) / others
    return mine / max(theirs, 1e-9) if mine - theirs >= SLOW_SECONDS else 0.0


def _waits(beat: Beat, now: float, seconds: float) -> bool:
    return beat.where is Where.COLLECTIVE and now - beat.since >= seconds
