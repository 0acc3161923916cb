"""The records in etcd and what they mean. Each docstring says who writes it and who reads it.

Records are small JSON documents. Unknown fields are ignored on reading, so that a newer writer and an older reader
can share a job during an upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Record(BaseModel):
    """Base of all records: immutable, camelCase-free, tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        return cls.model_validate_json(raw)


class Target(Record):
    """What the operator wants. Written by the operator or the local runner, read by every agent."""

    min: Annotated[int, Field(ge=1)]
    """Fewest members a generation may have."""
    max: Annotated[int, Field(ge=1)]
    """Most members a generation may ever have."""
    desired: Annotated[int, Field(ge=0)]
    """Members wanted now. 0: everybody leaves (suspend)."""
    leaving: tuple[str, ...] = ()
    """Names of workers (pods, not member ids) that must not be in the next generation."""
    reason: str = ""
    """Why the target is as it is, one CamelCase word; it becomes the generation's reason."""


class Phase(StrEnum):
    WARMING = "warming"
    """The agent runs; its ranks are not ready for a generation (starting, building the model, restarting)."""
    READY = "ready"
    """All its ranks can connect to a next generation now. Members of a running generation that can switch in process
    stay ready; a stock torchrun member is ready only while it is in the rendezvous."""
    LEAVING = "leaving"
    """The agent was told to stop: it trains on until a generation without it is in force."""
    FINISHED = "finished"
    """All its ranks have ended the training loop. Nothing is formed any more."""


class Health(StrEnum):
    """What is wrong with a member's ranks, in its agent's judgement (``agent/core/health.py``)."""

    OK = ""
    WAITING = "waiting"
    """They have waited for others in a collective for unusually long."""
    SLOW = "slow"
    """A straggler: its ranks compute several times as long per step as the others do."""
    STUCK = "stuck"
    """One of them does not come back from the script's code while others wait for it."""
    BELOW_MIN = "belowMin"
    """They could train, but fewer than ``target.min`` members are ready."""


class Member(Record):
    """One incarnation of a worker's agent. Written by that agent under its lease; read by all agents and the operator.

    A rank that dies takes its member with it: the agent deletes the key and, where it restarts the rank, registers
    under a new id. So a member that is in ``generation`` but has no key is lost, whatever the reason.
    """

    id: str
    """Unique for ever: ``<worker>.<random>``."""
    worker: str
    """Name of the pod (or local worker)."""
    node: str = ""
    address: str
    """Host or IP at which others reach this member."""
    agent_port: int = 0
    """TCP port on which the agent answers probes; 0: it does not."""
    store_port: int = 0
    """TCP port of the store that this member serves for generations in which it comes first; 0 until ready."""
    slots: Annotated[int, Field(ge=1)] = 1
    """Ranks of this member."""
    phase: Phase = Phase.WARMING
    generation: int = 0
    """Number of the generation that all its ranks have adopted; 0: none yet. Written at once by a member that holds the
    generation's rank 0, or is not in it: ranks adopt together, so one word is enough. Others' comes with their next
    change."""
    step: int = 0
    """Committed steps when the record was written; not a heartbeat."""
    broken: int = 0
    """Greatest generation number whose collectives were seen to fail by this member; 0: none. Not written where the
    leader has already said that it ended."""
    restarts: int = 0
    """How often this worker's ranks were restarted in place."""
    health: str = Health.OK
    """A word of :class:`Health`; readers take words that they do not know as they are."""
    health_message: str = ""
    """The same for people. Written when ``health`` changes, not with every new figure."""
    health_rank: int | None = None
    """Local rank that is slow or stuck; None: it is not about one."""


class GenerationMember(Record):
    """A member's place in a generation."""

    id: str
    worker: str
    address: str
    store_port: int
    slots: Annotated[int, Field(ge=1)] = 1
    rank_offset: Annotated[int, Field(ge=0)]
    """Global rank of its local rank 0."""


class Roster(Record):
    """What the record of a large generation says instead of all its members; they are in ``roster/``, in parts."""

    size: Annotated[int, Field(ge=1)]
    """Members."""
    world_size: Annotated[int, Field(ge=1)]
    """Ranks."""
    first: GenerationMember
    parts: Annotated[int, Field(ge=1)]
    """Keys over which the members are spread: see :mod:`elastrain.api.roster`."""


class Generation(Record):
    """A numbered, immutable set of members that train together. Written by the leader by compare-and-swap.

    Numbers only grow; gaps do not occur. An empty set is the order to stop at a step boundary: everybody checkpoints,
    leaving members exit, the others wait with their state for the next generation.
    """

    number: Annotated[int, Field(ge=1)]
    members: tuple[GenerationMember, ...] = ()
    """In rank order. The first one's store is the generation's rendezvous point. Where ``roster`` is set: none of them,
    or just the one that the reader asked for."""
    reason: str
    """Why it was formed, one CamelCase word: Start, Grow, Drain, Lost, Broken, Replace, Suspend, Stop."""
    leader: str
    """Id of the member that wrote it."""
    step: int = 0
    """Committed steps that the leader knew of."""
    ended: tuple[int, ...] = ()
    """Earlier generations that cannot go on, since they lost a member or broke: whoever is in one must give it up."""
    why: str = ""
    """What ended them, in words."""
    roster: Roster | None = None
    """Set where there are too many members for a record that everybody gets."""

    @model_validator(mode="after")
    def _offsets_follow_slots(self) -> Self:
        offset = 0
        for m in self.members if self.roster is None else ():
            if m.rank_offset != offset:
                raise ValueError(f"members: {m.id} has rank_offset {m.rank_offset}, expected {offset}")
            offset += m.slots
        return self

    @property
    def size(self) -> int:
        """Members in all; 0: the order to stop."""
        return self.roster.size if self.roster else len(self.members)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.roster.world_size if self.roster else sum(m.slots for m in self.members)

    @property
    def first(self) -> GenerationMember | None:
        """The member that has rank 0 and serves the store; None for an empty generation."""
        return self.roster.first if self.roster else next(iter(self.members), None)

    @property
    def store(self) -> tuple[str, int] | None:
        """Host and port of the generation's store; None for an empty generation."""
        return (self.first.address, self.first.store_port) if self.first else None

    @cached_property
    def _places(self) -> dict[str, GenerationMember]:
        return {m.id: m for m in self.members}

    @property
    def ids(self) -> Set[str]:
        """Of the members that are listed, in rank order."""
        return self._places.keys()

    def member(self, member_id: str) -> GenerationMember | None:
        return self._places.get(member_id)


class Leader(Record):
    """Who leads: watches all members and writes generations. Held under that member's lease, read by all agents."""

    member: str
    """Id of the member."""
    worker: str
    address: str
    agent_port: int = 0
    """Where it answers probes; 0: it does not."""


class Ended(Record):
    """Generations that cannot go on although no next one was formed yet. Written by the leader, read by all agents."""

    numbers: tuple[int, ...]
    why: str
    """In words."""


PHASES = ("detect", "decide", "connect", "transfer", "first_step")
"""Of a rescale, in their order."""


class Rescale(Record):
    """How one change of generation went, as a survivor saw it. Measured by rank 0 of the new generation."""

    generation: int
    from_size: int
    """Ranks before; 0 at the start."""
    to_size: int
    reason: str
    step: int
    """Committed steps at the switch."""
    pause_seconds: float
    """Last committed step of the old generation to the first of the new one (design page)."""
    lost_steps: int = 0
    """Committed steps that had to be done again."""
    phases: dict[str, float] = {}
    """Seconds by phase: ``detect`` and ``decide`` (unplanned changes only), ``connect`` (in a planned change it goes on
    beside training and is no part of the pause), ``transfer`` (until joiners have the state; the first
    step is computed meanwhile), ``first_step`` (what was left of it)."""


def in_words(phases: Mapping[str, float]) -> str:
    """The phases of a rescale for people: ``detect 21 ms, connect 12 ms, first step 150 ms``."""
    return ", ".join(f"{name.replace('_', ' ')} {seconds * 1000:.0f} ms" for name, seconds in phases.items())


class CheckpointState(Record):
    """The newest durable checkpoint and, if the last attempt failed, why."""

    step: int = 0
    path: str = ""
    error: str = ""
    """Empty when the last attempt succeeded; else the operation, the path and the system's words."""


class Progress(Record):
    """Where training stands. Written by rank 0's agent at most once a second; read by the operator and the CLI."""

    generation: int
    world_size: int
    members: int
    step: int
    total_steps: int | None = None
    epoch: int = 0
    samples: int = 0
    """Samples consumed by committed steps, all epochs."""
    loss: float | None = None
    """Mean loss over the last committed global batch."""
    step_seconds: float | None = None
    """Smoothed time of an undisturbed step."""
    rescales: tuple[Rescale, ...] = ()
    """The newest ten, oldest first."""
    checkpoint: CheckpointState | None = None
    stragglers: tuple[str, ...] = ()
    """Workers that hold the others up (``Member.health`` is ``slow``), by name. Added by rank 0's agent."""
    finished: bool = False
    """The training loop has ended on every rank and the script of rank 0's worker exited with 0."""


class Closed(Record):
    """The job is over for stock torchrun: written by the first of its agents that finished, or gave up for good.

    It lives for a while only, so that the same ``--rdzv-id`` can be used again later.
    """

    member: str
    """Id of the member that wrote it."""
    reason: str
    """``Finished``, ``Failed``, or ``Closed`` where a program called ``set_closed()``."""
    message: str = ""
    """Why it failed, in one line."""


class Outcome(StrEnum):
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


class Termination(Record):
    """Last words of a worker: written by its agent to the termination log, read by the operator or local runner."""

    outcome: Outcome
    step: int = 0
    exit_code: int = 0
    signal: int = 0
    rank: int | None = None
    """Global rank that failed first."""
    reason: str = ""
    """One CamelCase word: ScriptFailed, RankKilled, EtcdUnreachable, EtcdDenied, Usage, ..."""
    message: str = ""
    """What failed, where, in one line."""
    log_tail: str = ""
    """Last lines that the failed rank wrote (bounded: a termination log holds 4096 bytes)."""
