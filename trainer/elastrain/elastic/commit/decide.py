"""Whether a step counts on this rank: one function of what the rank knows after its last backward. Pure.

:mod:`elastrain.elastic.commit.step` applies the decision; no other package sets the outcome of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.updates import Applied


class Compared(Enum):
    """What a rank knows of the replicas that were compared with the vote."""

    EQUAL = auto()
    """They are equal, or were not compared."""
    DIFFERENT = auto()
    """They are not: no rank counts the step."""
    UNKNOWN = auto()
    """A peer was lost meanwhile. Other ranks may know."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a rank knows of a step."""

    generation: int
    """The one in whose votes the rank took part."""
    summed: Summed | None
    """The sum of the votes; None: this rank has not voted. Void if not ``vouched``."""
    vouched: bool = True
    """The generation had not broken when the sum was there, and the agent vouches for it."""
    replicas: Compared = Compared.EQUAL
    holds: bool = True
    """This rank holds the state that the gradients belong to, and the optimizers may change it."""
    incomplete: bool = False
    """Of a learner: a part of its state has not arrived."""
    keeps: bool = False
    """The rank keeps its gradients: it can count the step late, by the result of its peers."""
    asked: bool = False
    """It has met its peers since, which know whether one of them has counted the step by this vote."""
    late: Summed | None = None
    """Their result; None: none of them has."""


class Why(Enum):
    """Why a step does not count. Its body runs again."""

    NOT_VOTED = "a peer was lost before this rank had all gradients"
    REPLICAS_DIFFER = "the replicas differ"
    NO_RESULT = "a peer was lost before this rank had the sum of the votes, or its agent does not vouch"
    NO_STATE = "this rank does not hold the state of the step"
    COUNTED_NOWHERE = "no rank has counted it"
    BODY_LEFT = "the loop body was left before its update was complete"


@dataclass(frozen=True, slots=True)
class Counts:
    """The step counts: it is committed when its loop body ends. All but ``incomplete`` is the same on all ranks."""

    by: int
    """The generation whose votes it counts by."""
    summed: Summed
    agreed: int | None = None
    """Generation that all ranks switch to after this step."""
    incomplete: bool = False
    """As of :class:`Known`: only the optimizers' updates of this step count for this rank."""

    @property
    def learning(self) -> bool:
        """Some ranks will still be receiving their state in the next step."""
        return self.summed.sums[control.LEARNING] > 0

    @property
    def kept(self) -> float:
        """Ranks that add the gradients to those of a step before, without learners."""
        return self.summed.sums[control.KEPT]

    @property
    def saves(self) -> int:
        """The sum of the ranks' votes on a checkpoint after this step."""
        return int(self.summed.sums[control.SAVE])

    @property
    def stops(self) -> bool:
        """Training ends with this step: a rank has requested it."""
        return self.summed.sums[control.STOP] > 0

    def factor(self, unit: float) -> float:
        """What the summed gradients are multiplied by to be those of the mean. ``unit``: as of :attr:`Step.unit`."""
        if not self.summed.sums[control.COUNTED]:
            return 1.0
        count = self.summed.sums[control.COUNT]
        return 1.0 / (unit * count) if count else 0.0

    def mixed(self, ranks: int) -> bool:
        """Losses were means in some calls and sums over a count in others: there is no mean of both.

        ``ranks``: those that compute the step.
        """
        return self.summed.sums[control.COUNTED] not in (0, ranks)

    def loss(self, unit: float) -> float:
        """Mean loss over the global batch."""
        return self.summed.sums[control.LOSS] * self.factor(unit)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A peer has committed the step, and this rank is about to load its state."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """The step does not count here: its state is put back, and its body runs again."""

    why: Why


class Asks(Enum):
    """The rank has voted, and lacks the result: it waits for the next generation, where its peers know."""

    PEERS = auto()


Outcome = Counts | Adopted | Repeats


def decide(known: Known) -> Counts | Repeats | Asks:
    """Whether a step counts on this rank, after its last backward; with several backwards the last one decides.

    A sum of all votes proves that every rank has voted and has sent what the others need. Without it, the step counts
    if a peer has counted it by the same vote, and if this rank keeps its gradients until it knows.
    """
    why = _why_not(known)
    if why in (Why.NO_RESULT, Why.NO_STATE) and known.keeps:
        if not known.asked:
            return Asks.PEERS
        return Repeats(Why.COUNTED_NOWHERE) if known.late is None else _counts(known, known.late)
    if why is None and known.summed is not None:
        return _counts(known, known.summed)
    return Repeats(why or Why.NOT_VOTED)


def _why_not(known: Known) -> Why | None:
    """Why this rank cannot count the step by its own sum of the votes."""
    if known.summed is None:
        return Why.NOT_VOTED
    if known.replicas is Compared.DIFFERENT:
        return Why.REPLICAS_DIFFER
    if not known.vouched or known.replicas is Compared.UNKNOWN:
        return Why.NO_RESULT
    return None if known.holds else Why.NO_STATE


def _counts(known: Known, by: Summed) -> Counts:
    return Counts(known.generation, by, by.agreed(known.generation), known.incomplete)


class End(Enum):
    """What becomes of a step when its loop body is left."""

    COMMITS = auto()
    """The update is applied: the step is committed now."""
    WAITS = auto()
    """An exception has left the body behind all of its update: the step is committed if the script goes on."""
    LEAVES = auto()
    """The step does not count here, and peers may have committed it: this rank leaves the generation, and takes their
    state in the next one."""
    NOTHING = auto()
    """No backward of it has run: it begins again."""


def left(outcome: Outcome | None, applied: Applied, *, begun: bool, finished: bool) -> End:
    """The script has left the loop body, by ``break`` (``finished``) or by an exception. ``begun``: a backward has run.

    A step counts where its update was applied.
    """
    if isinstance(outcome, Counts) and applied is Applied.WHOLLY:
        return End.COMMITS if finished else End.WAITS
    return End.LEAVES if begun else End.NOTHING
