"""Speeds and shares of the ranks, from rank 0's report to the status and the words of a person."""

from __future__ import annotations

import math

import pytest

from elastrain.api.batch import RankShare, ShareLimit
from elastrain.api.records import Progress
from elastrain_operator.facts import Coordination
from elastrain_operator.policy.report import training
from elastrain_resource.sizing.describe import more_share, shares_line

SLOW, FAST = (
    RankShare(rank=1, share=0.5, samples_per_second=125.0),
    RankShare(rank=0, share=1.5, samples_per_second=500),
)


def seen(*shares: RankShare) -> Coordination:
    return Coordination(progress=Progress(generation=1, world_size=2, members=2, step=9, shares=shares))


def test_the_status_has_what_rank_0_reports() -> None:
    found = training.rank_shares([], seen(SLOW, FAST))
    assert [(s.rank, s.share, s.samples_per_second) for s in found] == [(1, 0.5, 125.0), (0, 1.5, 500.0)]


def test_the_status_is_not_written_again_for_a_speed_that_changed_no_share() -> None:
    old = training.rank_shares([], seen(SLOW, FAST))
    faster = SLOW.model_copy(update={"samples_per_second": 130.0})
    assert training.rank_shares(old, seen(faster, FAST)) is old
    assert training.rank_shares(old, seen(SLOW.model_copy(update={"share": 0.6}), FAST)) != old


def test_the_status_keeps_them_while_no_report_can_be_read_and_drops_them_if_there_are_none() -> None:
    old = training.rank_shares([], seen(SLOW))
    assert training.rank_shares(old, Coordination()) is old
    assert training.rank_shares(old, seen()) == []


def test_a_share_that_is_no_number_is_left_out() -> None:
    assert training.rank_shares([], seen(SLOW.model_copy(update={"share": math.nan}))) == []


def test_the_status_says_which_bound_holds_a_share() -> None:
    old = training.rank_shares([], seen(SLOW, FAST))
    held = training.rank_shares(old, seen(SLOW, FAST.model_copy(update={"limit": ShareLimit.MAX_SHARE})))
    assert [one.limit for one in held] == [None, ShareLimit.MAX_SHARE]


@pytest.mark.parametrize(
    ("limit", "words", "way"),
    [
        (ShareLimit.MAX_SHARE, "; spec.maxShare bounds rank 0 at 1.50", "raise spec.maxShare"),
        (
            ShareLimit.LOSS,
            "; the loss of a rank whose share had grown bounds rank 0 at 1.50",
            "if memory was the cause",
        ),
    ],
)
def test_a_line_names_the_bound_that_holds_a_share_and_the_way_out(limit, words, way) -> None:
    shares = [SLOW, FAST.model_copy(update={"limit": limit})]
    assert shares_line(shares).endswith(words)
    assert more_share(shares).startswith(way)
    assert more_share([SLOW, FAST]) == ""


def test_a_line_names_at_most_four_ranks() -> None:
    assert shares_line([SLOW, FAST]) == "shares by speed: rank 1 0.50 (125 samples/s), rank 0 1.50 (500 samples/s)"
    assert shares_line([SLOW] * 5).endswith(", …")
