"""The records in etcd. Each docstring names the record's writer and readers.

Records are small JSON documents. A newer writer and an older reader share a job during an upgrade: readers ignore
unknown fields, keep unknown words of an enum as they are, and do without fields that are only shown and cannot be read.
Any other record that cannot be read is unreadable, and its readers decide nothing from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from elastrain.api.base import Record
from elastrain.api.batch import BatchFigures, RankShare


class Target(Record):
    """The target of a job. Written by the operator or the local runner, read by every agent."""

    min: Annotated[int, Field(ge=1)]
    """Smallest number of members of a generation."""
    max: Annotated[int, Field(ge=1)]
    """Largest number of members of a generation."""
    desired: Annotated[int, Field(ge=0)]
    """Desired number of members. 0: all members leave (suspend)."""
    leaving: tuple[str, ...] = ()
    """Names of workers (pods, not member ids) to exclude from the next generation."""
    reason: str = ""
    """Reason of the target, one CamelCase word; the generation inherits it."""
    above: int = 0
    """Numbers of new generations are greater. Set after a loss of etcd's data, which may leave no member that knows the
    last number."""


class Phase(StrEnum):
    """The phase of a member's life. A reader may meet another word, of a newer agent: it is none of these phases."""

    WARMING = "warming"
    """The agent runs; its ranks are not ready for a generation (starting, building the model, restarting)."""
    READY = "ready"
    """All ranks can connect to a next generation now. Members of a running generation that can switch in process stay
    ready; a stock torchrun member is ready only while it is in the rendezvous."""
    LEAVING = "leaving"
    """The agent was asked to stop: it trains until a generation without it is in force."""
    FINISHED = "finished"
    """All ranks have ended the training loop. No further generation is formed."""


UNREADABLE = "unreadable"
"""Phase of a member whose record cannot be read: it exists, and nothing else is known of it."""


class Health(StrEnum):
    """The health of a member's ranks, as judged by its agent (``agent/core/health.py``)."""

    OK = ""
    WAITING = "waiting"
    """The ranks have waited for others in a collective for unusually long."""
    SLOW = "slow"
    """A straggler: its ranks compute several times as long per step as the other ranks."""
    STUCK = "stuck"
    """One rank does not return from the script's code while others wait for it."""
    UNFIT = "unfit"
    """By failures of their own, its ranks cannot connect to peers, or cannot send their state to new ones."""
    BELOW_MIN = "belowMin"
    """The ranks could train, but fewer than ``target.min`` members are ready."""


class PartOfState(Record):
    """Which part of the training state a member holds, for its whole life."""

    group: int = 0
    """Number of its group; only if a group has several workers."""
    place: Annotated[int, Field(ge=0)] = 0
    """Its place in the group: which shards of the model its ranks hold."""
    group_size: Annotated[int, Field(ge=1)] = 1
    """Workers of a group. A generation has whole groups only."""
    one_copy: bool = False
    """All members of a generation hold one copy of the state together: each has parts that no other one has."""


class Member(PartOfState):
    """One incarnation of a worker's agent. Written by that agent under its lease; read by all agents and the operator.

    A dead rank ends its member: the agent deletes the key and, if it restarts the rank, registers under a new id. So a
    member of ``generation`` without a key is lost, for any cause.
    """

    shown = frozenset({"node", "restarts", "health", "health_message", "health_rank"})

    id: str
    """Unique for all time: ``<worker>.<random>``."""
    worker: str
    """Name of the pod (or local worker)."""
    node: str = ""
    pod: str = ""
    """UID of its pod; empty: it is in none, or its worker's image is older than this field."""
    address: str
    """Host or IP at which other members reach this member."""
    store_port: int = 0
    """TCP port of this member's store, for generations in which it comes first; 0 until ready."""
    slots: Annotated[int, Field(ge=1)] = 1
    """Ranks of this member."""
    phase: Annotated[Phase | str, Field(union_mode="left_to_right")] = Phase.WARMING
    generation: int = 0
    """Number of the generation that all its ranks have adopted; 0: none yet. The member that holds the generation's
    rank 0, or is not in the generation, writes it at once: ranks adopt together, so one report is enough. Other members
    write it with their next change."""
    step: int = 0
    """Committed steps when the record was written; not a heartbeat."""
    broken: int = 0
    """Greatest generation number whose collectives this member saw fail; 0: none. Not written if the leader has already
    ended that generation."""
    fault: int = 0
    """Greatest generation number that this member could not enter by a failure of its own, while it trained on in an
    older one; 0: none."""
    faults: int = 0
    """Generations in a row that this member could not enter by a failure of its own."""
    unsent: int = 0
    """Times that its ranks could not send their state to new members by a failure of their own."""
    learning: bool = False
    """A part of the training state of its ranks has not arrived yet, in the generation that they have adopted."""
    holds: bool = False
    """Its ranks hold the whole training state, or all shards of their worker, although it has been in no generation:
    they have kept their processes when another rank of the worker was killed."""
    restarts: int = 0
    """In-place restarts of this worker's ranks."""
    health: str = Health.OK
    """A value of :class:`Health`; readers keep unknown values unchanged."""
    health_message: str = ""
    """The health as a sentence. Written when ``health`` changes, not with each new measurement."""
    health_rank: int | None = None
    """Local rank that is slow or stuck; None: no single rank."""

    @property
    def part(self) -> PartOfState | None:
        """None: a whole copy."""
        part = PartOfState(**self.model_dump(include=set(PartOfState.model_fields)))
        return None if part == PartOfState() else part

    def unread(self) -> Self:
        """This member, after its record has become unreadable."""
        return self.model_copy(update={"phase": UNREADABLE})

    @classmethod
    def unknown(cls, member_id: str) -> Self:
        """A member of which only the key is known."""
        return cls(id=member_id, worker=member_id.rpartition(".")[0] or member_id, address="", phase=UNREADABLE)


class GenerationMember(Record):
    """A member's place in a generation."""

    model_config = ConfigDict(extra="allow")  # members write a generation again after a loss of etcd's data

    id: str
    worker: str
    address: str
    store_port: int
    slots: Annotated[int, Field(ge=1)] = 1
    rank_offset: Annotated[int, Field(ge=0)]
    """Global rank of its local rank 0."""
    part: PartOfState | None = None
    """None: a whole copy. A leader that has not seen the member's own record knows by it who may replace it."""


class Roster(Record):
    """Replaces the member list in the record of a large generation; the members are in ``roster/``, in parts."""

    model_config = ConfigDict(extra="allow")  # members write a generation again after a loss of etcd's data

    size: Annotated[int, Field(ge=1)]
    """Members."""
    world_size: Annotated[int, Field(ge=1)]
    """Ranks."""
    first: GenerationMember
    parts: Annotated[int, Field(ge=1)]
    """Number of keys that hold the members: see :mod:`elastrain.api.roster`."""


class Generation(Record):
    """A numbered, immutable set of members that train together. Written by the leader by compare-and-swap.

    Numbers grow without gaps. An empty set orders a stop at a step boundary: all members checkpoint, leaving members
    exit, and the others keep their state and wait for the next generation.
    """

    model_config = ConfigDict(
        extra="allow",  # members write a generation again after a loss of etcd's data
        hide_input_in_errors=True,  # an error of validation would quote the secret
    )

    number: Annotated[int, Field(ge=1)]
    members: tuple[GenerationMember, ...] = ()
    """Members in rank order. The first member's store is the generation's rendezvous point. With ``roster``: empty, or
    only the member that the reader requested."""
    reason: str
    """Reason of its formation, one CamelCase word: Start, Grow, Drain, Lost, Broken, Replace, Suspend, Stop."""
    leader: str
    """Id of the member that wrote it."""
    step: int = 0
    """Committed steps known to the leader."""
    ended: tuple[int, ...] = ()
    """Earlier generations that lost a member or broke; their members must leave them."""
    why: str = ""
    """The cause of their end."""
    roster: Roster | None = None
    """Set if the generation has too many members for a record that all members receive."""
    secret: Annotated[str, Field(repr=False)] = ""
    """32 random bytes in hexadecimal digits, by which its ranks prove to each other that they belong to it. Only the
    job's own user of etcd can read the record; nothing else may contain the secret."""

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
        """Number of members; 0: the order to stop."""
        return self.roster.size if self.roster else len(self.members)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.roster.world_size if self.roster else sum(m.slots for m in self.members)

    @property
    def first(self) -> GenerationMember | None:
        """The member with rank 0, which serves the store; None for an empty generation."""
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
        """Ids of the listed members, in rank order."""
        return self._places.keys()

    def member(self, member_id: str) -> GenerationMember | None:
        return self._places.get(member_id)


class Leader(Record):
    """The leader: it watches all members and writes generations. Held under that member's lease, read by all agents."""

    member: str
    """Id of the member."""
    worker: str
    address: str


class Ended(Record):
    """Broken generations without a successor yet. Written by the leader, read by all agents."""

    numbers: tuple[int, ...]
    why: str
    """In words."""


PHASES = ("detect", "decide", "connect", "transfer", "first_step")
"""Phases of a rescale, in order."""


class Rescale(Record):
    """One rescale, as measured by rank 0 of the new generation, a survivor."""

    generation: int
    from_size: int
    """Ranks before; 0 at the start."""
    to_size: int
    reason: str
    step: int
    """Committed steps at the switch."""
    pause_seconds: float
    """Seconds from the last committed step of the old generation to the first of the new one."""
    lost_steps: int = 0
    """Committed steps that were repeated."""
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase: ``detect`` and ``decide`` (unplanned changes only); ``connect`` (in a planned change it
    overlaps training and is not part of the pause); ``transfer`` (until joiners have the state; the first step is
    computed meanwhile); ``first_step`` (its remainder)."""


def in_words(phases: Mapping[str, float]) -> str:
    """The phases of a rescale as text: ``detect 21 ms, connect 12 ms, first step 150 ms``."""
    return ", ".join(f"{name.replace('_', ' ')} {seconds * 1000:.0f} ms" for name, seconds in phases.items())


class Resumed(Record):
    """The checkpoint from which a job went on when no worker held the training state."""

    step: int
    tier: str
    """memory, volume or object store."""
    path: str


class CheckpointState(Record):
    """The newest durable checkpoint, and the error of the last attempt if it failed."""

    step: int = 0
    path: str = ""
    error: str = ""
    """Empty if the last attempt succeeded; else the operation, the path and the system's message."""
    archived_step: int = 0
    """Step of the newest copy in ``spec.checkpoint.archive``; 0: none is known."""
    archive_error: str = ""
    """Empty if the last copy to it succeeded."""
    resumed: Resumed | None = None
    """Until the next save."""


class Progress(Record):
    """The progress of training. Written by rank 0's agent at most once a second; read by the operator and the CLI."""

    shown = frozenset(
        {"total_steps", "goal", "epoch", "samples", "loss", "step_seconds", "rescales", "stragglers", "batch", "shares"}
    )

    generation: int
    world_size: int
    members: int
    step: int
    total_steps: int | None = None
    """Committed steps at the end of the present loop: joiners enter it."""
    nth_loop: int = 0
    """As of :attr:`elastrain.api.loops.LoopId.nth`, of the present loop."""
    goal: int | None = None
    """Committed steps at the end of ``job.epochs``, of which the present loop is a part; None: the script has none."""
    epoch: int = 0
    samples: int = 0
    """Samples of committed steps, over all epochs."""
    loss: float | None = None
    """Mean loss over the last committed global batch."""
    step_seconds: float | None = None
    """Smoothed duration of an undisturbed step, in seconds; with ``batch``, for each batch of the script in it."""
    batch: BatchFigures | None = None
    """Of a job with ``spec.batch``: ``step``, ``total_steps`` and ``goal`` then count batches of the script."""
    shares: tuple[RankShare, ...] = ()
    """With ``spec.shares: Measured``, once the generation has decided: of at most 16 ranks, slowest first."""
    rescales: tuple[Rescale, ...] = ()
    """The newest ten, oldest first."""
    checkpoint: CheckpointState | None = None
    stragglers: tuple[str, ...] = ()
    """Names of workers that delay the others (``Member.health`` is ``slow``). Added by rank 0's agent."""
    finished: bool = False
    """The training loop has ended on every rank, and the script of rank 0's worker exited with 0."""


class Issued(Record):
    """The issued credentials for etcd of the job's workers. Written by the operator once the job's user of etcd and the
    Secret exist; read by the operator only.

    The record lives in the same etcd as the user: an etcd that loses its data loses both, and the operator recreates
    both.
    """

    ca: str
    """SHA-256 (hex) of the CA certificates in the Secret."""
    key: str
    """Name of the key, and of the cluster, from which password and user are derived; not a secret."""


class Closed(Record):
    """The end of the job for stock torchrun. Written by the first of its agents that finishes, or fails for good.

    The record expires, so that the same ``--rdzv-id`` can be reused later.
    """

    member: str
    """Id of the member that wrote it."""
    reason: str
    """``Finished``, ``Failed``, or ``Closed`` if a program called ``set_closed()``; or ``names.DIVERGED``."""
    message: str = ""
    """The cause of a failure, in one line."""


class Outcome(StrEnum):
    """How a worker ended. Of a newer agent's word the exit code decides."""

    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


class Termination(Record):
    """The end of a worker. Written by its agent to the termination log, read by the operator or local runner."""

    shown = frozenset({"rank", "reason", "message", "log_tail"})

    outcome: Annotated[Outcome | str, Field(union_mode="left_to_right")]
    step: int = 0
    exit_code: int = 0
    signal: int = 0
    rank: int | None = None
    """Global rank of the first failure."""
    reason: str = ""
    """One CamelCase word: ScriptFailed, RankKilled, EtcdUnreachable, EtcdDenied, Usage, ..."""
    message: str = ""
    """The failure and its place, in one line."""
    log_tail: str = ""
    """Last lines of the failed rank (bounded: a termination log holds 4096 bytes)."""
