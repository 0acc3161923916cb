"""The state of one rank, from its messages and its process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from elastrain.agent.core.events import RankExited
from elastrain.agent.core.places import Places
from elastrain.api import messages as m
from elastrain.api.loops import NO_LOOP, LoopId


@dataclass(slots=True)
class Rank:
    """One rank in one incarnation of its worker. Changed by the agent's core only."""

    local_rank: int
    joined: bool = False
    """It has sent Hello."""
    stays: bool = False
    """As of its ``Hello``."""
    stands_by: bool = False
    """It keeps its process while a rank of its worker starts again, and has not been ready since."""
    holds: bool = False
    """It has the training state of the last member's generation."""
    pid: int = 0
    """Pid of its Python process, from ``Hello``; a shell around the script has another pid."""
    hung: str = ""
    """Why the agent killed it as hung; empty: it did not."""
    connected: bool = False
    ready: bool = False
    """It has sent Ready (and may have disconnected since)."""
    welcomed: bool = False
    locating: bool = False
    """It has asked for the position of the job."""
    located: LoopId = NO_LOOP
    """That it was told the job is in."""
    loop: LoopId = NO_LOOP
    """In which it waits."""
    misplaced: str = ""
    """Why its process must start anew: its script is ahead of the job; empty: it is not."""
    diverged: str = ""
    """How it differs from its peers in what it does; empty: it does not."""
    store_port: int = 0
    step: int = 0
    proposed: set[int] = field(default_factory=set)
    """Generations that were sent to it."""
    adopted: int = 0
    learning: bool = False
    """A part of its state has not arrived yet."""
    broken: int = 0
    fault: int = 0
    """As of the member's record, with the two that follow."""
    faults: int = 0
    unsent: int = 0
    complaint: str = ""
    """Its last failure of these."""
    failing: str = ""
    """The failure by which its process ends; empty: none."""
    aborted: set[int] = field(default_factory=set)
    """Generations whose abort was sent to it."""
    told_exit: bool = False
    ended: Literal["finished", "left"] | None = None
    """How its training loop ended, from its last message."""
    waits: bool = False
    """Its script has ended, and its process holds the final state for rank 0."""
    told_repeat: bool = False
    kept: str = ""
    """Why its script runs again; it has kept its state, if it could (:attr:`holds`). Empty: it does not."""
    exited: RankExited | None = None

    @property
    def listens(self) -> bool:
        """Whether it reads and executes messages."""
        there = self.connected and self.welcomed and not self.failing
        return there and self.exited is None and self.ended is None

    @property
    def is_held(self) -> bool:
        """Whether its process may hold the final state: its training has ended, and its process has not."""
        return self.ended == "finished" and self.exited is None and self.connected

    @property
    def can_connect(self) -> bool:
        """Whether it could enter a generation now."""
        return self.connected and self.ready and self.exited is None and not self.failing

    @property
    def can_stay(self) -> bool:
        """Whether its process can wait for another rank of its worker that starts again. One that has not joined yet
        receives the new member's id with its first answer."""
        starts = not self.joined and self.exited is None
        return starts or (self.stays and self.listens and not self.told_exit)

    def renewed(self, *, stands_by: bool = False) -> Rank:
        """The same process as a rank of a new member, which is in no generation and not ready."""
        return Rank(
            self.local_rank, joined=self.joined, stays=self.stays, stands_by=stands_by,
            holds=self.holds or (self.adopted > 0 and not self.learning), pid=self.pid, connected=self.connected,
            step=self.step, ended=self.ended, exited=self.exited,
        )  # fmt: skip

    def received(self, message: m.RankMessage, places: Places) -> None:
        """Update the state from a message of the rank. ``places``: its member's."""
        if self.stands_by and isinstance(message, m.Adopted | m.Broken):
            return  # of the generation in which its worker was another member
        match message:
            case m.Hello(pid=pid, stays=stays):
                self.joined = self.connected = True
                self.pid, self.stays = pid, stays
            case m.Locate():
                self.locating = True
            case m.Ready(store_port=port, step=step, loop=loop):
                self.ready, self.store_port, self.step = True, port, max(self.step, step)
                self.stands_by = False
                self.loop = loop
            case m.Misplaced(why=why, ahead=True):
                self.misplaced = why
            case m.Adopted(generation=number, step=step, complete=complete):
                self.learning = not complete
                if complete and places.rank(number, self.local_rank) is not None:
                    self.faults = 0
                self.adopted, self.step = max(self.adopted, number), max(self.step, step)
            case m.Broken(step=step):
                self.step = max(self.step, step)
                self._gave_up(message)
            case m.Report(progress=progress):
                self.step = max(self.step, progress.step)
            case m.Diverged(why=why):
                self.diverged = why
            case m.Left() | m.Finished() | m.Holds() | m.Kept():
                self._ends(message)

    def _ends(self, message: m.Left | m.Finished | m.Holds | m.Kept) -> None:
        match message:
            case m.Left(step=step):
                self.ended, self.step = "left", max(self.step, step)
            case m.Finished(step=step):
                self.ended, self.step = "finished", max(self.step, step)
            case m.Holds():
                self.waits = True
            case m.Kept(why=why, holds=holds):
                self.kept, self.holds = why, holds

    def _gave_up(self, message: m.Broken) -> None:
        """It has left a generation, or could not enter it."""
        number, trains = message.generation, self.broken < self.adopted < message.generation
        self.failing = message.error if message.leaves else self.failing
        if message.mine:
            self.complaint = message.error
            self.unsent += message.unsent
            self.faults += not message.unsent
        if message.mine and trains and not message.unsent and not message.leaves:
            self.fault = max(self.fault, number)  # it has tried to connect beside the steps of the older one
        else:
            self.broken = max(self.broken, number)

    def hung_up(self) -> None:
        """Its connection ended. Without ``Left`` or ``Finished`` before, the generation it was in is broken."""
        if self.connected and self.ended is None:
            self.broken = max(self.broken, self.adopted)
        self.connected = False
