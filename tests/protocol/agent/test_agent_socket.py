"""Who may speak for a rank on the agent's socket."""

import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrain.agent.core.events import RankHungUp, RankSaid
from elastrain.agent.socket import RankServer
from elastrain.api import messages as m

SECONDS = 10.0


class Process:
    """A process that says hello."""

    def __init__(self, server: RankServer) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(str(server.path))
        self.says(m.Hello(local_rank=0, pid=1))

    def says(self, message: m.RankMessage) -> None:
        self.socket.sendall(message.encode() + b"\n")

    def is_hung_up(self) -> bool:
        return self.socket.recv(1) == b""


@pytest.fixture
def inbox() -> "queue.Queue[RankSaid | RankHungUp]":
    return queue.Queue()


@pytest.fixture
def server(tmp_path: Path, inbox) -> Iterator[RankServer]:
    server = RankServer(tmp_path, 1, inbox.put)
    yield server
    server.close()


def heard(inbox) -> object:
    return inbox.get(timeout=SECONDS)


def test_a_child_of_the_rank_does_not_take_its_connection_over(server, inbox) -> None:
    rank = Process(server)
    assert heard(inbox).message.type == "hello"
    assert Process(server).is_hung_up()
    rank.says(m.Locate())
    assert heard(inbox).message.type == "locate"


def test_a_rank_may_speak_again_if_its_connection_has_ended(server, inbox) -> None:
    rank = Process(server)
    assert heard(inbox).message.type == "hello"
    rank.socket.close()
    assert isinstance(heard(inbox), RankHungUp)
    Process(server)
    assert heard(inbox).message.type == "hello"


def test_the_successor_of_a_rank_may_speak_if_the_agent_forgets_the_last_one(server, inbox) -> None:
    rank = Process(server)
    assert heard(inbox).message.type == "hello"
    server.forget(0)
    Process(server)
    assert heard(inbox).message.type == "hello"
    assert rank.is_hung_up()
