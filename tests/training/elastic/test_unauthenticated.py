"""Promise: a client that cannot prove that it belongs to the generation changes nothing, learns nothing and delays no
rank. Each attack is written as its client would be."""

import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import cycle

import psutil
import pytest
import torch

from conditions import eventually
from elastrain.elastic.comm import handshake as h
from elastrain.elastic.comm.channel import Channels, Purpose, receive
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.handshake import PROTOCOL, Hello, Identity
from elastrain.elastic.comm.listener import Listener
from elastrain.elastic.comm.meeting import LENGTH_BYTES, MAX_ROW, exchange
from elastrain.elastic.comm.peer import PeerLost

SOON = 1.0
"""Seconds within which ranks connect, beside an attack, on a loaded machine."""
Attack = Callable[[int], list[socket.socket]]
"""An attack on a port; the connections that it holds."""


def to(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def forged(**fields) -> Hello:
    """What a client knows or guesses that reads along: everything but the secret."""
    return Hello(**{"protocol": PROTOCOL, "purpose": Purpose.MEETING, "generation": 1, "caller": 1, "listener": 0,
                    "nonce": secrets.token_bytes(h.NONCE_BYTES)} | fields)  # fmt: skip


def ended(connection: socket.socket) -> bytes:
    """What still comes from the connection until its other end closes it."""
    came = bytearray()
    try:
        while data := connection.recv(1 << 16):
            came += data
    except ConnectionError:
        pass
    return bytes(came)


def silent(port: int) -> list[socket.socket]:
    return [to(port)]


def many(port: int) -> list[socket.socket]:
    return [to(port) for _ in range(h.PENDING + 50)]


def talkative(port: int) -> list[socket.socket]:
    """More than any rank sends, and no hello."""
    connection = to(port)
    connection.setblocking(False)
    while True:
        try:
            connection.send(bytes(1 << 16))
        except OSError:
            break
    connection.settimeout(10)
    return [connection]


def byte_by_byte(port: int) -> list[socket.socket]:
    connection = to(port)
    connection.sendall(forged().encode()[:1])
    return [connection]


def unproven(port: int) -> list[socket.socket]:
    """A right hello, and nothing after the answer."""
    connection = to(port)
    connection.sendall(forged().encode())
    return [connection]


def wrong_proof(port: int) -> list[socket.socket]:
    (connection,) = unproven(port)
    with suppress(ConnectionError):  # it was no hello to this rank
        receive(connection, bytearray(h.ANSWER_BYTES))
        connection.sendall(bytes(h.PROOF_BYTES))
    return [connection]


def reflected_proof(port: int) -> list[socket.socket]:
    """The listener's own proof, sent back to it."""
    (connection,) = unproven(port)
    with suppress(ConnectionError):
        answer = receive(connection, bytearray(h.ANSWER_BYTES))
        connection.sendall(answer[h.NONCE_BYTES :])
    return [connection]


def of_the_far_future(port: int) -> list[socket.socket]:
    connection = to(port)
    connection.sendall(forged(generation=10**12).encode())
    return [connection]


def as_no_rank(port: int) -> list[socket.socket]:
    connection = to(port)
    connection.sendall(forged(caller=2**32 - 1).encode())
    return [connection]


def in_json(port: int) -> list[socket.socket]:
    """As no rank speaks."""
    connection = to(port)
    request = {"protocol": PROTOCOL, "generation": 1, "rank": 1, "world_size": 2, "timeout": 60, "values": {}}
    connection.sendall(json.dumps(request).encode() + b"\n")
    return [connection]


ATTACKS = [silent, many, talkative, byte_by_byte, unproven, wrong_proof, reflected_proof, of_the_far_future,
           as_no_rank, in_json]  # fmt: skip


@pytest.fixture(params=ATTACKS, ids=lambda attack: attack.__name__)
def attack(request) -> Iterator[Attack]:
    with ExitStack() as held:

        def begin(port: int) -> list[socket.socket]:
            return [held.enter_context(connection) for connection in request.param(port)]

        yield begin


def test_ranks_meet_beside_an_attack_on_their_meeting_point(attack, generation, listeners, each) -> None:
    """No value of theirs comes to the attacker, and none of its values to them."""
    g = generation(2)
    ends = [Channels(listeners[rank], Identity.of(g, rank)) for rank in range(2)]
    connections = attack(listeners[0].port)
    began = time.monotonic()
    met = each(lambda r: exchange(g, r, ends[r], {"key": f"TOKEN {r}"}, lambda: False), range(2))
    assert met == [[{"key": "TOKEN 0"}, {"key": "TOKEN 1"}]] * 2
    assert time.monotonic() - began < SOON
    for connection in connections:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)  # it need not wait until it is closed
        assert b"TOKEN" not in ended(connection)


def test_ranks_connect_beside_an_attack_on_their_channels(attack, generation, listeners, each, monkeypatch) -> None:
    g, begun = generation(2), threading.Barrier(2)
    made = Channels.__init__

    def attacked(self: Channels, *arguments) -> None:
        made(self, *arguments)
        attack(self._listener.port)
        begun.wait(10)

    monkeypatch.setattr(Channels, "__init__", attacked)
    began = time.monotonic()
    ranks = each(lambda r: Communicator(of=g, rank=r, listener=listeners[r]), range(2))
    assert time.monotonic() - began < 2 * SOON
    assert each(lambda c: c.all_gather_ints([c.rank]), ranks) == [[[0], [1]]] * 2
    for c in ranks:
        c.close()


def test_a_client_is_closed_and_forgotten_in_time(monkeypatch) -> None:
    monkeypatch.setattr("elastrain.elastic.comm.listener.HELLO_SECONDS", 0.2)
    arrived: list[Hello] = []
    listener = Listener("127.0.0.1")
    listener.expect(Identity(1, 0, 3, b"k" * 32), lambda hello, _: arrived.append(hello))
    for attack in ATTACKS:
        for connection in attack(listener.port):
            ended(connection)
            connection.close()
    eventually(lambda: not listener._callers and not len(listener._pending))
    assert not arrived
    listener.close()


def test_a_flood_displaces_its_own_connections_only() -> None:
    pending: h.Pending[int] = h.Pending(limit=3)
    assert pending.add(1, "peer") is None
    assert [pending.add(n, "flood") for n in range(2, 7)] == [None, None, 2, 3, 4]
    assert len(pending) == 3
    pending.discard(1)
    assert pending.add(7, "flood") is None


@pytest.fixture
def ends(listeners) -> Iterator[tuple[Channels, Channels]]:
    """The channels of ranks 0 and 1."""
    made = tuple(Channels(listeners[rank], Identity(7, rank, 2, b"k" * 32)) for rank in range(2))
    yield made
    for channels in made:
        channels.close()


class Relay:
    """Sits between two ranks, hands every byte on, and records it."""

    def __init__(self, port: int) -> None:
        self._port, self._server = port, socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1 {self._server.getsockname()[1]}"
        self.said = {"caller": bytearray(), "listener": bytearray()}
        self._threads = ThreadPoolExecutor(3)
        self._threads.submit(self._run)

    def _run(self) -> None:
        caller, listener = self._server.accept()[0], to(self._port)
        self._threads.submit(self._copy, caller, listener, "caller")
        self._threads.submit(self._copy, listener, caller, "listener")

    def _copy(self, source: socket.socket, target: socket.socket, who: str) -> None:
        while data := source.recv(1 << 16):
            self.said[who] += data
            target.sendall(data)


def test_a_recorded_handshake_cannot_be_replayed_to_either_end(ends) -> None:
    here, caller = ends
    relay = Relay(here._listener.port)
    caller.connect(0, relay.address, Purpose.STATE).sendall(b"state")
    assert receive(here.accept([1], Purpose.STATE)[1], bytearray(5)) == b"state"
    recorded = bytes(relay.said["caller"])
    with to(here._listener.port) as again:
        again.sendall(recorded)
        assert len(ended(again)) <= h.ANSWER_BYTES
    with pytest.raises(PeerLost):
        here.accept([1], Purpose.STATE, within=0.1)
    with socket.create_server(("127.0.0.1", 0)) as false_listener, ThreadPoolExecutor(1) as pool:
        port = false_listener.getsockname()[1]
        calling = pool.submit(caller.connect, 0, f"127.0.0.1 {port}", Purpose.STATE)
        with false_listener.accept()[0] as connection:
            connection.sendall(bytes(relay.said["listener"]))
            with pytest.raises(h.Unauthenticated, match="what answers is not rank 0 of generation 7"):
                calling.result(10)


def test_a_proof_is_worthless_for_another_purpose_rank_or_generation() -> None:
    """The whole hello is under the proof: a relay changes no part of it."""
    key, hello, nonce = b"k" * 32, forged(), bytes(h.NONCE_BYTES)
    others = [replace(hello, **{name: value}) for name, value in
              [("purpose", 0), ("generation", 2), ("caller", 2), ("listener", 3), ("protocol", 1),
               ("nonce", bytes(h.NONCE_BYTES))]]  # fmt: skip
    proofs = {h._proof(key, role, of, nonce) for of in (hello, *others) for role in (b"caller", b"listener")}
    assert len(proofs) == 14


def test_bounds_hold_for_ranks_too(generation, ends, listeners, each) -> None:
    g = generation(2, 7)

    def announce() -> bytes:
        connection = ends[1].connect(0, ends[0].invitation, Purpose.MEETING)
        connection.sendall((MAX_ROW + 1).to_bytes(LENGTH_BYTES, "big"))
        return ended(connection)

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(announce)
        with pytest.raises(PeerLost, match=f"a peer announces {MAX_ROW + 1} bytes"):
            exchange(g, 0, ends[0], {}, lambda: False)
        assert heard.result(10) == b""


def test_a_rank_of_a_generation_without_a_secret_says_so(generation, listeners) -> None:
    g = generation(2).model_copy(update={"secret": "", "leader": "old.1"})
    with pytest.raises(
        h.Unauthenticated, match=r"generation 1 has no secret of 32 bytes: its leader, old\.1, runs another"
    ):
        Communicator(of=g, rank=0, listener=listeners[0])


# ---- real ranks ------------------------------------------------------------------------------------------------------
class Attackers(threading.Thread):
    """All attacks on every port of the ranks, in turns, until it is stopped; connections are held for a while."""

    def __init__(self, world) -> None:
        super().__init__(name="attackers")
        self._world, self._over = world, threading.Event()
        self.attacked = 0
        self.start()

    def run(self) -> None:
        held: deque[socket.socket] = deque()
        turns = cycle(attack for attack in ATTACKS if attack is not many)
        while not self._over.wait(0.02):
            for port in self._ports():
                with suppress(OSError):
                    held.extend(next(turns)(port))
                    self.attacked += 1
            while len(held) > 60:
                held.popleft().close()
        for connection in held:
            connection.close()

    def _ports(self) -> list[int]:
        """Those on which processes of the ranks listen."""
        ports: list[int] = []
        for rank in list(self._world.ranks.values()):
            with suppress(psutil.Error):
                sockets = psutil.Process(rank.process.pid).net_connections("tcp")
                ports += [s.laddr.port for s in sockets if s.status == psutil.CONN_LISTEN]
        return ports

    def stop(self) -> None:
        self._over.set()
        self.join()


def test_ranks_train_grow_and_lose_a_rank_beside_all_attacks(world) -> None:
    world.start("a", "b")
    world.ready("a", "b")
    attackers = Attackers(world)
    try:
        world.together("a", "b")
        world.start("c")
        world.ready("c")
        began = time.monotonic()
        world.together("a", "b", "c")
        assert time.monotonic() - began < 10, "the growth was held up"
        world.wait("all attacks", lambda: attackers.attacked > 20)
        world.ranks["b"].kill()
        world.wait("the loss is reported", lambda: world.ranks["a"].has("broken", generation=world.number))
        began = time.monotonic()
        world.together("a", "c")
        assert time.monotonic() - began < 10, "the survivors were held up"
        ends = world.finished("a", "c")
    finally:
        attackers.stop()
    for name, value in ends["a"]["model"].items():
        assert torch.equal(ends["c"]["model"][name], value)
    assert ends["a"]["commits"] == list(range(1, ends["a"]["step"] + 1))
