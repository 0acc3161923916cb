"""Until when an agent's ranks may commit."""

from __future__ import annotations

import pytest

from elastrain.agent.core.vouching import LeaseSeen, Vouching
from elastrain.api.pages import vouch
from elastrain.api.pages.vouch import Vouch

TTL = 5.0
NEWEST = 3
FIRST, SECOND = 71, 72


@pytest.fixture
def vouching():
    """An agent whose lease was confirmed at 0, and which looks for the first time at 0.5."""
    vouching = Vouching(TTL)
    assert vouching.look(LeaseSeen(0.0, FIRST), NEWEST, away=False, now=0.5) is None
    return vouching


def may_commit(vouching: Vouching, members: int, now: float) -> bool:
    return vouching.vouch.covers(NEWEST, members, now)


@pytest.mark.parametrize("members", [1, 2])
def test_ranks_commit_until_the_lease_may_be_lost_if_the_agent_stops(vouching, members):
    assert may_commit(vouching, members, 4.9)
    assert not may_commit(vouching, members, 5.0)


def test_several_members_go_on_and_one_alone_stops_if_etcd_is_away(vouching):
    for now in range(1, 600):
        vouching.look(LeaseSeen(0.0, FIRST), NEWEST, away=True, now=float(now))
    assert may_commit(vouching, 2, 600.0)
    assert not may_commit(vouching, 1, 5.0)


def test_all_go_on_if_etcd_has_kept_the_lease(vouching):
    """Renewed under its id, it was never lost, however long the agent was stopped or etcd was away."""
    assert vouching.look(LeaseSeen(100.0, FIRST), NEWEST, away=False, now=100.1) is None
    assert may_commit(vouching, 1, 104.0) and may_commit(vouching, 2, 104.0)


def test_no_generation_goes_on_that_was_known_if_the_lease_was_lost_while_the_agent_was_stopped(vouching):
    assert vouching.look(LeaseSeen(60.0, SECOND), NEWEST, away=False, now=60.1) is False
    assert not may_commit(vouching, 1, 60.2) and not may_commit(vouching, 2, 60.2)
    assert vouching.vouch.covers(NEWEST + 1, 2, 60.2), "but the next one does"


def test_no_generation_goes_on_if_an_agent_that_was_stopped_finds_etcd_away(vouching):
    assert vouching.look(LeaseSeen(0.0, FIRST), NEWEST, away=True, now=60.0) is True
    assert not may_commit(vouching, 2, 60.0)
    assert vouching.look(LeaseSeen(61.0, FIRST), NEWEST, away=False, now=61.1) is None
    assert may_commit(vouching, 2, 61.2), "its lease has lived on"


def test_only_a_member_alone_is_over_and_only_once_if_an_outage_lasts_for_its_ttl(vouching):
    """The others' members take up their leases again when etcd is back (promise 7)."""
    over = {now: vouching.look(LeaseSeen(0.0, FIRST), NEWEST, away=True, now=float(now)) for now in range(1, 20)}
    assert {now: alone for now, alone in over.items() if alone is not None} == {TTL: True}
    assert vouching.look(LeaseSeen(20.0, SECOND), NEWEST, away=False, now=20.1) is None
    assert may_commit(vouching, 2, 20.2) and not may_commit(vouching, 1, 20.2)


def test_a_member_alone_is_over_in_each_outage_that_lasts_for_its_ttl(vouching):
    assert vouching.look(LeaseSeen(0.0, FIRST), NEWEST, away=True, now=TTL) is True
    assert vouching.look(LeaseSeen(20.0, FIRST), NEWEST + 1, away=False, now=20.0) is None
    assert vouching.vouch.covers(NEWEST + 1, 1, 20.0)
    assert vouching.look(LeaseSeen(20.0, FIRST), NEWEST + 1, away=True, now=20.0 + TTL) is True


@pytest.mark.parametrize("members", [1, 2])
def test_all_go_on_if_the_lease_is_lost_and_replaced_in_time(vouching, members):
    assert vouching.look(LeaseSeen(0.0, 0), NEWEST, away=False, now=1.0) is None
    assert vouching.look(LeaseSeen(1.1, SECOND), NEWEST, away=False, now=1.2) is None
    assert may_commit(vouching, members, 6.0)


def test_a_generation_stays_fenced_if_it_is_looked_at_again(vouching):
    assert vouching.look(LeaseSeen(0.0, 0), NEWEST, away=False, now=60.0) is False
    assert vouching.look(LeaseSeen(60.1, SECOND), NEWEST, away=False, now=60.2) is None
    assert not may_commit(vouching, 2, 60.3)


def test_a_page_holds_what_was_written_and_shows_a_torn_copy():
    raw = bytearray(vouch.SIZE)
    assert vouch.parse(bytes(raw)) is None, "not written yet"
    content = Vouch(leased=12.5, away=3.0, fenced=4, fenced_alone=7)
    vouch.write(memoryview(raw), 1, content)
    assert vouch.parse(bytes(raw)) == content
    old = bytes(raw)
    vouch.write(memoryview(raw), 2, content)
    assert vouch.parse(old[:8] + bytes(raw)[8:]) is None
