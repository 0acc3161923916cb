"""Code of the script between two steps: pauses of the loop, code after it, and what all ranks exchange there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from elastrain.data.share import Place
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.contract import Phase
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import LoopOver
from elastrain.elastic.group.world import World


class Between:
    """One rank's script between its steps. For the training thread."""

    def __init__(self, world: World, heartbeat: Heartbeat, settle: Callable[..., None]) -> None:
        """``settle(between=True)``: as of :meth:`World.settle`; raises ``Drained``."""
        self.passed = False
        """Whether the job has gone on without this rank: its script runs alone up to its next step."""
        self.asked = False
        """Whether the script has asked for the next step boundary."""
        self.at_boundary = False
        """Whether it runs there."""
        self.once = world.once
        self._world, self._heartbeat, self._settle = world, heartbeat, settle

    def stand(self) -> Iterator[None]:
        """The script runs at the step boundary for which it has asked."""
        self.asked, self.at_boundary = False, True
        self._heartbeat.outside()
        try:
            yield
        finally:
            self.at_boundary = False

    @property
    def phase(self) -> Phase:
        """Where the script is between its steps, outside of a function of ``job.every()``."""
        if self.at_boundary:
            return Phase.BOUNDARY
        return Phase.PASSED if self.passed else Phase.BETWEEN

    @property
    def place(self) -> Place:
        """This rank's place in the generation in force; rank -1 of 1 if the job has gone on without it."""
        return self._world.place

    def leave_behind(self) -> None:
        """The job has gone on without this rank."""
        self._heartbeat.outside()
        self.passed, self.asked = True, False

    def meets(self) -> bool:
        """Return in a healthy generation; or False if this rank meets no other before its next step.

        The others may have gone on while it was in no generation. It cannot receive their state here: the script would
        go on with the code of an earlier step. Raises ``Drained``.
        """
        if not self.passed:
            try:
                self._settle(between=True)
            except LoopOver:
                self.leave_behind()
        return not self.passed

    def computes(self) -> None:
        """This rank begins a batch of an evaluation."""
        self._heartbeat.body(self.place.generation, self.place.world_size)

    @property
    def missed(self) -> bool:
        """Whether the next exchange gives a result that this rank has missed."""
        return self._world.state.calls.handed

    def attempt(self, kind: Kind, mine: bytes) -> list[bytes] | None:
        """As :meth:`exchange`, in the generation in force; None: it has broken."""
        self._heartbeat.waits()
        result = self._world.exchange(kind, mine)
        self._heartbeat.outside()
        return result

    def exchange(self, kind: Kind, mine: bytes) -> list[bytes]:
        """``mine`` of every rank, by rank; of this rank alone if it meets no other. Raises ``Drained``.

        A lost rank is waited for no longer than in a step.
        """
        while self.meets():
            if (result := self.attempt(kind, mine)) is not None:
                return result
        return [mine]
