"""What the agent of a worker writes about itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from elastrain.api.base import Record, Text


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
    health_message: Text = ""
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
