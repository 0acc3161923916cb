"""Watch over the connections of a generation, for what is under way on a device or on the host."""

import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.comm import watchdog
from elastrain.elastic.comm.watchdog import HOST_SECONDS, HUNG_UP, LOOK_SECONDS, STUCK_SECONDS, Act, Seen, Vigil, judge

QUIET = Seen(now=100.0, device_since=99.0, host_since=None, hung_up_at=None, error=None, broken_at=None)


def seen(**changes) -> Seen:
    return Seen(**{field: changes.get(field, getattr(QUIET, field)) for field in Seen.__slots__})


def test_nothing_is_done_while_sums_are_under_way_and_all_is_well() -> None:
    assert judge(QUIET)[0] is Act.NOTHING


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hung_up_at": 100.0}, HUNG_UP),
        ({"error": "NCCL reports comm error"}, "NCCL reports comm error"),
        ({"now": 5000.0}, "sums have been under way for 1800 s"),
    ],
)
def test_generation_is_aborted_if_what_is_waited_for_cannot_come(changes, why) -> None:
    assert judge(seen(**changes)) == (Act.ABORT, why)


def test_a_peer_that_left_is_of_no_interest_if_nothing_is_waited_for() -> None:
    assert judge(seen(device_since=None, hung_up_at=50.0, error="late"))[0] is Act.NOTHING


@pytest.mark.parametrize(
    ("host_since", "hung_up_at", "act"),
    [
        (90.0, None, Act.NOTHING),
        (90.0, 100.1 - HOST_SECONDS, Act.NOTHING),
        (100.1 - HOST_SECONDS, 90.0, Act.NOTHING),
        (90.0, 100.0 - HOST_SECONDS, Act.ABORT),
        (100.0 - HOST_SECONDS, 90.0, Act.ABORT),
    ],
)
def test_an_operation_on_the_host_is_aborted_if_it_waits_on_after_a_peer_hung_up(host_since, hung_up_at, act) -> None:
    assert judge(seen(device_since=None, host_since=host_since, hung_up_at=hung_up_at))[0] is act


@pytest.mark.parametrize(("after", "act"), [(STUCK_SECONDS - 0.1, Act.NOTHING), (STUCK_SECONDS, Act.END_PROCESS)])
def test_process_is_ended_if_the_device_does_not_come_back_long_after_the_abort(after, act) -> None:
    assert judge(seen(now=100.0 + after, broken_at=100.0, hung_up_at=100.0))[0] is act


times = st.none() | st.floats(0, 1e4)


@given(st.builds(Seen, st.floats(0, 1e4), times, times, times, st.none() | st.just("e"), times))
def test_process_is_never_ended_unless_it_has_waited_for_a_device_since_an_abort(seen) -> None:
    act, _ = judge(seen)
    if act is Act.END_PROCESS:
        assert seen.device_since is not None and seen.broken_at is not None
        assert min(seen.now - seen.device_since, seen.now - seen.broken_at) >= STUCK_SECONDS
    if seen.broken_at is not None:
        assert act is not Act.ABORT, "it has been aborted already"
    if seen.device_since is None and seen.host_since is None:
        assert act is Act.NOTHING, "nobody waits"


@pytest.mark.parametrize("device", [True, False])
def test_a_killed_peer_is_noticed_by_its_connection_if_something_is_under_way(device) -> None:
    mine, theirs = socket.socketpair()
    aborted = threading.Event()
    causes: list[str] = []

    def abort(why: str) -> None:
        causes.append(why)
        aborted.set()

    def look(now: float, hung_up_at: float | None) -> Seen:
        since = now - 2 * HOST_SECONDS
        broken_at = now if aborted.is_set() else None
        return Seen(now, since if device else None, since, hung_up_at, None, broken_at)

    watch = Vigil([mine], look, abort, causes.append, device=device)
    theirs.close()
    assert aborted.wait(10), "nobody noticed"
    watch.stop()
    watch.stop()
    assert causes == [HUNG_UP]
    mine.close()


@pytest.mark.parametrize("device", [True, False])
def test_thread_ends_and_leaves_the_connections_alone_if_it_is_stopped(device) -> None:
    mine, theirs = socket.socketpair()

    def look(now: float, hung_up_at: float | None) -> Seen:
        return Seen(now, None, None, hung_up_at, None, None)

    watch = Vigil([mine], look, pytest.fail, pytest.fail, device=device)
    assert watch._thread.is_alive()
    watch.stop()
    assert not watch._thread.is_alive()
    theirs.send(b"x")
    assert mine.recv(1) == b"x"
    mine.close()
    theirs.close()


def test_nobody_looks_while_all_peers_are_there_and_nothing_is_on_a_device() -> None:
    mine, theirs = socket.socketpair()
    looked: list[float] = []

    def look(now: float, hung_up_at: float | None) -> Seen:
        looked.append(now)
        return Seen(now, None, None, hung_up_at, None, None)

    watch = Vigil([mine], look, pytest.fail, pytest.fail, device=False)
    time.sleep(5 * LOOK_SECONDS)  # that nothing happens can only be seen by waiting
    assert looked == []
    watch.stop()
    mine.close()
    theirs.close()


def test_process_is_ended_once_if_the_device_stays_away(monkeypatch) -> None:
    monkeypatch.setattr(watchdog, "STUCK_SECONDS", 0.0)
    mine, theirs = socket.socketpair()
    ended: list[str] = []
    at = time.monotonic()

    def look(now: float, hung_up_at: float | None) -> Seen:
        return Seen(now, at, None, hung_up_at, None, at)

    watch = Vigil([mine], look, pytest.fail, ended.append, device=True)
    watch._thread.join(10)
    assert len(ended) == 1
    watch.stop()
    mine.close()
    theirs.close()
