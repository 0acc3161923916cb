"""Inputs of a rank's state machine (events) and its outputs (effects), as plain values.

Connections are named by the number of their generation. The messages of the agent are events as they are
(:data:`elastrain.api.messages.AgentMessage`).
"""

from __future__ import annotations

from dataclasses import dataclass

from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.messages import AgentMessage, RankMessage
from elastrain.api.records import Generation


# ---- events: the agent and the connections -------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class AgentGone:
    """The agent's messages have ended."""

    why: str


@dataclass(frozen=True, slots=True)
class Connected:
    """This rank is connected to all peers of a proposed generation."""

    generation: Generation


@dataclass(frozen=True, slots=True)
class NotConnected:
    """It could not connect to them."""

    generation: Generation
    error: str
    own: bool
    """By a failure of this rank itself, as far as it can tell; else of a peer or of the network."""


@dataclass(frozen=True, slots=True)
class Over:
    """No further step can be computed over these connections: a peer was lost, or this rank ended them."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class FailedItself:
    """This rank itself has failed in a generation, and its process ends by that."""

    number: int
    error: str


@dataclass(frozen=True, slots=True)
class Tick:
    """The machine's deadline has passed."""


# ---- events: the training thread -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Ready:
    """The script waits in a loop: a generation may include this rank."""

    store_port: int
    step: int
    """Committed steps."""
    loop: LoopId = NO_LOOP


@dataclass(frozen=True, slots=True)
class Locates:
    """It waits for the position of the job: :attr:`Core.located`."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The training thread is between two steps, and waits for an instruction; or it waits for the missed result of its
    vote."""

    holds: bool
    """It has the state."""
    loop: LoopId | None = None
    """Of the script's loop; None: the script does not go on to a later one."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The sum of a committed step, or of an exchange, has arrived: all ranks switch at the next boundary, or none."""

    number: int | None
    """The generation to which they switch."""


@dataclass(frozen=True, slots=True)
class Entered:
    """The ranks of a generation have the same state, and train."""

    generation: Generation
    step: int
    complete: bool
    """False: a part of this rank's state has not arrived yet. Said again when it has."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """This rank trains no more, for a generation that does not include it."""

    number: int
    step: int


@dataclass(frozen=True, slots=True)
class GaveUp:
    """This rank has left a broken generation."""

    number: int
    step: int
    error: str
    unsent: bool = False
    """It could not send its state, which it keeps."""


@dataclass(frozen=True, slots=True)
class CatchesUp:
    """The script returns to its code and goes on to the loop of the job, to enter the present generation there."""


@dataclass(frozen=True, slots=True)
class Withdraws:
    """This rank can enter no generation until its script is elsewhere: no peer may wait for it."""

    why: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The training thread has noticed that this rank is of a new member, and not ready."""


@dataclass(frozen=True, slots=True)
class Answered:
    """This rank has answered the agent's :class:`elastrain.api.messages.Repeat`."""


@dataclass(frozen=True, slots=True)
class Closed:
    """This rank has left the job."""


OfConnections = AgentGone | Connected | NotConnected | Over | FailedItself
OfScript = Ready | Locates | Boundary | CatchesUp | Tick | Withdraws | Renewed | Answered | Closed
OfGenerations = Agreed | Entered | Stopped | GaveUp
Event = AgentMessage | OfConnections | OfScript | OfGenerations


# ---- effects -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the agent."""

    message: RankMessage


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the peers of a generation, beside the steps. :class:`Connected` or :class:`NotConnected` follows,
    unless the machine needs the connection no longer (:meth:`Core.needs`)."""

    generation: Generation
    rank: int


@dataclass(frozen=True, slots=True)
class CallOff:
    """No further step begins over these connections; the one under way may still count."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End them at once."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Close:
    """Release them, beside the steps."""

    number: int


# ---- effects: the instruction to the training thread, one for each boundary ------------------------------------------
@dataclass(frozen=True, slots=True)
class Train:
    """Compute the next step in the generation in force."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave a generation that is over. :class:`GaveUp` follows."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Meet the ranks of a generation. :class:`Entered`, :class:`GaveUp`, :class:`CatchesUp` or :class:`Withdraws`
    follows."""

    generation: Generation
    agreed: bool = False
    """All ranks of the generation in force have agreed to leave it now."""


@dataclass(frozen=True, slots=True)
class StopFor:
    """Leave the generation in force, if any, for one that does not include this rank. :class:`Stopped` follows; or
    nothing, if this rank waits for a further generation first."""

    generation: Generation
    agreed: bool = False


@dataclass(frozen=True, slots=True)
class StandBack:
    """This rank is of another member soon: end what it enters, and try again. :class:`Renewed` and :class:`Ready`
    follow."""


@dataclass(frozen=True, slots=True)
class GoOn:
    """The job is in a later loop: the script goes on to it."""

    loop: LoopId


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent has asked this rank to end, or is gone."""


@dataclass(frozen=True, slots=True)
class Fail:
    """This rank cannot connect to any generation: its process ends."""

    number: int
    """The last one."""
    attempts: int
    """Generations in a row that it could not connect to because of its peers or the network; 0: by itself."""


AtBoundary = Train | GiveUp | Enter | StopFor | StandBack | GoOn
"""Those that the training thread executes itself."""
Instruction = AtBoundary | Leave | Fail
Effect = Send | Connect | CallOff | Abort | Close | Instruction
