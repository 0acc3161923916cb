"""The consequences of heartbeat pages: the health in the member's record, a restart, a resignation. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrain.agent.core.health import Peers, Policy, Verdict, Watch
from elastrain.api.pages.heartbeat import Beat
from elastrain.api.records import Generation, Health, Member, Phase, Target

EXCLUDE_SECONDS = 10.0
"""Seconds from a straggler's report to its leave: by then other stragglers have reported themselves."""
LACK_SECONDS = 10.0
"""Seconds below the minimum before it is reported: every job is below its minimum while it starts."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that the heartbeat pages do not contain."""

    me: str
    """Member id."""
    current: bool = True
    """etcd answers and shows all members. Otherwise the fields below are outdated or incomplete, and no worker leaves
    because of them."""
    members: Mapping[str, Member] = field(default_factory=dict)
    """Live members by id."""
    target: Target | None = None
    generation: Generation | None = None
    """The generation that its ranks have adopted."""
    trains: bool = False
    """The member is in that generation and has not seen it break."""
    idle: bool = False
    """Its ranks could train in a generation, and neither training nor the worker has ended."""


@dataclass(slots=True)
class Checkup:
    """The health of one incarnation."""

    policy: Policy
    watch: Watch = field(default_factory=Watch)
    verdict: Verdict = field(default_factory=Verdict)
    lacking_since: float | None = None
    """Since when fewer than ``target.min`` members are ready although these ranks are."""
    health: Health = Health.OK
    message: str = ""
    """The message for the member's record. It changes only with the verdict, so that changing figures cause no
    writes."""

    def look(self, beats: Mapping[int, Beat], situation: Situation, now: float) -> Verdict:
        """Judge again; the verdict names the ranks to restart and those whose stacks are to be printed."""
        self.verdict = self.watch.look(beats, peers(situation), now, self.policy)
        lacking = below_min(situation)
        self.lacking_since = (now if self.lacking_since is None else self.lacking_since) if lacking else None
        self.health, self.message = self.verdict.health, self.verdict.message
        if self.health is Health.OK and situation.target is not None and self._lacks_for(now) >= LACK_SECONDS:
            self.health = Health.BELOW_MIN
            self.message = f"could train, but waits until {situation.target.min} members are ready (minReplicas)"
        return self.verdict

    def why_resign(self, situation: Situation, now: float) -> str | None:
        """Why this worker leaves without a request; None: it stays."""
        if not situation.current:
            return None
        if self._lacks_for(now) >= self.policy.min_timeout:
            return f"fewer than minReplicas members were ready for {self.policy.min_timeout:.0f} s"
        if not self.policy.exclude_stragglers or self.verdict.health is not Health.SLOW or situation.target is None:
            return None
        members = situation.members
        # One at a time, so that two leaves together cannot go below the minimum.
        first = min((m.id for m in members.values() if m.health == Health.SLOW), default=None)
        turn = first == situation.me and not any(m.phase is Phase.LEAVING for m in members.values())
        spare = first is not None and _ready(situation) - members[first].group_size >= situation.target.min
        if turn and spare and now - self.watch.slow_since >= EXCLUDE_SECONDS:
            return f"straggler: {self.verdict.message}"
        return None

    def _lacks_for(self, now: float) -> float:
        return 0.0 if self.lacking_since is None else now - self.lacking_since


def peers(situation: Situation) -> Peers:
    """The other members of the generation in force."""
    ids = [m.id for m in situation.generation.members] if situation.generation else []
    if situation.me not in ids:
        return Peers()
    others = (situation.members.get(i) for i in ids if i != situation.me)
    waiting = any(m is not None and m.health == Health.WAITING for m in others)
    return Peers(ids.index(situation.me), len(ids), waiting)


def below_min(situation: Situation) -> bool:
    """Whether this worker is ready and does not train only because too few members are ready."""
    target = situation.target
    if not situation.current or target is None or target.desired == 0 or situation.trains or not situation.idle:
        return False
    return _ready(situation) < target.min


def stragglers(members: Mapping[str, Member]) -> tuple[str, ...]:
    """Names of at most 16 of the workers that report themselves as slow."""
    return tuple(sorted(m.worker for m in members.values() if m.health == Health.SLOW)[:16])


def _ready(situation: Situation) -> int:
    return sum(1 for m in situation.members.values() if m.phase is Phase.READY)
