"""Exchanges between ranks outside of steps: the end of a loop, and what a script asks of all ranks between two loops.

A loss can leave an exchange complete on some ranks and not on others, by one at most: the next one needs all ranks.
Ranks count the exchanges since the last committed step and keep the result of the last one. On entry of the next
generation those that are one behind receive it, so that the exchange returns the same on all ranks. A rank that is
further behind, or needs state, cannot catch up: code of the script has run meanwhile, which may have changed the
others' state. It joins in a later step.
"""

from __future__ import annotations

from collections.abc import Collection

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.encoding import decode, encode
from elastrain.elastic.group.entry import Entry

MAX_BYTES = 16 * 2**20
"""Largest contribution of a rank to one exchange: every rank receives those of all."""


class Calls:
    """The exchanges of one rank since its last committed step. For the training thread."""

    def __init__(self) -> None:
        self.count = 0
        """Those that are complete."""
        self._last: list[bytes] = []
        """The result of the newest."""
        self.handed = False
        """Whether a peer has completed the exchange in which this rank was interrupted."""

    def reset(self) -> None:
        """The state is that of a newly committed step."""
        self.count, self._last, self.handed = 0, [], False

    def attempt(
        self, communicator: Communicator, kind: Kind, mine: bytes, connected: Collection[int]
    ) -> tuple[list[bytes] | None, int | None]:
        """``mine`` of every rank, by rank, and the generation that all ranks switch to now, if any.

        ``connected``: the proposals that this rank could switch to. None instead of a result: the generation broke;
        repeat it in the next one. A result that one rank has returned is that of all ranks. Raises ``ValueError`` for
        more than ``MAX_BYTES``.
        """
        if len(mine) > MAX_BYTES:
            raise ValueError(f"{kind.call}: {len(mine)} bytes of this rank; at most {MAX_BYTES} may travel")
        if self.handed:
            self.handed = False
            return self._last, None
        try:
            table = communicator.all_gather_ints([len(mine), *map(int, control.encode(connected))], kind)
            sizes, *slots = zip(*table, strict=True)
            result = communicator.all_gather_sized(mine, sizes, kind)
        except GenerationBroken:
            return None, None
        self.count, self._last = self.count + 1, result
        return result, Summed([*map(sum, slots)], connected).agreed(communicator.generation)

    def catch_up(self, communicator: Communicator, entry: Entry) -> None:
        """Entry of a generation: ranks that are one exchange behind receive its result. Raises ``GenerationBroken``."""
        if not entry.behind:
            return
        mine = encode(self._last) if communicator.rank == entry.ahead else b""
        result = communicator.all_gather_bytes(mine, Kind.ENTRY)[entry.ahead]
        if communicator.rank in entry.behind:
            self.count, self._last, self.handed = self.count + 1, decode(result), True
