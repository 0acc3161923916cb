"""Which member's script does what a script does once, by ``if job.rank == 0``, after its loops. Pure.

Such code is not repeated on another rank: their scripts have passed it. If its member is lost before its script has
ended, the scripts of all ranks run again from the state after the last step.
"""

from __future__ import annotations

from elastrain.api.records import Generation


class RankZeroLost(Exception):
    """The rank was lost whose script does what is done once, and this rank's script has ended."""


class Once:
    """As one rank knows it."""

    def __init__(self) -> None:
        self.member = ""
        """Id of that member: of rank 0 when the last loop ended; empty before any generation."""
        self.state = 0
        """Digest of this rank's state when the last loop ended; 0: not known."""
        self.ends = False
        """This rank's script has ended."""
        self.under_way = False
        """The script is in a call that has exchanged results already: the code before the call has run on all ranks."""

    def enters(self, generation: Generation, *, agreed: bool, calls: int) -> None:
        """This rank enters ``generation``. ``agreed``: all ranks have left the one before at the same place, those that
        are in none now included. ``calls``: exchanges since the last step; 0: in a loop."""
        if agreed or self.under_way or not calls:
            self.begins(generation)

    def begins(self, generation: Generation | None, state: int = 0) -> None:
        """The code after a loop follows, in ``generation``. ``state``: as of the attribute."""
        self.state = state or self.state
        self.member = generation.first.id if generation is not None and generation.first else ""

    def check(self, generation: Generation) -> None:
        """This rank enters ``generation``, or is in it. Raises :class:`RankZeroLost` if its script has ended, and the
        member is not in it, which cannot have ended its own script."""
        if self.ends and self.member and generation.member(self.member) is None:
            raise RankZeroLost(f"rank 0 ({self.member}) was lost before its script had ended")
