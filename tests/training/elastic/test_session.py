"""A rank's handling of its agent's messages. The test is the agent; no generation includes the rank."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bench_harness.played_ranks import SECRET
from conditions import eventually
from elastrain.api.messages import RANK_MESSAGE, AgentMessage, Broken, Proposed, Welcome
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import RankSettings
from elastrain.elastic.comm.peer import PeerLost
from elastrain.elastic.comm.stock.nccl import InitialisationFailed
from elastrain.elastic.group import connecting
from elastrain.elastic.group.machine.events import StopFor
from elastrain.elastic.group.shell import Session
from elastrain.link import AgentLost, MessageFailed

Say = Callable[[AgentMessage], None]


def proposed(number: int, *members: str) -> Proposed:
    """A generation of these members, or of one that is not this rank's."""
    place = {"address": "127.0.0.1", "store_port": 1, "slots": 1}
    of = [GenerationMember(id=m, worker=m[0], rank_offset=i, **place) for i, m in enumerate(members or ("b.x",))]
    return Proposed(
        generation=Generation(number=number, members=tuple(of), reason="Grow", leader=of[0].id, secret=SECRET)
    )


def next_generation(session: Session) -> Generation:
    """The one that this rank stands by outside of."""
    instruction = session.boundary(holds=False)
    assert isinstance(instruction, StopFor)
    return instruction.generation


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[Session, socket.socket]]:
    """The session of local rank 0 of member ``a.x``, and the agent's end of its link."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(path)
        listener.listen()
        session = pool.submit(Session, path, 0)
        agent, _ = listener.accept()
        with agent:
            welcome = Welcome(member="a.x", address="127.0.0.1", lease_ttl=5.0, settings=RankSettings())
            agent.sendall(welcome.encode() + b"\n")
            yield session.result(timeout=10), agent
            session.result().close()


@pytest.fixture
def rank(link) -> tuple[Session, Say]:
    """The session, and what the agent says to it."""
    session, agent = link
    return session, lambda message: agent.sendall(message.encode() + b"\n")


def test_an_older_proposal_is_ignored_if_a_newer_one_has_come_before_it(rank):
    session, say = rank
    for number in (5, 4, 6):
        say(proposed(number))
    eventually(lambda: session.core.proposals.number == 6, 10, "the newest proposal to come")
    assert next_generation(session).number == 6
    assert session.proposal(4) is None


@pytest.mark.parametrize(
    ("error", "mine"),
    [
        (PeerLost("no route"), False),
        (InitialisationFailed("refused"), False),
        (OSError("too many open files"), True),
        (RuntimeError("CUDA error: x"), True),
        (KeyError("offer/1"), True),
        (SystemExit(3), True),
    ],
)
def test_another_generation_is_asked_for_if_connecting_fails_in_any_way(link, monkeypatch, capsys, error, mine):
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(connecting, "Communicator", fail)
    session, agent = link
    hear = agent.makefile("rb")
    assert RANK_MESSAGE.validate_json(hear.readline()).type == "hello"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next_generation, session)
        agent.sendall(proposed(1, "a.x", "b.x").encode() + b"\n")
        agent.settimeout(10)
        asked = RANK_MESSAGE.validate_json(hear.readline())
        agent.sendall(proposed(2).encode() + b"\n")
        newest = waiting.result(timeout=10)
    assert isinstance(asked, Broken)
    assert (asked.generation, newest.number, asked.mine, asked.leaves) == (1, 2, mine, False)
    assert asked.error.startswith(f"{type(error).__name__}: ")
    assert ("Traceback" in capsys.readouterr().out) == mine


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"type": "abort", "generation": "seven", "reason": "' + 300 * b"x" + b'"}', "generation: Input should be"),
        (b"{damaged", "Invalid JSON"),
        (b'{"generation": 1}', "Unable to extract tag"),
    ],
)
def test_the_rank_ends_with_the_message_and_the_reason_if_a_message_cannot_be_read(link, line, reason):
    session, agent = link
    agent.sendall(line + b"\n")
    with ThreadPoolExecutor(1) as pool, pytest.raises(MessageFailed) as failed:
        pool.submit(next_generation, session).result(timeout=10)
    assert reason in str(failed.value)
    assert line[:200].decode() in str(failed.value)
    assert line[:201].decode() not in str(failed.value) or len(line) <= 200


def test_a_message_is_ignored_if_its_type_is_unknown(link):
    session, agent = link
    agent.sendall(b'{"type": "of-a-newer-version", "generation": 3}\n' + proposed(4).encode() + b"\n")
    assert next_generation(session).number == 4


def test_the_agent_counts_as_gone_if_it_ends_in_the_middle_of_a_message(link):
    session, agent = link
    agent.sendall(b'{"type": "pro')
    agent.shutdown(socket.SHUT_WR)
    with ThreadPoolExecutor(1) as pool, pytest.raises(AgentLost):
        pool.submit(next_generation, session).result(timeout=10)
