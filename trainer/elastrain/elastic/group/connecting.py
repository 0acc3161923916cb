"""Connects a rank to proposed generations, in a short-lived thread for each, while training goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog
import torch

from elastrain import threads
from elastrain.api.messages import Welcome
from elastrain.api.records import Generation
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock.captures import CAPTURES
from elastrain.elastic.comm.stock.nccl import InitialisationFailed
from elastrain.elastic.comm.transport import CalledOff, described, first_line

log = structlog.get_logger(__name__)


class Connector:
    """For one rank."""

    def __init__(
        self,
        welcome: Callable[[], Welcome],
        needs: Callable[[Generation], bool],
        ended: Callable[[Generation, Communicator | BaseException], None],
        failed: Callable[[int, BaseException], None],
    ) -> None:
        """``needs(g)``: whether a connection to ``g`` is of use. ``ended(g, result)`` is called in the thread; it owns
        the communicator from then on. ``failed``: as of :class:`Communicator`."""
        self._welcome, self._needs, self._ended, self._failed = welcome, needs, ended, failed
        self._offer, self._device = Offer(), torch.device("cpu")
        self._listener: Listener | None = None

    def listener(self) -> Listener:
        """Where peers reach this rank, from the first call on. Raises ``OSError``."""
        self._listener = self._listener or Listener(self._welcome().address)
        return self._listener

    def close(self) -> None:
        """Let no peer reach this rank any more."""
        if self._listener is not None:
            self._listener.close()

    def use(self, offer: Offer, device: torch.device) -> None:
        """Set the transport that this rank can use for tensors on ``device``."""
        self._offer = replace(offer, failed=self._offer.failed, proven=self._offer.proven)
        self._device = device
        if Backend.NCCL in (offer.backend, offer.inner):
            CAPTURES.watch()

    def entered(self, communicator: Communicator) -> None:
        """This rank has entered a generation."""
        self._offer = replace(self._offer, proven=self._offer.proven or communicator.sums_by == "nccl")

    def start(self, g: Generation, rank: int) -> None:
        """Connect as ``rank`` of ``g``."""
        # Not a daemon thread: returning from C++ into an interpreter that shuts down would abort the process. It is
        # called off when the session closes.
        threads.start(self._connect, g, rank, name=f"elastrain-connect-{g.number}", daemon=False)

    def _connect(self, g: Generation, rank: int) -> None:
        def called_off() -> bool:
            return not self._needs(g)

        try:
            communicator = Communicator(
                of=g,
                rank=rank,
                listener=self.listener(),
                offer=self._offer,
                device=self._device,
                called_off=called_off,
                failed=self._failed,
            )
        except CalledOff:
            return
        except BaseException as e:  # of any kind: the rank would wait for this connection without end
            if not called_off():
                self._note(g, e)
                self._ended(g, e)
            return
        self._ended(g, communicator)

    def _note(self, g: Generation, error: BaseException) -> None:
        own = is_own(error)
        log.warning(
            "could not connect to a proposed generation", generation=g.number, error=described(error), exc_info=own
        )
        if isinstance(error, InitialisationFailed) and self._welcome().settings.backend == "auto":
            self._offer = replace(self._offer, failed=first_line(error))
            if not self._offer.proven:
                log.warning("the next attempt uses TCP instead of NCCL", because=self._offer.failed)


def is_own(error: BaseException) -> bool:
    """Whether ``error`` is a failure of this rank itself to connect, as far as it can tell."""
    return not isinstance(error, PeerLost | InitialisationFailed)


def close_in_background(communicator: Communicator) -> None:
    """Close ``communicator`` in a thread, while training goes on.

    Not a daemon thread: returning from C++ into an interpreter that shuts down would abort the process.
    """
    threads.start(lambda: communicator.close(together=True), name="elastrain-close", daemon=False)
