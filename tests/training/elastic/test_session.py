"""What a rank makes of its agent's words. The agent is the test; no generation has a place for the rank."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastrain.api.messages import AgentMessage, Proposed, Welcome
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import RankSettings
from elastrain.elastic.membership.session import Session

Say = Callable[[AgentMessage], None]


def proposed(number: int) -> Proposed:
    other = GenerationMember(id="b.x", worker="b", address="127.0.0.1", store_port=1, slots=1, rank_offset=0)
    return Proposed(generation=Generation(number=number, members=(other,), reason="Grow", leader="b.x"))


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[tuple[Session, Say]]:
    """The session of local rank 0 of member ``a.x``, and what the agent says to it."""
    path = str(tmp_path / "agent")
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(path)
        listener.listen()
        session = pool.submit(Session, path, 0)
        agent, _ = listener.accept()
        with agent:

            def say(message: AgentMessage) -> None:
                agent.sendall(message.encode() + b"\n")

            say(Welcome(member="a.x", address="127.0.0.1", lease_ttl=5.0, settings=RankSettings()))
            yield session.result(timeout=10), say
            session.result().close()


def test_an_older_proposal_is_ignored_if_a_newer_one_has_come_before_it(rank):
    session, say = rank
    for number in (5, 4, 6):
        say(proposed(number))
    newest, communicator = session.wait_for_generation(after=5)
    assert (newest.number, communicator) == (6, None)
    with pytest.raises(KeyError):
        session.take(4)
