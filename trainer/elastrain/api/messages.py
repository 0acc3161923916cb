"""The messages between an agent and its ranks over a Unix socket: one JSON object per line.

The agent listens on ``$ELASTRAIN_AGENT_SOCKET``; each rank keeps one connection. If a connection ends without
:class:`Finished` or :class:`Left`, the rank is gone. A rank that loses its connection to the agent must end.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from elastrain.api.base import Record, Text, Unreadable, first_error
from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.records import Generation, Progress
from elastrain.api.settings import RankSettings


# ---- rank -> agent -------------------------------------------------------------------------------------------------
class Hello(Record):
    """First message of a rank."""

    type: Literal["hello"] = "hello"
    local_rank: int
    pid: int
    stays: bool = False
    """Its process can become a rank of a new member (:class:`Welcome` again), and keep its state. Otherwise it starts
    again with a killed rank of its worker."""


class Locate(Record):
    """A rank without state asks for the position of the job: its script begins a loop, or waits for the job's next."""

    type: Literal["locate"] = "locate"


class Ready(Record):
    """The rank has built and warmed its model and can connect to a generation at any time.

    ``store_port``: where peers reach the rank. Said again if the script goes on to a later loop before the rank trains.
    """

    type: Literal["ready"] = "ready"
    store_port: int = 0
    step: int = 0
    loop: LoopId = NO_LOOP
    """In which the rank waits."""


class Misplaced(Record):
    """The rank cannot enter a generation now, because its script is in another loop than the other ranks' scripts, or
    they are between two loops. The other ranks must not wait for it."""

    type: Literal["misplaced"] = "misplaced"
    why: Text
    ahead: bool = True
    """The script has left the loop that the job is in, and cannot go back: the rank waits to be started anew. Otherwise
    it goes on, says :class:`Ready` later, and needs another member id for that: :class:`Welcome` follows."""
    member: str = ""
    """The member id that it gives up, if it is not ahead."""


class Adopted(Record):
    """The rank trains in this generation or, if it is not a member, has stopped for it."""

    type: Literal["adopted"] = "adopted"
    generation: int
    step: int
    complete: bool = True
    """False: a part of the rank's state has not arrived yet. Said again when it has."""


class Broken(Record):
    """This rank could not enter the generation, or had to give it up; the step was not committed."""

    type: Literal["broken"] = "broken"
    generation: int
    step: int
    error: Text
    mine: bool = False
    """By a failure of this rank itself; else a peer was lost, or the generation was ended."""
    leaves: bool = False
    """This rank's process ends by that failure: nothing waits for it from now on."""
    unsent: bool = False
    """This rank could not send its state, which it keeps."""


class Report(Record):
    """Progress, from rank 0 at most once a second, at every rescale and checkpoint, and when a loop begins or ends."""

    type: Literal["report"] = "report"
    progress: Progress


class Left(Record):
    """The rank is in no generation, received :class:`Exit`, and ends its loop."""

    type: Literal["left"] = "left"
    step: int


class Diverged(Record):
    """The ranks' scripts do different things. No further generation can mend it: the job has to fail."""

    type: Literal["diverged"] = "diverged"
    why: Text


class Finished(Record):
    """The rank's training loop has ended: all requested steps are committed."""

    type: Literal["finished"] = "finished"
    step: int


class Holds(Record):
    """The rank's script has ended. Its process holds the final state until the script of rank 0 has ended too.

    :class:`Exit` or :class:`Repeat` follows.
    """

    type: Literal["holds"] = "holds"


class Kept(Record):
    """Rank 0 was lost before its script had ended. This rank's process can start again: its state is in the memory of
    its node, or could not be written there."""

    type: Literal["kept"] = "kept"
    why: Text
    holds: bool = True
    """Whether the state was written, or this rank has none to write."""


RankMessage = Annotated[
    Hello | Locate | Ready | Misplaced | Adopted | Broken | Report | Left | Diverged | Finished | Holds | Kept,
    Field(discriminator="type"),
]
RANK_MESSAGE: TypeAdapter[RankMessage] = TypeAdapter(RankMessage)


# ---- agent -> rank -------------------------------------------------------------------------------------------------
class Welcome(Record):
    """Answer to :class:`Hello`. Said again to the other ranks of a worker of which one was killed, or is
    :class:`Misplaced` and not ahead: they are of another member now, in no generation, and not ready."""

    type: Literal["welcome"] = "welcome"
    member: str
    """This member's id; it identifies the rank's place in a generation."""
    address: str
    """Address at which other members reach this one: the network interface of the collectives."""
    node: str = ""
    """Name of the machine; empty: not known."""
    lease_ttl: float
    """Seconds."""
    settings: RankSettings
    first_shard: int = 0
    """The part of a sharded model that local rank 0 holds."""
    step: int = 0
    """Greatest number of committed steps in any report: the number of lost steps if no state is left."""
    saved_step: int = 0
    """Step of the newest durable checkpoint in any report; 0: none was completed. Without a state or a readable
    checkpoint, training must not begin anew if there was one."""


class Located(Record):
    """Answer to :class:`Locate`; also said to a rank that waits in a loop which the job has left."""

    type: Literal["located"] = "located"
    step: int
    """Greatest number of committed steps in any report."""
    training: bool
    """Whether members are in a generation, and so hold the state of about this step."""
    loop: LoopId = NO_LOOP
    """That they were in last."""

    def is_later(self, loop: LoopId) -> bool:
        """Whether members train in a later loop than ``loop``."""
        return self.training and self.loop > loop


class Proposed(Record):
    """The newest generation. A rank in a healthy generation connects to it in the background and switches when all its
    peers can. A rank outside of one, or in a broken one, enters it at once."""

    type: Literal["proposed"] = "proposed"
    generation: Generation


class Abort(Record):
    """A member of this generation is lost: the rank must break off all blocking collectives now."""

    type: Literal["abort"] = "abort"
    generation: int
    reason: Text


class Exit(Record):
    """No generation will include this rank: end the loop and do not delay others."""

    type: Literal["exit"] = "exit"
    reason: Text
    finished: bool = False
    """The job has ended. Else this worker leaves it."""


class Repeat(Record):
    """Rank 0 was lost before its script had ended. A rank that holds the final state writes it to the memory of its
    node and answers :class:`Kept`: its process starts again and repeats what follows the training."""

    type: Literal["repeat"] = "repeat"
    why: Text


AgentMessage = Annotated[Welcome | Located | Proposed | Abort | Exit | Repeat, Field(discriminator="type")]
AGENT_MESSAGE: TypeAdapter[AgentMessage] = TypeAdapter(AgentMessage)


M = TypeVar("M")


def decode(adapter: TypeAdapter[M], line: bytes | str) -> M | None:
    """The message in ``line``; None if its type is unknown, since the other side is of a newer version. Raises
    :class:`Unreadable`."""
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        if error.error_count() > 1 or error.errors(include_url=False)[0]["type"] != "union_tag_invalid":
            raise Unreadable(first_error(error)) from None
        return None
