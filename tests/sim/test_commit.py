"""The commit rule (docs/architecture.md) holds in every interleaving of small worlds, and each part is needed."""

from __future__ import annotations

import pytest

from commit.search import search
from commit.world import Bounds, Transport

TCP, DEVICE, SHARDED = Transport
CALM = {"kills": 0, "freezes": 0, "losses": 0}
IN_CI = {
    "tcp": Bounds(TCP, generations=2),
    "tcp, a rank returns": Bounds(TCP, steps=1, kills=0, freezes=0),
    "device": Bounds(DEVICE, generations=2, freezes=0),
    "device, a rank returns": Bounds(DEVICE, steps=1, kills=0, freezes=0),
    "shards": Bounds(SHARDED, shards=2, steps=1, kills=0, losses=0),
    "tcp, a star of three": Bounds(TCP, ranks=3, steps=1, generations=2, freezes=0, losses=0),
    "tcp, a chain of three": Bounds(TCP, ranks=3, steps=1, generations=2, freezes=0, losses=0, fan=1),
}
AT_NIGHT = {
    "tcp": Bounds(TCP),
    "tcp, a star of three, frozen": Bounds(TCP, ranks=3, steps=1, generations=2),
    "tcp, a chain of three, frozen": Bounds(TCP, ranks=3, steps=1, generations=2, fan=1),
    "tcp, four ranks": Bounds(TCP, ranks=4, steps=1, generations=2, freezes=0, losses=0),
    "device": Bounds(DEVICE, steps=1),
    "device, frozen": Bounds(DEVICE, generations=2),
    "device, three ranks": Bounds(DEVICE, ranks=3, steps=1, generations=2, freezes=0, losses=0),
    "shards": Bounds(SHARDED, shards=2, steps=1),
    "device, a chain of three": Bounds(DEVICE, ranks=3, steps=1, generations=2, freezes=0, losses=0, fan=1),
    "three groups of one": Bounds(SHARDED, ranks=3, steps=1, generations=2, fan=1, kills=1, freezes=0, losses=1),
}
MIXED = "a step is committed only with the complete gradients of all ranks"
TWO = "two generations never train at once"
PARTS = {
    "vote": (Bounds(DEVICE, **CALM), MIXED),
    "end of the sums": (Bounds(DEVICE, **CALM), MIXED),
    "vouch": (Bounds(TCP, kills=0), TWO),
    "branch": (Bounds(DEVICE, **CALM), MIXED),
    "generation of the state": (Bounds(TCP, kills=0, freezes=0), "a generation begins with one state on all its ranks"),
    "vote in its step": (Bounds(SHARDED, shards=2, **CALM), "no state is lost without the loss of a rank"),
    "late commit": (Bounds(SHARDED, shards=2, **CALM), "no state is lost without the loss of a rank"),
}
"""Of the rule: a world in which the search finds a counterexample without it, and the promise that it breaks."""


@pytest.mark.parametrize("bounds", IN_CI.values(), ids=IN_CI)
def test_every_promise_holds_in_every_interleaving(bounds) -> None:
    found = search(bounds)
    assert not found.broken, "\n".join((found.broken, *found.trace))
    assert found.worlds > 10_000, "the world is too small to show anything"


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("bounds", AT_NIGHT.values(), ids=AT_NIGHT)
def test_every_promise_holds_in_every_interleaving_of_a_larger_world(bounds) -> None:
    found = search(bounds)
    print(f"{found.worlds} worlds")
    assert not found.broken, "\n".join((found.broken, *found.trace))


@pytest.mark.parametrize("part", PARTS)
def test_a_counterexample_is_found_if_a_part_of_the_rule_is_left_out(part) -> None:
    bounds, promise = PARTS[part]
    assert search(Bounds(**{**vars(bounds), "without": frozenset({part})})).broken == promise


def test_the_counterexample_without_votes_is_the_known_hole_of_aborted_kernels() -> None:
    bounds, _ = PARTS["vote"]
    found = search(Bounds(**{**vars(bounds), "without": frozenset({"vote"})}))
    assert found.trace == (
        "0 begins its sums",
        "0 gives its generation up",
        "1 begins its sums",
        "the sums of 1 end with old data",
        "1 commits",
    )


def test_a_vote_that_is_read_in_the_next_step_lets_a_rank_count_a_step_that_another_does_not() -> None:
    late = {"without": frozenset({"vote in its step"})}
    lost = search(Bounds(SHARDED, shards=2, **CALM, **late))
    assert lost.trace == (
        "0 begins its sums",
        "0 gives its generation up",
        "1 begins its sums",
        "the sums of 1 end",
        "1 votes and commits",
        "1 gives its generation up",
        "generation 2 of (0, 1)",
        "generation 2 begins",
    )
    assert search(Bounds(DEVICE, **CALM, **late)).broken == MIXED
