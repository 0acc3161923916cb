"""The ranks' shares of a batch: equal. With ``spec.shares: Measured`` a guest (``elastrain_shares``) measures them."""

from __future__ import annotations

from collections.abc import Sequence

from elastrain import guests
from elastrain.api.batch import RankShare
from elastrain.api.settings import RankSettings, ShareRule
from elastrain.api.shape import Shape
from elastrain.data.share import Place, Share


class EqualShares:
    """All parts of a batch are equal, up to one sample or micro-batch."""

    pace = 0
    """Nanoseconds that this rank takes for a sample; 0: not known."""

    def of(self, share: Share) -> Share:
        """``share`` with the weights in force."""
        return share

    @property
    def reported(self) -> tuple[RankShare, ...]:
        """Shares and speeds of the slowest ranks, slowest first; empty before the first decision."""
        return ()

    def ceiling(self, *, lost: bool) -> int:
        """Most weight of a unit by what this rank has seen; 0: not known. ``lost``: the generation has lost ranks."""
        return 0

    def enter(self, paces: Sequence[int], ceiling: int = 0) -> None:
        """A generation begins. ``paces``: by rank, as of :attr:`pace`. ``ceiling``: the least one of all ranks."""

    def votes(self, share: Share, place: Place, *, seconds: float, samples: int) -> Sequence[float]:
        """What this rank adds to its vote: equally many numbers on all ranks.

        ``seconds``: of its computation of its ``samples``, which are those of ``share``.
        """
        return ()

    def check(self, votes: Sequence[float]) -> None:
        """Raises ``RanksDiverged`` if the ranks differ in their shares. ``votes``: the sum."""

    def commit(self, votes: Sequence[float], *, learning: bool) -> None:
        """The step of these ``votes`` is committed. ``learning``: with learners."""


def shares_of(settings: RankSettings, shape: Shape) -> EqualShares:
    """The shares of a job with these settings. Raises ``ModuleNotFoundError`` without the guest that measures them."""
    if settings.shares is ShareRule.EQUAL:
        return EqualShares()
    measured: EqualShares = guests.load("elastrain_shares.measured").MeasuredShares(settings.max_share, shape)
    return measured
