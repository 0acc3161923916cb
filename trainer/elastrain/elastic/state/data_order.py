"""The order of the data as a part of the state: compared on entry of a generation, on resume, and when a loop begins.

A rank whose data differs from that of the others fails with both values. The others continue without it: for them it is
lost. A job that resumes with other data than that of its checkpoint fails, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
        self._loop_end = 0
        self._saved: tuple[OrderFacts, int, int] | None = None
        """Of the state that was loaded: with its step, and the end of the loop in which it was computed. None: none was
        loaded, or it was compared."""

    @property
    def digest(self) -> int:
        """As of :attr:`OrderFacts.digest`; 0 before the first loop."""
        return 0 if self.facts is None else self.facts.digest

    @property
    def loop(self) -> object:
        """Changes with each loop: in its first step all ranks compare their data."""
        return self.facts, self._loop_end

    def begin_loop(self, order: Order, end: int) -> None:
        """The script begins a loop over data in this order, up to ``end`` committed steps.

        Raises :class:`OtherData` as :meth:`load`, and the errors of a sampler.
        """
        if order is not self._order:
            self._order, self.facts = order, OrderFacts.of(order)
        self._loop_end = end
        self._compare()

    def state(self) -> dict[str, Any] | None:
        """What checkpoints and joiners receive."""
        return None if self.facts is None else {**self.facts.saved(), "loop_end": self._loop_end}

    def load(self, state: dict[str, Any] | None, step: int) -> None:
        """A state of ``step`` is loaded. Raises :class:`OtherData` if it was computed with other data in this loop."""
        if state is None:
            return  # of before any loop
        facts = OrderFacts.of_saved({name: value for name, value in state.items() if name != "loop_end"})
        self._saved = None if facts is None else (facts, step, state["loop_end"])
        self._compare()

    def _compare(self) -> None:
        if self._saved is None or self.facts is None or self._order is None:
            return
        facts, step, end = self._saved
        if self._loop_end != end and step >= min(end, self._loop_end):
            if step >= end:
                self._saved = None  # of a loop that was complete
            return
        self._saved = None
        if not self._order.accept_change:
            check_resumed(self.facts, facts, step)

    def refuse(self, communicator: Communicator, others: Sequence[int], kind: Kind) -> None:
        """The data of the ranks ``others`` differs from that of most. All ranks call it.

        Raises :class:`OtherData` on those ranks, ``GenerationBroken`` on all others.
        """
        mine = self.facts
        raw = communicator.all_gather_bytes(json.dumps(None if mine is None else mine.saved()).encode(), kind)
        rows = [OrderFacts.of_saved(json.loads(row)) for row in raw]
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
