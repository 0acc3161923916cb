"""What happens to an agent (events) and what it does about it (effects), as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrain.api.messages import AgentMessage, RankMessage
from elastrain.api.records import Generation, Member, Phase, Progress, Target, Termination


# ---- events --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Registered:
    """The member key exists under this id (and its lease)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Seen:
    """The job's records as etcd shows them now."""

    target: Target | None = None
    members: Mapping[str, Member] = field(default_factory=dict)
    generation: Generation | None = None
    finished: bool = False
    """``progress.finished``."""
    suspects: frozenset[str] = frozenset()
    """Ids of members that a probe found dead while their lease lives on."""


@dataclass(frozen=True, slots=True)
class LeaseConfirmed:
    """etcd confirmed the lease at this time (the clock that is passed as ``now``)."""

    at: float


@dataclass(frozen=True, slots=True)
class RankSaid:
    incarnation: int
    local_rank: int
    message: RankMessage


@dataclass(frozen=True, slots=True)
class RankHungUp:
    """The rank's connection ended; its process may live on."""

    incarnation: int
    local_rank: int


@dataclass(frozen=True, slots=True)
class RankExited:
    """The rank's process was reaped. Exactly one of ``code`` and ``signal`` is not 0, or none (success)."""

    incarnation: int
    local_rank: int
    code: int = 0
    signal: int = 0
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Signalled:
    """SIGTERM or SIGINT reached the agent."""

    signum: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Registered | Seen | LeaseConfirmed | RankSaid | RankHungUp | RankExited | Signalled | Tick


# ---- effects -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Register:
    """Register a member under a new id, answered by :class:`Registered`."""

    restarts: int


@dataclass(frozen=True, slots=True)
class Deregister:
    """Delete the member key now: everybody else must know at once."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write these fields into the member record."""

    phase: Phase = Phase.WARMING
    generation: int = 0
    step: int = 0
    broken: int = 0
    store_port: int = 0


@dataclass(frozen=True, slots=True)
class PublishProgress:
    progress: Progress


@dataclass(frozen=True, slots=True)
class StartRanks:
    incarnation: int


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Send ``signum`` to the process group of every rank that has not been reaped."""

    signum: int
    why: str


@dataclass(frozen=True, slots=True)
class Send:
    local_rank: int
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class End:
    """Write the termination record and exit."""

    termination: Termination

    @property
    def exit_code(self) -> int:
        return self.termination.exit_code


Effect = Register | Deregister | Publish | PublishProgress | StartRanks | KillRanks | Send | End
