"""Watch over sums that are under way on a device."""

import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic import vigil
from elastrain.elastic.vigil import STUCK_SECONDS, Act, Seen, Vigil, judge

QUIET = Seen(now=100.0, under_way_since=99.0, hung_up=False, error=None, broken_at=None)


def seen(**changes) -> Seen:
    return Seen(**{field: changes.get(field, getattr(QUIET, field)) for field in Seen.__slots__})


def test_nothing_is_done_while_sums_are_under_way_and_all_is_well() -> None:
    assert judge(QUIET)[0] is Act.NOTHING


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hung_up": True}, "the connection to a peer has ended"),
        ({"error": "NCCL reports comm error"}, "NCCL reports comm error"),
        ({"now": 5000.0}, "sums have been under way for 1800 s"),
    ],
)
def test_generation_is_aborted_if_what_is_waited_for_cannot_come(changes, why) -> None:
    assert judge(seen(**changes)) == (Act.ABORT, why)


def test_a_peer_that_left_is_of_no_interest_if_nothing_is_waited_for() -> None:
    assert judge(seen(under_way_since=None, hung_up=True, error="late"))[0] is Act.NOTHING


@pytest.mark.parametrize(("after", "act"), [(STUCK_SECONDS - 0.1, Act.NOTHING), (STUCK_SECONDS, Act.END_PROCESS)])
def test_process_is_ended_if_the_device_does_not_come_back_long_after_the_abort(after, act) -> None:
    assert judge(seen(now=100.0 + after, broken_at=100.0, hung_up=True))[0] is act


@given(
    st.floats(0, 1e4),
    st.none() | st.floats(0, 1e4),
    st.booleans(),
    st.none() | st.just("e"),
    st.none() | st.floats(0, 1e4),
)
def test_process_is_never_ended_unless_it_has_waited_for_a_device_since_an_abort(
    now, since, hung_up, error, broken
) -> None:
    act, _ = judge(Seen(now, since, hung_up, error, broken))
    if act is Act.END_PROCESS:
        assert since is not None and broken is not None
        assert min(now - since, now - broken) >= STUCK_SECONDS
    if broken is not None:
        assert act is not Act.ABORT, "it has been aborted already"


def test_a_killed_peer_is_noticed_by_its_connection_if_sums_are_under_way() -> None:
    mine, theirs = socket.socketpair()
    aborted = threading.Event()
    causes: list[str] = []

    def abort(why: str) -> None:
        causes.append(why)
        aborted.set()

    def look(now: float, hung_up: bool) -> Seen:
        return Seen(now, now - 1, hung_up, None, 0.0 if aborted.is_set() and now < STUCK_SECONDS else None)

    watch = Vigil([mine], look, abort, causes.append)
    theirs.close()
    assert aborted.wait(10), "nobody noticed"
    watch.stop()
    watch.stop()
    assert set(causes) == {"the connection to a peer has ended"}
    mine.close()


def test_thread_ends_and_leaves_the_connections_alone_if_it_is_stopped() -> None:
    mine, theirs = socket.socketpair()
    before = threading.active_count()
    watch = Vigil([mine], lambda now, hung_up: Seen(now, None, hung_up, None, None), pytest.fail, pytest.fail)
    assert threading.active_count() == before + 1
    watch.stop()
    assert threading.active_count() == before
    theirs.send(b"x")
    assert mine.recv(1) == b"x"
    mine.close()
    theirs.close()


def test_process_is_ended_once_if_the_device_stays_away(monkeypatch) -> None:
    monkeypatch.setattr(vigil, "STUCK_SECONDS", 0.0)
    mine, theirs = socket.socketpair()
    ended: list[str] = []
    at = time.monotonic()
    watch = Vigil([mine], lambda now, _: Seen(now, at, False, None, at), pytest.fail, ended.append)
    watch._thread.join(10)
    assert len(ended) == 1
    watch.stop()
    mine.close()
    theirs.close()
