"""The order of the data as a part of the state: compared on entry of a generation, on resume, and as a loop or an epoch
begins, of a sampler by the indices of that epoch.

A rank whose data differs from that of the others fails with both values. The others continue without it: for them it is
lost. A job that resumes with other data than that of its checkpoint fails, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from elastrain.data.facts import OrderFacts, OtherData, check_resumed, difference
from elastrain.data.order import Order
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind


class DataOrder:
    """Of the loop in which this rank's script is, or was last. For the training thread."""

    def __init__(self) -> None:
        self.facts: OrderFacts | None = None
        """None before the first loop."""
        self._order: Order | None = None
        self._begun: Order | None = None
        """That of the epoch that has begun."""
        self.compared = True
        """Whether all ranks of the generation have the same data in this loop, and of a sampler in this epoch."""
        self._loop_end = 0
        self._saved: tuple[OrderFacts, int, int] | None = None
        """Of the state that was loaded: with its step, and the end of the loop in which it was computed. None: none was
        loaded, or it was compared."""

    @property
    def digest(self) -> int:
        """As of :attr:`OrderFacts.digest`, before an epoch has begun; 0 before the first loop."""
        return 0 if self._before_an_epoch is None else self._before_an_epoch.digest

    @property
    def _before_an_epoch(self) -> OrderFacts | None:
        return None if self.facts is None else replace(self.facts, epoch=0, indices="")

    @property
    def of_epoch(self) -> int:
        """The same with the epoch that has begun."""
        return 0 if self.facts is None else self.facts.digest

    def begin_loop(self, order: Order, end: int) -> None:
        """The script begins a loop over data in this order, up to ``end`` committed steps.

        Raises :class:`OtherData` as :meth:`load`, and the errors of a sampler.
        """
        facts = OrderFacts.of(order)
        # A rank that has left its loop by an exception may begin it again alone: it compares what has changed only.
        if end != self._loop_end or facts != self._before_an_epoch:
            self.facts, self.compared = facts, False
        self._order, self._begun, self._loop_end = order, None, end
        self._compare()

    def begin_step(self, order: Order, step: int) -> None:
        """A step is about to be computed, perhaps the first one of an epoch in this ``order``. Raises as before."""
        assert self.facts is not None
        if order is self._begun:
            return
        before, self._begun, self.facts = self.facts, order, self.facts.begin_epoch(order, step)
        self.compared &= not order.sampled or self.facts == before
        self._compare()

    def enter(self) -> None:
        """A generation begins; its ranks have compared their loops, and no indices."""
        self.compared = self.facts is None or not self.facts.sampled

    def state(self) -> dict[str, Any] | None:
        """What checkpoints and joiners receive."""
        return None if self.facts is None else {**asdict(self.facts), "loop_end": self._loop_end}

    def load(self, state: dict[str, Any] | None, step: int) -> None:
        """A state of ``step`` is loaded. Raises :class:`OtherData` if it was computed with other data in this loop."""
        if state is None:
            return  # of before any loop
        facts = {name: value for name, value in state.items() if name != "loop_end"}
        self._saved = OrderFacts(**facts), step, state["loop_end"]
        self._compare()

    def _compare(self) -> None:
        if self._saved is None or self.facts is None or self._order is None:
            return
        facts, step, end = self._saved
        if self._loop_end != end and step >= min(end, self._loop_end):
            if step >= end:
                self._saved = None  # of a loop that was complete
            return
        if self._begun is not None or not self._order.sampled:
            self._saved = None  # until then the indices of the epoch are not known
        if not self._order.accept_change:
            check_resumed(self.facts, facts, step)

    def refuse(self, communicator: Communicator, others: Sequence[int], kind: Kind) -> None:
        """The data of the ranks ``others`` differs from that of most. All ranks call it.

        Raises :class:`OtherData` on those ranks, ``GenerationBroken`` on all others.
        """
        mine = self.facts
        raw = communicator.all_gather_bytes(json.dumps(None if mine is None else asdict(mine)).encode(), kind)
        rows = [None if row == b"null" else OrderFacts(**json.loads(row)) for row in raw]
        peer = next(rank for rank, facts in enumerate(rows) if rank not in others and facts is not None)
        rank = communicator.rank if communicator.rank in others else others[0]
        one, other = rows[rank], rows[peer]
        assert one is not None and other is not None
        cause = difference(one, other, rank, peer)
        if rank == communicator.rank:
            error = OtherData(cause)
            communicator.fail_here(error)
            raise error
        communicator.fail(cause)
