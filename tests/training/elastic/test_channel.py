"""Connections between ranks: each has one purpose, and only invited ranks connect."""

import socket
from collections.abc import Iterator

import pytest

from elastrain.elastic.comm.channel import Channels, Purpose, receive


@pytest.fixture
def ends() -> Iterator[tuple[Channels, Channels, Channels]]:
    """The channels of ranks 0, 1 and 2."""
    made = tuple(Channels("127.0.0.1") for _ in range(3))
    yield made
    for channels in made:
        channels.close()


def greet(connection: socket.socket) -> None:
    connection.sendall(b"hello")


def greeted(connection: socket.socket) -> bool:
    return receive(connection, bytearray(5)) == b"hello"


def test_a_connection_is_kept_for_later_if_it_is_for_another_purpose_or_comes_early(ends) -> None:
    here, one, two = ends
    greet(two.connect(2, here.invitation, Purpose.SUMS))
    greet(two.connect(2, here.invitation, Purpose.STATE))
    greet(one.connect(1, here.invitation, Purpose.STATE))
    state = here.accept([1], Purpose.STATE)
    assert state.keys() == {1} and greeted(state[1])
    for purpose in (Purpose.SUMS, Purpose.STATE):
        later = here.accept([2], purpose)
        assert later.keys() == {2} and greeted(later[2])


def test_an_uninvited_client_is_refused(ends) -> None:
    here, stranger, one = ends
    address, port, _ = here.invitation.split()
    refused = stranger.connect(1, f"{address} {port} {'0' * 32}", Purpose.STATE)
    one.connect(1, here.invitation, Purpose.STATE)
    here.accept([1], Purpose.STATE)
    assert refused.recv(1) == b""


def test_a_wait_for_others_ends_if_it_is_called_off() -> None:
    channels = Channels("127.0.0.1")
    with pytest.raises(ConnectionAbortedError, match="no longer needed"):
        channels.accept([3], Purpose.SUMS, called_off=lambda: True)
    channels.close()


def test_missing_ranks_are_named_if_the_bound_passes() -> None:
    channels = Channels("127.0.0.1")
    with pytest.raises(TimeoutError, match=r"ranks 3, 4 have not connected within 0\.01 s"):
        channels.accept([3, 4], Purpose.STATE, within=0.01)
    channels.close()
