"""How the ranks of a generation find each other."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from elastrain.elastic.comm import meeting as module
from elastrain.elastic.comm import tree
from elastrain.elastic.comm.channel import Channels
from elastrain.elastic.comm.handshake import PROTOCOL, Identity
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.peer import PeerLost

DEEP = 12
"""Ranks: 1 passes on between 0 and 9 to 11."""


@pytest.fixture
def meet(listeners):
    """``meet(g, rank)``: the rows that the rank receives."""

    def of(g, rank: int, called_off=lambda: False, value: str = "value") -> list[dict[str, str]]:
        channels = Channels(listeners[rank], Identity.of(g, rank))
        try:
            row = {"channels": channels.invitation, "key": f"{value} {rank}"}
            return [{"key": r["key"]} for r in module.exchange(g, rank, channels, row, called_off)]
        finally:
            channels.close()

    return of


@pytest.mark.parametrize("size", [1, 2, 5, DEEP])
def test_every_rank_gets_the_values_of_all(generation, meet, each, size) -> None:
    g = generation(size)
    assert each(lambda r: meet(g, r), range(size)) == [[{"key": f"value {k}"} for k in range(size)]] * size


def test_no_rank_sends_the_values_of_all_to_more_ranks_than_the_tree_has_branches(
    generation, meet, each, monkeypatch
) -> None:
    sent: list[str] = []
    send = module._send

    def counted(connection, message, patience) -> None:
        if isinstance(message, list):
            sent.append(threading.current_thread().name)
        send(connection, message, patience)

    monkeypatch.setattr(module, "_send", counted)
    g = generation(DEEP)
    each(lambda r: meet(g, r), range(DEEP))
    assert sorted(map(sent.count, set(sent))) == [DEEP - 1 - tree.FAN, tree.FAN]


def test_generations_do_not_see_each_others_values(generation, meet, each) -> None:
    old, new = generation(2, number=1), generation(2, number=2)
    each(lambda r: meet(old, r), range(2))
    assert each(lambda r: meet(new, r, value="new"), range(2)) == [[{"key": "new 0"}, {"key": "new 1"}]] * 2


@pytest.mark.parametrize("rank", [0, 1, DEEP - 1])
def test_the_wait_ends_if_it_is_called_off(generation, meet, rank) -> None:
    unwanted = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(meet, generation(DEEP), rank, unwanted.is_set)
        unwanted.set()
        with pytest.raises(PeerLost):
            waiting.result(10)


def test_missing_ranks_are_named_after_the_timeout(generation, meet, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.2)
    with pytest.raises(
        PeerLost, match=r"generation 1: no rank of w1, w2 has come: .* within 0.2 s; do all workers run"
    ):
        meet(generation(3), 0)


def test_rank_0_is_named_if_it_does_not_answer(generation, meet, listeners, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.2)
    g = generation(2)
    listeners[0].close()
    with pytest.raises(PeerLost, match=rf"rank 0 of w0 does not answer at 127.0.0.1 {listeners[0].port}: "):
        meet(g, 1)


def test_a_rank_meets_the_others_if_rank_0_knows_the_generation_later(generation, meet, listeners, monkeypatch) -> None:
    g = generation(2)
    monkeypatch.setattr("elastrain.elastic.comm.listener.HELLO_SECONDS", 60.0)  # it waits, and does not call again
    asked = threading.Event()
    hear = Listener._hear

    def heard(self, caller) -> None:
        hear(self, caller)
        asked.set()

    monkeypatch.setattr(Listener, "_hear", heard)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(meet, g, 1)
        assert asked.wait(10)
        assert meet(g, 0) == early.result(10)


def test_ranks_of_another_protocol_do_not_meet(generation, meet, each, monkeypatch) -> None:
    monkeypatch.setattr(module, "MEETING_SECONDS", 0.3)
    to = Identity.to
    monkeypatch.setattr(Identity, "to", lambda self, *at: replace(to(self, *at), protocol=PROTOCOL + 1))
    g = generation(2)

    def rank(r: int) -> str:
        with pytest.raises(PeerLost) as error:
            meet(g, r)
        return str(error.value)

    assert all("do all workers run the same version of elastrain?" in message for message in each(rank, range(2)))


@pytest.mark.parametrize("rubbish", [b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"[1]\n", b"\xff\n", b""])
def test_the_meeting_continues_if_a_client_sends_an_invalid_request(generation, meet, listeners, each, rubbish) -> None:
    with socket.create_connection(("127.0.0.1", listeners[0].port)) as stranger:
        stranger.sendall(rubbish)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(100) == b""
    g = generation(2)
    assert each(lambda r: meet(g, r), range(2)) == [[{"key": "value 0"}, {"key": "value 1"}]] * 2


def test_an_address_of_another_host_is_refused() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        Listener("192.0.2.1")
