"""The watchdog of a generation whose gradients NCCL sums."""

import itertools
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock import nccl, watchdog
from elastrain.elastic.comm.stock.watchdog import HUNG_UP, STUCK_SECONDS, Act, Observation, Watchdog, judge

QUIET = Observation(now=100.0, device_since=99.0, hung_up_at=None, error=None, broken_at=None)

NOTHING = dict.fromkeys(("abort", "pass_on", "end_process"), pytest.fail)
"""The acts of a watchdog that has none to take."""


def seen(**changes) -> Observation:
    return Observation(**{field: changes.get(field, getattr(QUIET, field)) for field in Observation.__slots__})


def test_no_action_while_sums_proceed() -> None:
    assert judge(QUIET)[0] is Act.NOTHING


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hung_up_at": 100.0}, HUNG_UP),
        ({"error": "NCCL reports comm error"}, "NCCL reports comm error"),
        ({"now": 5000.0}, "sums have been under way for 1800 s"),
    ],
)
def test_generation_is_aborted_if_the_awaited_sum_cannot_complete(changes, why) -> None:
    assert judge(seen(**changes)) == (Act.ABORT, why)


@pytest.mark.parametrize(("broken_at", "act"), [(None, Act.PASS_ON), (60.0, Act.NOTHING)])
def test_a_loss_is_passed_on_and_breaks_nothing_here_if_no_sum_is_awaited(broken_at, act) -> None:
    assert judge(seen(device_since=None, hung_up_at=50.0, error="late", broken_at=broken_at))[0] is act


@pytest.mark.parametrize(("after", "act"), [(STUCK_SECONDS - 0.1, Act.NOTHING), (STUCK_SECONDS, Act.END_PROCESS)])
def test_process_is_ended_if_the_device_does_not_return_long_after_the_abort(after, act) -> None:
    assert judge(seen(now=100.0 + after, broken_at=100.0, hung_up_at=100.0))[0] is act


times = st.none() | st.floats(0, 1e4)


@given(st.builds(Observation, st.floats(0, 1e4), times, times, st.none() | st.just("e"), times))
def test_process_is_ended_only_if_it_has_waited_for_a_device_since_an_abort(seen) -> None:
    act, _ = judge(seen)
    if act is Act.END_PROCESS:
        assert seen.device_since is not None and seen.broken_at is not None
        assert min(seen.now - seen.device_since, seen.now - seen.broken_at) >= STUCK_SECONDS
    if seen.broken_at is not None:
        assert act is not Act.ABORT, "it has been aborted already"
    if seen.device_since is None:
        assert act in (Act.NOTHING, Act.PASS_ON), "no device is waited for"
    if act is Act.PASS_ON:
        assert seen.hung_up_at is not None


def test_a_killed_peer_is_detected_by_its_connection_during_sums() -> None:
    mine, theirs = socket.socketpair()
    aborted = threading.Event()
    causes: list[str] = []

    def abort(why: str) -> None:
        causes.append(why)
        aborted.set()

    def observe(now: float, hung_up_at: float | None) -> Observation:
        broken_at = now if aborted.is_set() else None
        return Observation(now, now - 1.0, hung_up_at, None, broken_at)

    watch = Watchdog([mine], [], observe, abort=abort, pass_on=pytest.fail, end_process=causes.append)
    theirs.close()
    assert aborted.wait(10), "the end of the connection was not detected"
    watch.stop()
    watch.stop()
    assert causes == [HUNG_UP]
    mine.close()


def test_thread_ends_and_keeps_the_connections_if_it_is_stopped() -> None:
    mine, theirs = socket.socketpair()

    def observe(now: float, hung_up_at: float | None) -> Observation:
        return Observation(now, None, hung_up_at, None, None)

    watch = Watchdog([mine], [], observe, **NOTHING)
    assert watch._thread.is_alive()
    watch.stop()
    assert not watch._thread.is_alive()
    theirs.send(b"x")
    assert mine.recv(1) == b"x"
    mine.close()
    theirs.close()


def test_process_is_ended_once_if_the_device_stays_away(monkeypatch) -> None:
    monkeypatch.setattr(watchdog, "STUCK_SECONDS", 0.0)
    mine, theirs = socket.socketpair()
    ended: list[str] = []
    at = time.monotonic()

    def observe(now: float, hung_up_at: float | None) -> Observation:
        return Observation(now, at, hung_up_at, None, at)

    watch = Watchdog([mine], [], observe, **{**NOTHING, "end_process": ended.append})
    watch._thread.join(10)
    assert len(ended) == 1
    watch.stop()
    mine.close()
    theirs.close()


@pytest.mark.parametrize("closes", [False, True], ids=["all peers are there", "a peer's connection has closed"])
def test_a_system_error_of_nccl_is_this_ranks_own_the_second_time_unless_a_peer_is_lost(closes, monkeypatch) -> None:
    def allreduce(_tensors: object) -> None:
        raise RuntimeError("NCCL error in: NCCLUtils.hpp:268, unhandled system error, NCCL version 2.27.3")

    monkeypatch.setattr(nccl, "_ALONE", itertools.count())
    raised = []
    for _ in range(3):
        group = nccl.Nccl(SimpleNamespace(allreduce=allreduce), None, None, watchdog.Mates({}))
        looks = lambda _s, g=group: setattr(g, "_aborting", closes or None)  # noqa: E731 - the watchdog's meanwhile
        monkeypatch.setattr(nccl.time, "sleep", looks)
        with pytest.raises((PeerLost, RuntimeError)) as error:
            group.sum(None, None)
        raised.append(error.type)
    assert raised == [PeerLost] * 3 if closes else raised == [PeerLost, RuntimeError, RuntimeError]
