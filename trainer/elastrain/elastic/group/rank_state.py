"""The state of one rank: what joiners receive and checkpoints contain, between two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastrain.api.settings import DivergenceSpec
from elastrain.api.shape import ONE_RANK, Shape
from elastrain.data.changes import Changes
from elastrain.elastic.boundary import Boundary
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.group.calls import Calls
from elastrain.elastic.group.entry import Entry
from elastrain.elastic.group.report import Reporter
from elastrain.elastic.pauses import Pauses
from elastrain.elastic.replicas.entries import Entries, combined
from elastrain.elastic.replicas.replicas import Replicas
from elastrain.elastic.shares import EqualShares
from elastrain.elastic.state import capture
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.data_order import DataOrder
from elastrain.elastic.state.kept import KeptGradients
from elastrain.elastic.state.trained import KnownParameters, TrainedSet


class RankState:
    """For the training thread."""

    def __init__(
        self,
        tracked: Mapping[str, Stateful],
        keeper: CheckpointKeeper,
        reporter: Reporter,
        divergence: DivergenceSpec | None = None,
        shares: EqualShares | None = None,
        *,
        shape: Shape = ONE_RANK,
    ) -> None:
        """``tracked`` is shared with the job, which adds to it. ``divergence``: default: no comparison. ``shares``:
        of the batch. ``shape``: of a group."""
        self.step = 0
        """Committed steps."""
        self.by = 0
        """The generation whose votes the last of them counts by."""
        self.backwards = 0
        """Of a loop body, that have summed gradients; 0: not known."""
        self.stopped = False
        """Whether training has ended with it, because a rank asked for it."""
        self.calls = Calls()
        """The exchanges of the ranks since."""
        self.pauses = Pauses()
        """Of the loop, between two steps."""
        self.data = DataOrder()
        """The order of the data."""
        self.changes = Changes()
        """Of the script, at a step."""
        self.trained = TrainedSet(tracked, self.data, shape)
        self.kept, self.known = KeptGradients(tracked), KnownParameters(tracked)
        self.replicas = Replicas(tracked, divergence or DivergenceSpec(every_steps=0), may_go_back=keeper.saves_durably)
        """Compared with those of its peers."""
        self.shares = shares or EqualShares()
        """Of the ranks in a global batch."""
        self.on_adopt: Callable[[], None] = lambda: None
        """Called when a newer state is about to replace this one."""
        self.tracked, self.reporter = tracked, reporter
        self._keeper = keeper
        self._entries = Entries(tracked)

    def enter(self, communicator: Communicator, entry: Entry) -> None:
        """A generation begins, and this rank has its state or receives it in the first steps. Raises
        ``GenerationBroken``."""
        self.calls.catch_up(communicator, entry)
        self.shares.enter(entry.paces, entry.ceiling)
        self.replicas.enter(entry.shards, self.step, cold=entry.cold)

    def digest(self, *, anew: bool = False) -> int:
        """Of models and optimizers. ``anew``: what has changed buffers so far does not count, and what was read for a
        comparison of replicas at this boundary is not read again."""
        if anew:
            self._entries.loaded()
        return combined(self._entries.digests(self.replicas.at_boundary if anew else {}))

    def commit(self, step: int, by: int, *, stops: bool) -> None:
        """The tracked objects are those of ``step`` committed steps now."""
        self.step, self.by, self.stopped = step, by, stops
        self.calls.reset()
        self.pauses.served = 0

    def boundary(self, loop_end: int) -> Boundary:
        """The step boundary of this state, in a loop up to ``loop_end`` committed steps."""
        return Boundary(self.step, loop_end, self.stopped, self.pauses.intervals, paused=self.pauses.served)

    def tree(self, *, emptied: bool = False, gradients: bool = True) -> dict[str, Any]:
        """As of :func:`capture.capture`, and all that belongs to it. ``gradients``: with those that are kept."""
        position = {
            "step": self.step,
            "by": self.by,
            "lineage": self._keeper.lineage,
            "stopped": self.stopped,
            "backwards": self.backwards,
            "data": self.data.state(),
            "changes": self.changes.seen,
            "suspect": self.replicas.suspect,
            **self.reporter.state(),
        }
        tracked = capture.capture(self.tracked, emptied=emptied)
        tree = {"tracked": tracked, "position": position, "trained": self.trained.describe()}
        return {**tree, "kept": self.kept.capture()} if gradients and not emptied else tree

    def load(self, tree: dict[str, Any], missing: Callable[[Any], bool] = lambda _leaf: False) -> None:
        """Go on with ``tree``. ``missing``: as of :func:`capture.restore`."""
        position = tree["position"]
        self.data.load(position["data"], position["step"])
        self._keeper.lineage = position["lineage"]
        self.commit(position["step"], position["by"], stops=position["stopped"])
        self.replicas.suspect = position["suspect"]
        self.backwards = position["backwards"]
        self.reporter.load(position)
        self.on_adopt()
        self.changes.before_load(position["changes"])
        self.trained.adopt(tree["trained"])
        capture.restore(self.tracked, tree["tracked"], missing=missing)
        if kept := tree.get("kept"):
            self.kept.load(kept)
        self.replicas.loaded()
