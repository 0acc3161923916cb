"""Inputs of the agent's state machine (events) and its outputs (effects), as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.messages import AgentMessage, RankMessage
from elastrain.api.pages.heartbeat import Beat
from elastrain.api.records import Generation, Health, Member, Phase, Progress, Target, Termination


# ---- events --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Registered:
    """The member was registered under this id."""

    member_id: str


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The job's current records in etcd."""

    target: Target | None = None
    generation: Generation | None = None
    """The newest generation; a large one with only this member's place."""
    ended: Mapping[int, str] = field(default_factory=dict)
    """Numbers of generations that the leader has ended, and why."""
    finished: bool = False
    """``progress.finished``."""
    diverged: str = ""
    """How ranks have diverged, so that the job fails; empty: they have not. ``finished`` is then true as well."""
    step: int = 0
    """Greatest number of committed steps in any record."""
    training: bool = False
    """Whether live members hold the training state."""
    loop: LoopId = NO_LOOP
    """That the job is in."""
    saved_step: int = 0
    """``progress.checkpoint.step``; 0: no durable checkpoint was completed."""
    members: Mapping[str, Member] | None = None
    """All live members by id; None if this member does not watch them (in a large job only the leader does)."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """etcd has not confirmed the lease for its TTL: generations that it should have protected must not commit."""

    seconds: float
    """Since the last confirmation."""
    alone: bool = True
    """Only generations of this member alone; else all of them: the agent itself was stopped meanwhile."""


@dataclass(frozen=True, slots=True)
class RankSaid:
    """A message from a rank."""

    incarnation: int
    local_rank: int
    message: RankMessage


@dataclass(frozen=True, slots=True)
class RankHungUp:
    """The rank's connection ended; its process may still live."""

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
    """The agent received SIGTERM or SIGINT."""

    signum: int


@dataclass(frozen=True, slots=True)
class Pulse:
    """The ranks' heartbeat pages by local rank, without unreadable pages."""

    incarnation: int
    beats: Mapping[int, Beat]
    current: bool = True
    """etcd answers, so that the last :class:`JobSnapshot` is current."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Registered | JobSnapshot | Fenced | RankSaid | RankHungUp | RankExited | Signalled | Pulse | Tick


# ---- effects -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Reincarnate:
    """Delete the member key now, so that all members see it, and register under a new id; answered by
    :class:`Registered`."""

    restarts: bool = True
    """Whether the ranks start again, which the member's record counts."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Delete the member key now and permanently."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Write these fields into the member record."""

    phase: Phase = Phase.WARMING
    generation: int = 0
    step: int = 0
    broken: int = 0
    fault: int = 0
    faults: int = 0
    unsent: int = 0
    learning: bool = False
    holds: bool = False
    store_port: int = 0
    health: str = Health.OK
    health_message: str = ""
    health_rank: int | None = None
    later: bool = field(default=False, compare=False)
    """With the next change, or if etcd has lost the record."""


@dataclass(frozen=True, slots=True)
class PublishProgress:
    """Write the job's progress record."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class CloseJob:
    """Record that no further generation is formed, since ranks have diverged."""

    why: str


@dataclass(frozen=True, slots=True)
class StartRanks:
    """Start ranks of the worker."""

    incarnation: int
    local_ranks: tuple[int, ...] | None = None
    """Only these, beside the others of this incarnation; None: all."""


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Send ``signum`` to the process group of every rank that has not been reaped."""

    signum: int
    why: str


@dataclass(frozen=True, slots=True)
class PrintStacks:
    """Make this process, a rank, print the stacks of its threads."""

    local_rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class KillRank:
    """Send SIGKILL to the process group of one rank; its end follows as :class:`RankExited`."""

    local_rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to one rank."""

    local_rank: int
    message: AgentMessage


@dataclass(frozen=True, slots=True)
class End:
    """Write the termination record and exit."""

    termination: Termination

    @property
    def exit_code(self) -> int:
        return self.termination.exit_code


OfJob = PublishProgress | CloseJob
"""Writes a record of the whole job."""
Effect = Reincarnate | Leave | Publish | OfJob | StartRanks | KillRanks | PrintStacks | KillRank | Send | End
