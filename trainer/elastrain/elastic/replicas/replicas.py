"""This rank's part in the comparison of replicas: when it is due, and what it says. For the training thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from elastrain.api.settings import DivergenceSpec, WithoutMajority
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.replicas.compare import Judgement, Row
from elastrain.elastic.replicas.entries import Entries, combined
from elastrain.elastic.replicas.schedule import Schedule
from elastrain.elastic.state.capture import Stateful


class Replicas:
    """Of one rank's state."""

    def __init__(self, tracked: Mapping[str, Stateful], settings: DivergenceSpec, *, may_go_back: bool) -> None:
        """``tracked`` is shared with the runtime. ``may_go_back``: the job has checkpoints."""
        self.schedule = Schedule(settings.every_steps)
        self.equal_at = -1
        """As of :attr:`Row.equal_at`."""
        self.shards: Sequence[int] = ()
        """By rank of the generation: the part of the model that it holds."""
        self.taken = 0
        """Times that this rank has taken the state of a majority."""
        self.back = -1
        """While the job goes back: no checkpoint of a later step counts. -1: it does not."""
        self.suspect = False
        """As of :attr:`Row.suspect`; it travels with the state."""
        self._entries = Entries(tracked)
        self._may_go_back = may_go_back and settings.without_majority is WithoutMajority.RESUME
        self.at_boundary: Mapping[str, int] = {}
        """The digests of the present state, if the replicas have been compared at this boundary; otherwise empty."""
        self._digests: dict[str, int] = {}
        """Of the state with which the step began, where it compares."""
        self._due_in = 0
        """The generation in whose step the replicas are compared; 0: in none."""

    # -- states ------------------------------------------------------------------------------------------------------
    def enter(self, shards: Sequence[int], step: int, *, cold: bool) -> None:
        """This rank has its state, or receives it in the first steps. ``cold``: all have the same from one rank
        or checkpoint, of ``step`` committed steps."""
        self.shards = shards
        self.schedule.enter()
        self.loaded()
        if cold:
            self.equal_at, self.back, self.suspect = step, -1, False

    def loaded(self) -> None:
        """The state was replaced."""
        self.at_boundary = {}
        self._entries.loaded()

    def leave_out(self, buffers: Iterable[torch.Tensor]) -> None:
        """As of :meth:`Entries.leave_out`."""
        self._entries.leave_out(buffers)

    # -- a step ------------------------------------------------------------------------------------------------------
    def begin_step(self, generation: int, *, possible: bool, holds: bool) -> None:
        """A step begins in ``generation``. ``possible``: on all ranks alike, a rank could take the state of another one
        at this boundary. ``holds``: this rank has all of its state."""
        self.at_boundary, self._due_in = {}, generation if possible and self.schedule.due else 0
        self._digests = self._entries.digests() if self._due_in and holds else {}

    def take_number(self, communicator: Communicator) -> int | None:
        """What travels with this rank's next vote: a digest of its state, 0 if it has none; None: nothing travels."""
        due, self._due_in = self._due_in == communicator.generation, 0
        return self._number() if due else None

    def number_at_boundary(self) -> int:
        """The same at a pause or the end of a loop."""
        self.at_boundary = self._digests = self._entries.digests()
        return self._number()

    def _number(self) -> int:
        return combined(self._digests) if self._digests else 0

    # -- a difference ------------------------------------------------------------------------------------------------
    def row(self, shard: int) -> Row:
        """What this rank says."""
        return Row(self._digests, shard, self.equal_at, self._may_go_back, self.suspect)

    def equal(self, step: int) -> None:
        """All replicas of the state of ``step`` committed steps are equal."""
        self.equal_at, self.suspect = step, False
        self.schedule.compared()

    def judged(self, judgement: Judgement) -> None:
        """All ranks know what may differ, and where they were equal the last time."""
        self._entries.own |= judgement.own
        self.equal_at = judgement.equal_at

    def go_back(self) -> None:
        """The job goes back to a checkpoint. It does so once: what differs again has its cause in the script."""
        self.back, self._may_go_back = self.equal_at, False
