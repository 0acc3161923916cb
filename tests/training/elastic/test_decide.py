"""Whether a step counts: a table of all that a rank can know, and properties over the ranks of a generation."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.data.share import Place, Share
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Asks, Compared, Counts, End, Known, Repeats, Why, decide, left
from elastrain.elastic.commit.ledger import Verdict
from elastrain.elastic.commit.step import Step
from elastrain.elastic.commit.updates import Applied

SUMS = Summed([0.0] * control.SIZE, ())
LATE = Summed([1.0] * control.SIZE, ())
COMPLETE = Known(3, SUMS)


def expected(known: Known) -> object:
    """The rule in words: a step counts by a valid sum of the votes, or late by that of a peer."""
    by_itself = known.summed is not None and known.vouched and known.replicas is Compared.EQUAL and known.holds
    if known.summed is None or known.replicas is Compared.DIFFERENT:
        return None
    if by_itself:
        return known.summed
    if not known.keeps:
        return None
    return known.late if known.asked else Asks.PEERS


FIELDS = {
    "summed": (None, SUMS),
    "vouched": (False, True),
    "replicas": tuple(Compared),
    "holds": (False, True),
    "incomplete": (False, True),
    "keeps": (False, True),
    "asked": (False, True),
    "late": (None, LATE),
}


def test_a_step_counts_if_and_only_if_the_rule_says_so_for_all_that_a_rank_can_know() -> None:
    for values in product(*FIELDS.values()):
        known = Known(3, **dict(zip(FIELDS, values, strict=True)))
        right, decided = expected(known), decide(known)
        if isinstance(right, Summed):
            assert decided == Counts(3, right, None, known.incomplete), known
        elif right is None:
            assert isinstance(decided, Repeats), known
        else:
            assert decided is right, known


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"summed": None}, Why.NOT_VOTED),
        ({"replicas": Compared.DIFFERENT, "keeps": True}, Why.REPLICAS_DIFFER),
        ({"replicas": Compared.UNKNOWN}, Why.NO_RESULT),
        ({"vouched": False}, Why.NO_RESULT),
        ({"holds": False}, Why.NO_STATE),
        ({"vouched": False, "keeps": True, "asked": True}, Why.COUNTED_NOWHERE),
    ],
)
def test_a_step_that_repeats_names_its_reason(known, why) -> None:
    assert decide(replace(COMPLETE, **known)) == Repeats(why)


class Rank(SimpleNamespace):
    """One of the ranks of a vote in generation 3, and its row in the meeting of generation 4."""

    step: int
    voted: int
    counted: int


@given(st.data())
def test_ranks_that_keep_their_gradients_all_count_a_step_or_none_does(data) -> None:
    """Whatever subset had the sum, was vouched for, and comes to the meeting."""
    size = data.draw(st.integers(1, 5))
    flags = st.lists(st.booleans(), min_size=size, max_size=size)
    voted, vouched, has_sum, comes = (data.draw(flags) for _ in range(4))
    here = [
        Known(3, SUMS if v else None, vouched=w and s and all(voted), keeps=True)  # a sum proves that all have voted
        for v, w, s in zip(voted, vouched, has_sum, strict=True)
    ]
    first = [decide(known) for known in here]
    meets = [r for r in range(size) if comes[r]]
    rows = [
        Rank(
            step=8 if isinstance(first[r], Counts) else 7,
            voted=3 if first[r] is Asks.PEERS else 0,
            counted=3 if isinstance(first[r], Counts) else 0,
        )
        for r in meets
    ]
    if not rows:
        return
    verdict = Verdict.of(rows)
    final = []
    for place, r in enumerate(meets):
        late = SUMS if place in verdict.late else None
        asked = replace(here[r], asked=True, late=late)
        final.append(decide(asked) if first[r] is Asks.PEERS else first[r])
    assert not any(outcome is Asks.PEERS for outcome in final), "no rank waits for ever"
    assert len({isinstance(outcome, Counts) for outcome in final}) == 1, "either all count the step, or it repeats"
    assert {o.by for o in final if isinstance(o, Counts)} <= {3}


@given(st.integers(0, 9), st.floats(0.1, 4), st.integers(1, 5))
def test_the_mean_is_over_all_counts_and_0_without_any(count, loss, ranks) -> None:
    sums = [0.0] * control.SIZE
    sums[control.COUNTED], sums[control.COUNT], sums[control.LOSS] = ranks, count, loss * count * 0.25
    counts = Counts(1, Summed(sums, ()))
    assert counts.loss(0.25) == pytest.approx(loss if count else 0.0)
    assert not counts.mixed(ranks)
    assert counts.mixed(ranks + 1)


def test_a_step_that_has_to_ask_its_peers_does_not_count_meanwhile() -> None:
    step = Step(0, Place(3, 0, 2), Share(0, 2), ())
    assert step.decide(replace(COMPLETE, vouched=False, keeps=True))
    assert not step.counts
    assert not step.decide(replace(COMPLETE, vouched=False, keeps=True, asked=True, late=LATE))
    assert step.counts
    assert step.result.by == 3


@pytest.mark.parametrize("applied", Applied)
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("outcome", [None, Repeats(Why.NO_RESULT), Counts(1, SUMS)])
def test_a_step_whose_body_was_left_counts_where_its_update_was_applied(outcome, begun, finished, applied) -> None:
    end = left(outcome, applied, begun=begun, finished=finished)
    assert (end in (End.COMMITS, End.WAITS)) == (isinstance(outcome, Counts) and applied is Applied.WHOLLY)
    assert (end is End.COMMITS) <= finished
    assert (end is End.NOTHING) <= (not begun), "peers may have committed a step of which a backward has run"
