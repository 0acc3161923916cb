"""How often a rank tries to connect to generations before it ends. Pure except for its own state."""

from __future__ import annotations

from elastrain.elastic.comm.nccl import InitialisationFailed
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.transport import described

OWN_ATTEMPTS = 2
"""Generations in a row that a rank fails to connect to by itself. Then it ends with its own error."""
VAIN_ATTEMPTS = 8
"""Generations in a row that a rank without state cannot connect to because of its peers or the network; about a minute
with the leader's pauses. A rank that holds state waits for its peers without end instead."""


class NotConnected(RuntimeError):
    """No generation could be connected: the network between the workers does not work."""


class Attempts:
    """Those of one rank, since it entered a generation last."""

    def __init__(self) -> None:
        self._own = self._vain = 0
        self._has_trained = False

    @staticmethod
    def is_own(error: BaseException) -> bool:
        """Whether ``error`` is a failure of this rank itself, as far as it can tell."""
        return not isinstance(error, PeerLost | InitialisationFailed)

    def succeeded(self, *, complete: bool) -> None:
        """This rank has entered a generation. ``complete``: with its whole state."""
        self._own = self._vain = 0
        self._has_trained = self._has_trained or complete

    def failed(self, error: BaseException) -> BaseException | None:
        """It could not connect to one. Returns the error by which it ends; None: it tries again."""
        if self.is_own(error):
            self._own += 1
            return error if self._own >= OWN_ATTEMPTS else None
        self._vain += 1
        if self._has_trained or self._vain < VAIN_ATTEMPTS:
            return None
        ended = NotConnected(
            f"could not connect to {self._vain} generations in a row; the last error: {described(error)}"
        )
        ended.__cause__ = error
        return ended
