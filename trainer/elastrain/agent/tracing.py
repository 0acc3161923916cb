"""An agent's spans of a change of generation, for a trace collector. Pure: times are passed in."""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.agent.core.events import Effect, Event, JobSnapshot, RankExited, RankSaid, Registered, StartRanks
from elastrain.api.messages import Adopted, Broken, Ready
from elastrain.api.records import Generation, Target
from elastrain.tracing import Attribute, Span


@dataclass(slots=True)
class Notes:
    """Follows an agent's events. Seconds are ``time.monotonic()``."""

    member: str = ""
    _since: tuple[float, str] | None = None
    """Time and kind of the first sign that the generation in force ends."""
    _target: Target | None = None
    _force: Generation | None = None
    """The newest generation in etcd that includes this member."""
    _shown: float = 0.0
    """When."""
    _adopted: int = 0
    _started: float | None = None
    """Start time of ranks that are not ready yet."""
    _ready: tuple[float, float] | None = None
    """Start and end of that, until a generation exists to which the span belongs."""

    def note(self, event: Event, effects: list[Effect], now: float) -> tuple[int, list[Span]] | None:
        """The generation and its spans, if ``event`` completes a span.

        ``agent.decide``: from the first sign of a change (the target, a broken collective, a rank's end, its own
        registration) until etcd showed the next generation; ``agent.start``: of ranks, until they were ready for it;
        ``agent.switch``: from there until local rank 0 had adopted it.
        """
        if any(isinstance(effect, StartRanks) for effect in effects):
            self._started = now
        match event:
            case Registered(member_id=member):
                self.member = member
                self._sign(now, "joined")
            case RankSaid(message=Broken(generation=number)) if number >= self._number:
                self._sign(now, "broken")
            case RankExited():
                self._sign(now, "rank ended")
            case RankSaid(local_rank=0, message=Ready()) if self._started is not None:
                self._ready, self._started = (self._started, now), None
            case RankSaid(local_rank=0, message=Adopted(generation=number)):
                return self._adopt(number, now)
            case JobSnapshot():
                return self._see(event, now)
        return None

    @property
    def _number(self) -> int:
        return self._force.number if self._force is not None else 0

    def _sign(self, now: float, what: str) -> None:
        self._since = self._since or (now, what)

    def _see(self, seen: JobSnapshot, now: float) -> tuple[int, list[Span]] | None:
        if seen.target is not None and seen.target != self._target:
            known, self._target = self._target, seen.target
            if self._force is not None and not _asks_for_another(seen.target, self._force):
                self._since = None if self._since and self._since[1] == "target" else self._since  # withdrawn
            elif known is not None:
                self._sign(now, "target")
        if self._number in seen.ended:  # ended generations stay in the record
            self._sign(now, "generation ended")
        generation = seen.generation
        if generation is None or generation.number <= self._number or generation.member(self.member) is None:
            return None  # known, or without this member: a joiner sees the generation that trains without it
        self._force, self._shown = generation, now
        found = []
        if self._since is not None:
            since, sign = self._since
            leads = generation.leader == self.member
            who: dict[str, Attribute] = {"elastrain.sign": sign, "elastrain.leader": leads}
            found.append(Span("agent.decide", since, now, self._who() | who))
        if self._ready is not None:
            found.append(Span("agent.start", *self._ready, self._who()))
        self._since = self._ready = None
        return (generation.number, found) if found else None

    def _adopt(self, number: int, now: float) -> tuple[int, list[Span]] | None:
        if number != self._number or number <= self._adopted:
            return None
        self._adopted = number
        return number, [Span("agent.switch", self._shown, now, self._who())]

    def _who(self) -> dict[str, Attribute]:
        return {"elastrain.member": self.member}


def _asks_for_another(target: Target, generation: Generation) -> bool:
    """Whether ``target`` requires other members than ``generation`` has. It also changes when leavers are gone."""
    workers = {member.worker for member in generation.members}
    return target.desired != len(workers) or not workers.isdisjoint(target.leaving)
