"""How the ranks hold the model: what a rank's place in the world depends on it."""

from __future__ import annotations

from collections.abc import Callable

from elastrain.api.records import Generation
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.group.entry import Entry, EntryRow
from elastrain.elastic.group.shell import Session

Resume = Callable[[Entry, Communicator], Entry]
"""Continue from the newest checkpoint, or begin to train. Returns the entry by which the others receive the state."""


class WholeCopies:
    """Each rank, or each group of ranks, holds a whole copy, so that a peer has what another one lacks.

    :class:`elastrain.elastic.one_copy.OneCopy` is the other way. :class:`World` calls the methods on all ranks
    of a generation, at the same step boundaries.
    """

    apart = False
    """Whether sharded tensors travel apart from the rest of the state."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def holds(self) -> bool:
        """Whether this rank has its part of the model."""
        return True

    @property
    def placement(self) -> tuple[int, int]:
        """Number of shards of the model, and the one that is this rank's."""
        shards = self._session.welcome.settings.shards
        assert shards != "all", "that is one copy"
        return shards, self._session.shard

    # -- steps -------------------------------------------------------------------------------------------------------
    def begin_loop(self) -> None:
        """A loop of the script begins."""

    def committed(self, copying: int, *, switches: bool) -> None:
        """A step was committed. ``copying``: as of :attr:`ElasticModule.copying`. ``switches``: the ranks agreed to."""

    def complete(self) -> None:
        """There is no further step."""

    # -- changes of generation ---------------------------------------------------------------------------------------
    def hand_over(self, old: Communicator | None, *, stays: bool) -> None:
        """The ranks have agreed to leave ``old``, which is None if it has broken since. ``stays``: this one goes on.

        Raises ``GenerationBroken``.
        """

    def may_be_needed(self, without: Generation, *, complete: bool) -> bool:
        """After a loss, a generation has formed ``without`` this rank, whose state is ``complete``. Returns whether a
        further one may need what it holds."""
        return False

    def contribution(self, row: EntryRow, generation: Generation) -> EntryRow:
        """``row`` with all that this rank can give to ``generation``."""
        return row

    def begin(self, entry: Entry, communicator: Communicator, resume: Resume) -> Entry:
        """The ranks have met: before the state travels as ``entry`` says. Raises ``GenerationBroken``."""
        return resume(entry, communicator) if entry.cold else entry

    def enter(self, entry: Entry, communicator: Communicator) -> Entry:
        """The state has arrived, or arrives in the first steps. Raises ``GenerationBroken``."""
        return entry
