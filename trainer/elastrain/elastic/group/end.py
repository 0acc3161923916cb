"""The end of a rank's script. It ends with the job's: the scripts of all ranks run again if that of rank 0 cannot."""

from __future__ import annotations

import contextlib
import sys
from typing import NoReturn

import structlog

from elastrain.elastic.comm.header import Kind
from elastrain.elastic.group.ending import RankZeroLost, hold, kept
from elastrain.elastic.group.shell import ExitRequested, Session
from elastrain.elastic.group.world import World
from elastrain.elastic.undo.leaves import Leaves
from elastrain.link import AgentLost, MessageFailed

log = structlog.get_logger(__name__)


class End:
    """Of one rank. For the training thread."""

    def __init__(self, world: World, session: Session, leaves: Leaves) -> None:
        """``leaves``: what they were behind the last loop."""
        self._world, self._session, self._leaves = world, session, leaves

    def finish(self) -> None:
        """Return when every rank of the generation has committed its last step: until then their state may be needed.

        A rank that never trained returns at once. Raises ``ExitRequested`` if the others have ended already, if this
        worker leaves, or if its script has to run again.
        """
        world = self._world
        if not world.has_state:
            world.position.check_end(world.partial_state)
            return
        world.once.ends = True
        try:
            world.settle()
            assert world.generation is not None
            world.once.check(world.generation)
            while world.exchange(Kind.END) is None:
                world.settle()  # in the next generation
        except RankZeroLost as e:
            self._start_again(str(e))
        world.save_now(healthy=True)

    @property
    def may_hold(self) -> bool:
        """Whether this rank holds the final state for rank 0 while that runs its script to the end."""
        return self._world.has_state and self._world.place.rank > 0

    def hold(self) -> None:
        """The process ends: first wait for the script of rank 0. Not if this script has failed."""
        failed = getattr(sys, "last_value", None) is not None
        with contextlib.suppress(ExitRequested, AgentLost, MessageFailed):
            if not failed and (why := hold(self._session)):
                self._start_again(why)

    def _start_again(self, why: str) -> NoReturn:
        """The scripts of all ranks run again, from the state after the last step. Raises as of :func:`kept`."""
        log.warning("the script runs again, from the state after its last step", step=self._world.step, why=why)
        kept(self._session, why, holds=self._is_final() and self._world.saving.keep(self._world.step))

    def _is_final(self) -> bool:
        """Whether this rank has the state after the last step. What code behind the loop has changed is put back: it
        runs a second time."""
        world = self._world
        if world.has_state:
            self._leaves.restore()
        changed = bool(world.once.state) and world.once.state != world.state.digest()
        if changed:
            log.warning("code after the training has changed models or optimizers, and it cannot be put back")
        return world.has_state and not changed
