"""Connections between ranks: each has one purpose, and both of its ends belong to the generation."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from elastrain.elastic.comm.channel import Channels, Purpose, receive
from elastrain.elastic.comm.handshake import Identity
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.peer import PeerLost

KEY = b"k" * 32


def identity(rank: int, **other) -> Identity:
    return replace(Identity(generation=7, rank=rank, world_size=5, key=KEY), **other)


@pytest.fixture
def ends(listeners) -> Iterator[tuple[Channels, Channels, Channels]]:
    """The channels of ranks 0, 1 and 2."""
    made = tuple(Channels(listeners[rank], identity(rank)) for rank in range(3))
    yield made
    for channels in made:
        channels.close()


@pytest.fixture
def here(ends) -> Channels:
    """Those of rank 0."""
    return ends[0]


def greet(connection: socket.socket) -> None:
    connection.sendall(b"hello")


def greeted(connection: socket.socket) -> bool:
    return receive(connection, bytearray(5)) == b"hello"


def test_a_connection_is_kept_for_later_if_it_is_for_another_purpose_or_comes_early(ends) -> None:
    here, one, two = ends
    greet(two.connect(0, here.invitation, Purpose.SUMS))
    greet(two.connect(0, here.invitation, Purpose.STATE))
    greet(one.connect(0, here.invitation, Purpose.STATE))
    state = here.accept([1], Purpose.STATE)
    assert state.keys() == {1} and greeted(state[1])
    for purpose in (Purpose.SUMS, Purpose.STATE):
        later = here.accept([2], purpose)
        assert later.keys() == {2} and greeted(later[2])


def test_the_newer_connection_counts_if_a_peer_connects_twice(ends) -> None:
    here, one, _ = ends
    first = one.connect(0, here.invitation, Purpose.STATE)
    greet(one.connect(0, here.invitation, Purpose.STATE))
    assert first.recv(1) == b""
    assert greeted(here.accept([1], Purpose.STATE)[1])


@pytest.mark.parametrize(
    "other", [{"key": b"x" * 32}, {"generation": 8}], ids=["with another secret", "of another generation"]
)
def test_a_rank_refuses_a_listener(here, listeners, other) -> None:
    """Before it sends anything but its hello."""
    caller = Channels(listeners[3], identity(1, **other))
    with pytest.raises(PeerLost):
        caller.connect(0, here.invitation, Purpose.STATE, called_off=lambda: True)
    with pytest.raises(PeerLost):
        here.accept([1], Purpose.STATE, within=0.1)
    caller.close()


def test_a_wait_for_others_ends_if_it_is_called_off(here) -> None:
    with pytest.raises(PeerLost, match="no longer needed"):
        here.accept([3], Purpose.SUMS, called_off=lambda: True)


def test_connecting_to_a_silent_process_ends_if_it_is_called_off_or_shut(here) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = f"127.0.0.1 {silent.getsockname()[1]}"
        with pytest.raises(PeerLost, match="no longer needed"):
            here.connect(1, to, Purpose.SUMS, called_off=lambda: True)
        threading.Timer(0.05, here.shut).start()
        began = time.monotonic()
        with pytest.raises(PeerLost):
            here.connect(1, to, Purpose.SUMS)
        assert time.monotonic() - began < 5


def test_a_closed_listener_refuses_peers_if_a_process_that_was_forked_has_a_copy() -> None:
    listener = Listener("127.0.0.1")
    copy = listener._socket.dup()  # as a worker process of a loader has it
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.port), timeout=5)
    copy.close()


def test_missing_ranks_are_named_if_the_bound_passes(here) -> None:
    with pytest.raises(PeerLost, match=r"ranks 3, 4 have not connected within 0\.01 s"):
        here.accept([3, 4], Purpose.STATE, within=0.01)


def test_the_key_is_in_no_text() -> None:
    assert "key" not in repr(identity(0)) and repr(KEY) not in repr(identity(0))
