"""The states of a rank in its job, and what leads from one to another (:class:`~.core.Core`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class State(Enum):
    """The place of a rank."""

    APART = "not ready: no generation may include it"
    WAITS = "ready, and in no generation: it enters the next one to which it is connected"
    ENTERS = "meets the ranks of a generation, or lets its script catch up with theirs"
    RECEIVES = "in a generation; a part of its state has not arrived yet"
    TRAINS = "in a generation, with all of its state"
    SWITCHES = "in a generation whose ranks enter another one at the next step boundary"
    WITHDRAWN = "its member id is of no use any more; the agent has not named the next one"
    REPLACED = "the agent has named the next one; the training thread has not noticed"
    CLOSED = "it has left the job; its process may still wait for the end of rank 0's script"


class Move(Enum):
    """What changes the state."""

    READY = auto()
    ENTER = auto()
    ENTERED_IN_PART = auto()
    ENTERED = auto()
    AGREED = auto()
    NOT_AGREED = auto()
    LEFT = auto()
    """It is in no generation, since that is broken, or replaced by one without this rank."""
    WITHDRAWN = auto()
    REPLACED = auto()
    RENEWED = auto()
    CLOSED = auto()


_S, _M = State, Move
_ANYWHERE = {_M.WITHDRAWN: _S.WITHDRAWN, _M.REPLACED: _S.REPLACED, _M.CLOSED: _S.CLOSED}
TRANSITIONS: Mapping[State, Mapping[Move, State]] = {
    _S.APART: {_M.READY: _S.WAITS, _M.LEFT: _S.APART, **_ANYWHERE},
    _S.WAITS: {_M.READY: _S.WAITS, _M.ENTER: _S.ENTERS, _M.LEFT: _S.WAITS, **_ANYWHERE},
    _S.ENTERS: {
        _M.READY: _S.ENTERS, _M.ENTER: _S.ENTERS, _M.ENTERED: _S.TRAINS, _M.ENTERED_IN_PART: _S.RECEIVES,
        _M.NOT_AGREED: _S.ENTERS, _M.LEFT: _S.WAITS, **_ANYWHERE,
    },
    _S.RECEIVES: {
        _M.ENTERED: _S.TRAINS, _M.AGREED: _S.SWITCHES, _M.NOT_AGREED: _S.RECEIVES, _M.LEFT: _S.WAITS, **_ANYWHERE,
    },
    _S.TRAINS: {
        _M.ENTERED: _S.TRAINS, _M.AGREED: _S.SWITCHES, _M.NOT_AGREED: _S.TRAINS, _M.LEFT: _S.WAITS, **_ANYWHERE,
    },
    _S.SWITCHES: {
        _M.ENTER: _S.ENTERS, _M.ENTERED: _S.SWITCHES, _M.AGREED: _S.SWITCHES, _M.NOT_AGREED: _S.TRAINS,
        _M.LEFT: _S.WAITS, **_ANYWHERE,
    },
    # What the training thread was about to do goes on; the boundary that follows ends it.
    _S.WITHDRAWN: {**dict.fromkeys(_M, _S.WITHDRAWN), **_ANYWHERE},
    _S.REPLACED: {**dict.fromkeys(_M, _S.REPLACED), _M.RENEWED: _S.APART, _M.CLOSED: _S.CLOSED},
    _S.CLOSED: dict.fromkeys(_M, _S.CLOSED),
}  # fmt: skip
"""By state: the moves that it permits, and where they lead."""
