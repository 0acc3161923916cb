"""Real ranks, and their agents and leader played by this process: cycles as fast as the ranks can."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from elastrain.api import messages as m
from elastrain.api import names
from elastrain.api.records import Generation, GenerationMember
from elastrain.tether import tethered
from rescale_harness.systems import HOST, base_environment

PATIENCE_SECONDS = 60.0
POLL_SECONDS = 0.002
LEASE_TTL = 5.0


class Stuck(RuntimeError):
    """Something did not happen in time; the message says what, and where the logs are."""


class Rank:
    """One member with one rank: a training process, and the agent's end of its socket."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._said: dict[str, int] = {}
        """Kind of message -> the newest generation that it was said of; ``ready``: the port."""
        self._connection: socket.socket | None = None
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = directory / f"{name}.sock"
        # A Unix socket's path may have 107 characters: the directory may be deep, its name seen from inside is not.
        with contextlib.chdir(directory):
            self._server.bind(path.name)
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        environment = {names.ENV_WORKER: name, names.ENV_AGENT_SOCKET: path.name}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                tethered([sys.executable, "-m", "leaks_harness.train"], signal.SIGKILL),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=directory,
                env={**base_environment(), **environment},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            self._connection, _ = self._server.accept()
            for line in self._connection.makefile("rb"):
                match m.RANK_MESSAGE.validate_json(line):
                    case m.Hello():
                        self.send(m.Welcome(member=f"{self.name}.0", address=HOST, lease_ttl=LEASE_TTL))
                    case m.Ready(store_port=port):
                        self._said["ready"] = port
                    case m.Adopted(generation=number) | m.Broken(generation=number) as message:
                        self._said[message.type] = number

    def send(self, message: m.AgentMessage) -> None:
        assert self._connection is not None
        self._connection.sendall(message.encode() + b"\n")

    def said(self, kind: str) -> int:
        """0: never."""
        return self._said.get(kind, 0)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """SIGSTOP. Returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for s in (self._connection, self._server):
            if s is not None:
                s.close()


class Leader:
    """The ranks of one series and the words of their leader. A context manager that ends them all."""

    def __init__(self, size: int, directory: Path) -> None:
        """``directory``: new, for the logs."""
        directory.mkdir(parents=True)
        self._directory = directory
        self._number = 0
        self.ranks: list[Rank] = []
        for i in range(size):
            self.ranks.append(Rank(f"rank-{i}", directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.end()

    def ready(self) -> None:
        """Wait for all."""
        self._wait("all to be ready", lambda: all(r.said("ready") for r in self.ranks))

    def propose(self, members: Sequence[Rank]) -> None:
        """Propose a generation of ``members`` to all that can hear it, and wait until they have adopted it."""
        self._number += 1
        place = [
            GenerationMember(
                id=f"{r.name}.0", worker=r.name, address=HOST, store_port=r.said("ready"), rank_offset=offset
            )
            for offset, r in enumerate(members)
        ]
        generation = Generation(number=self._number, members=tuple(place), reason="Cycle", leader=place[0].id)
        for rank in self.ranks:
            rank.send(m.Proposed(generation=generation))
        number = self._number
        self._wait(f"generation {number}", lambda: all(r.said("adopted") == number for r in members))

    def stood_aside(self, rank: Rank) -> None:
        """Wait until ``rank`` has stopped for the newest generation, which it is no member of."""
        self._wait(f"{rank.name} to stand aside", lambda: rank.said("adopted") == self._number)

    def abort(self, reason: str) -> None:
        """Break the newest generation off."""
        for rank in self.ranks:
            rank.send(m.Abort(generation=self._number, reason=reason))

    def broken(self, ranks: Sequence[Rank], number: int) -> None:
        """Wait until ``ranks`` have seen generation ``number`` break."""
        self._wait(f"{len(ranks)} ranks to be out of {number}", lambda: all(r.said("broken") >= number for r in ranks))

    @property
    def number(self) -> int:
        """Of the newest generation."""
        return self._number

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            dead = [r.name for r in self.ranks if not r.alive]
            if dead or time.monotonic() > end:
                why = f"{', '.join(dead)} ended" if dead else f"not within {PATIENCE_SECONDS:g} s"
                raise Stuck(f"waiting for {what}: {why}; see {self._directory}")
            time.sleep(POLL_SECONDS)
