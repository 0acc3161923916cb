"""The phase of an agent's own life."""

from __future__ import annotations

from enum import Enum, auto


class Mode(Enum):
    """The phase of the agent's own life."""

    STARTING = auto()
    """Not registered, or etcd not read yet: no rank runs."""
    RUNNING = auto()
    RESTARTING = auto()
    """The ranks are being reaped, then all restart as a new member."""
    ENDING = auto()
    """The outcome is known; the ranks are being reaped."""
    ENDED = auto()
