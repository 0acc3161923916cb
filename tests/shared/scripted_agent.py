"""The agent's end of a rank's socket, played by the test: it starts one program in the place of a rank."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from elastrain.api import messages as m
from elastrain.api import names
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import RankSettings

SECONDS = 30.0


def formed(number: int, *workers: str, ended: tuple[int, ...] = ()) -> Generation:
    """A generation of these workers, in rank order; the member id of worker ``a`` is ``a.0``."""
    members = tuple(
        GenerationMember(id=f"{w}.0", worker=w, address="127.0.0.1", store_port=9000 + i, slots=1, rank_offset=i)
        for i, w in enumerate(workers)
    )
    leader = f"{workers[0]}.0" if workers else ""
    return Generation(
        number=number, members=members, reason="Start", leader=leader, ended=ended, secret=secrets.token_hex(32)
    )


class ScriptedAgent:
    """The agent of worker ``a``."""

    def __init__(self, folder: Path, arguments: Sequence[str], **environment: str) -> None:
        """``arguments``: of the Python that runs in the place of a rank."""
        path = folder / "agent.sock"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        self._server.settimeout(SECONDS)
        self.process = subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, names.ENV_AGENT_SOCKET: str(path), **environment}
        )
        self._connection, _ = self._server.accept()
        self._connection.settimeout(SECONDS)
        self._lines = self._connection.makefile("rb")
        assert self.hears().type == "hello"
        self.says(m.Welcome(member="a.0", address="127.0.0.1", lease_ttl=0.0, settings=RankSettings()))
        self.ready = self.hears()

    def says(self, message: m.AgentMessage) -> None:
        self._connection.sendall(message.encode() + b"\n")

    def hears(self) -> m.RankMessage:
        return m.RANK_MESSAGE.validate_json(self._lines.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        self._lines.close()
        self._connection.close()
        self._server.close()
