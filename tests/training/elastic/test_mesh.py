"""Buffers between all ranks at once, with the ranks as threads of the test: real sockets."""

import socket
import threading
import time
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from elastrain.elastic.comm import mesh as mesh_module
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.mesh import Mesh
from elastrain.elastic.comm.peer import PeerLost

LARGE = 4 << 20
"""Numbers of a message that no socket's buffers hold (16 MB)."""


def test_everything_arrives_in_order_if_all_send_more_to_all_than_connections_hold(connect, each) -> None:
    def exchange(c: Communicator) -> dict[int, list[torch.Tensor]]:
        mesh = c.mesh
        received = {peer: [torch.empty(3), torch.empty(LARGE), torch.empty(1)] for peer in mesh.peers}
        for peer in mesh.peers:
            for n in (3, LARGE, 1):
                mesh.send(peer, torch.full((n,), 10.0 * c.rank + peer))
            for into in received[peer]:
                mesh.receive(peer, into)
        mesh.run()
        return received

    for rank, received in enumerate(each(exchange, connect(3))):
        assert sorted(received) == [peer for peer in range(3) if peer != rank]
        for peer, values in received.items():
            assert all((value == 10.0 * peer + rank).all() for value in values)


def test_received_data_may_decide_what_is_sent_and_a_mesh_serves_many_exchanges(pair, each) -> None:
    def relay(c: Communicator) -> list[float]:
        mesh, got = c.mesh, []
        for step in range(3):
            first, second = torch.empty(1), torch.empty(1)
            mesh.receive(1 - c.rank, first, lambda first=first: mesh.send(1 - c.rank, first + 100))
            mesh.receive(1 - c.rank, second)
            mesh.send(1 - c.rank, torch.tensor([10.0 * step + c.rank]))
            mesh.run()
            got.append(float(second))
        return got

    assert each(relay, pair) == [[100.0, 110.0, 120.0], [101.0, 111.0, 121.0]]


def test_all_others_fail_at_once_if_a_rank_is_lost_in_the_middle_of_a_message(connect, each) -> None:
    def exchange(c: Communicator) -> str | None:
        try:
            with c.guard():
                for peer in c.mesh.peers:
                    c.mesh.send(peer, torch.zeros(LARGE))
                    fatal = partial(c.abort, "lost") if c.rank == 2 else None
                    c.mesh.receive(peer, torch.empty(1024 if fatal else LARGE), fatal)
                c.mesh.run()
        except GenerationBroken as e:
            return e.cause
        return None

    first, second, lost = each(exchange, connect(3))
    assert first and second
    assert lost == "lost"


def test_a_rank_stops_waiting_for_a_silent_peer_if_aborted(pair) -> None:
    waiting = pair[0].mesh
    waiting.send(1, torch.zeros(LARGE))
    waiting.receive(1, torch.empty(LARGE))
    threading.Timer(0.05, pair[0].abort, ["the peer is silent"]).start()
    with pytest.raises(GenerationBroken, match="the peer is silent"), pair[0].guard():
        waiting.run()


def test_the_peers_that_do_not_move_are_named_if_the_bound_passes(pair, monkeypatch) -> None:
    waiting = pair[0].mesh
    monkeypatch.setattr("elastrain.elastic.comm.mesh.COLLECTIVE_SECONDS", 0.01)
    waiting.receive(1, torch.empty(1))
    with pytest.raises(PeerLost, match=r"ranks 1 for 0\.\d+ s"):
        waiting.run()


@pytest.mark.parametrize("gone", [1, 2])
def test_a_rank_completes_a_full_exchange_unless_no_other_rank_can_have_it(gone) -> None:
    """The gone peers have sent their part, and not received this rank's."""
    ends = {peer: socket.socketpair() for peer in (1, 2)}
    mesh, got = Mesh(0, {peer: here for peer, (here, _) in ends.items()}, lambda: None), torch.zeros(2)
    for peer, (_, there) in ends.items():
        there.sendall(memoryview(torch.ones(1).numpy()))
        mesh.receive(peer, got[peer - 1 : peer])
        mesh.send(peer, torch.ones(1))
        if peer <= gone:
            there.close()
    with pytest.raises(PeerLost, match="no peer has received") if gone == len(ends) else nullcontext():
        mesh.run()
    assert got.tolist() == [1, 1]
    for here, there in ends.values():
        here.close()
        there.close()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_rank_discards_an_exchange_that_only_it_has_in_full(monkeypatch, frozen) -> None:
    """Its peer has sent everything, and left without this rank's part."""
    here, there = socket.socketpair()
    with here, there:
        mesh, got = Mesh(0, {1: here}, here.close), torch.empty(3)
        mesh.receive(1, got, lambda: frozen and time.sleep(0.1))
        there.sendall(memoryview(torch.ones(3).numpy()))
        there.shutdown(socket.SHUT_RDWR)
        monkeypatch.setattr(mesh_module, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(mesh_module, "FROZEN_SECONDS", 0.05)
        with pytest.raises(PeerLost, match="ranks 1 have left") if frozen else nullcontext():
            mesh.run()
        assert got.tolist() == [1, 1, 1]


def test_a_frozen_rank_continues_if_no_peer_has_left(monkeypatch) -> None:
    here, there = socket.socketpair()
    with here, there:
        mesh, got = Mesh(0, {1: here}, here.close), torch.empty(1)
        mesh.receive(1, got)
        there.sendall(memoryview(torch.ones(2).numpy()))  # it is ahead by a message
        monkeypatch.setattr(mesh_module, "FROZEN_SECONDS", -mesh_module.POLL_SECONDS)
        mesh.run()
        assert got.tolist() == [1]


def test_what_a_peer_may_have_completed_is_completed_if_called_off_before_it_was_read() -> None:
    here, there = socket.socketpair()
    shut = threading.Event()
    with here, there:
        mesh, got = Mesh(0, {1: here}, shut.set), torch.empty(LARGE)
        assert mesh.begin()
        mesh.receive(1, got)
        peer = threading.Thread(target=there.sendall, args=(memoryview(torch.ones(LARGE).numpy()),))
        mesh.call_off()
        peer.start()
        mesh.run()
        peer.join()
        assert (got == 1).all()
        assert not shut.is_set(), "the rank still has to end its exchange"
        mesh.end()
        assert shut.is_set()


def test_no_exchange_begins_and_connections_are_shut_at_once_if_called_off_between_exchanges() -> None:
    here, there = socket.socketpair()
    shut = threading.Event()
    with here, there:
        mesh = Mesh(0, {1: here}, shut.set)
        assert mesh.begin()
        mesh.end()
        mesh.call_off()
        assert shut.is_set()
        assert not mesh.begin()


def test_an_exchange_with_a_silent_peer_ends_soon_if_called_off(monkeypatch) -> None:
    monkeypatch.setattr(mesh_module, "QUIET_SECONDS", 0.01)
    here, there = socket.socketpair()
    with here, there:
        mesh = Mesh(0, {1: here}, here.close)
        assert mesh.begin()
        mesh.receive(1, torch.empty(1))
        threading.Timer(0.05, mesh.call_off).start()
        with pytest.raises(PeerLost, match="no data has come from, or gone to, ranks 1"):
            mesh.run()


def test_an_exchange_that_trickles_ends_if_called_off(monkeypatch) -> None:
    monkeypatch.setattr(mesh_module, "LAST_SECONDS", 0.1)
    here, there = socket.socketpair()
    with here, there:
        mesh, over = Mesh(0, {1: here}, here.close), threading.Event()

        def trickle() -> None:
            while not over.wait(0.001):
                there.send(b"x")

        assert mesh.begin()
        mesh.receive(1, torch.empty(LARGE))
        mesh.call_off()
        peer = threading.Thread(target=trickle)
        peer.start()
        with pytest.raises(PeerLost):
            mesh.run()
        over.set()
        peer.join()
