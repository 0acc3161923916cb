"""Ranks that are real processes, beside agents and a leader that are played: no etcd is needed.

The tests of the runtime use them, and ``make gpu`` on machines that have nothing but torch.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from elastrain.api import messages as m
from elastrain.api import names
from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import BatchSettings, CheckpointSpec, DivergenceSpec, RankSettings, ShareRule

PATIENCE = 60.0
"""Seconds that a test waits for a condition before it fails, saying which."""
SECRET = "5e" * 32
"""Of all generations that are played."""


class Process(Protocol):
    """Of ``subprocess.Popen``."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, signum: int, /) -> None: ...

    def kill(self) -> None: ...


class Starter(Protocol):
    """Starts programs that use torch."""

    def start(self, command: Sequence[str], env: Mapping[str, str], output: BinaryIO) -> Process:
        """``output``: of both streams."""


class Fresh:
    """Starts each program as a new process."""

    def start(self, command: Sequence[str], env: Mapping[str, str], output: BinaryIO) -> Process:
        return subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)


class Rank:
    """One member with one rank: a training process and the agent's end of its socket."""

    def __init__(
        self,
        starter: Starter,
        name: str,
        folder: Path,
        command: list[str],
        env: dict[str, str],
        locate: Callable[[], m.Located],
        saved_step: int,
        settings: RankSettings,
        shard: int = 0,
    ) -> None:
        """``shard``: the part of a sharded model that it holds."""
        self.name, self._shard = name, shard
        self.reached = locate().step
        """What etcd shows as the job's progress when the rank starts."""
        self._locate, self._saved_step, self._settings = locate, saved_step, settings
        self.received: list[m.RankMessage] = []
        self.incarnation = 0
        """How often it has become another member without a restart."""
        self.log = folder / f"{name}.log"
        path = folder / f"{name}.sock"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        server.listen()
        own = {"OMP_NUM_THREADS": "1", names.ENV_WORKER: name, names.ENV_AGENT_SOCKET: str(path)}
        self.process = starter.start(command, {**os.environ, **own, **env}, self.log.open("wb"))
        self._server = server
        self._connection: socket.socket | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            self._connection, _ = self._server.accept()
            for line in self._connection.makefile("rb"):
                message = m.RANK_MESSAGE.validate_json(line)
                if message.type == "misplaced" and not message.ahead:
                    self.incarnation += 1
                if message.type == "hello" or (message.type == "misplaced" and not message.ahead):
                    self._welcome()
                if message.type == "locate":
                    self.send(self._locate())
                if message.type == "holds":
                    self.send(m.Exit(reason="the job has finished", finished=True))
                self.received.append(message)
        except OSError:
            return

    def _welcome(self) -> None:
        place = {"member": self.member, "address": "127.0.0.1", "lease_ttl": 5}
        settled = {"settings": self._settings, "saved_step": self._saved_step, "first_shard": self._shard}
        self.send(m.Welcome(**place, **settled, step=self.reached))

    def renew(self) -> None:
        """Another rank of its worker was killed: it is of a new member, and not ready yet."""
        self.incarnation += 1
        self._welcome()

    @property
    def member(self) -> str:
        return f"{self.name}.{self.incarnation}"

    def is_ready(self) -> bool:
        """Whether it is ready as the member that it is now."""
        said = (x for x in reversed(self.received) if x.type in ("ready", "misplaced"))
        return next((x.type == "ready" for x in said), False)

    def send(self, message: m.AgentMessage) -> None:
        assert self._connection is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # it is just ending
            self._connection.sendall(message.encode() + b"\n")

    def has_read_all(self) -> bool:
        """Whether no message waits in its connection."""
        assert self._connection is not None
        waiting = fcntl.ioctl(self._connection, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) == 0

    def of_type(self, kind: str) -> list[Any]:
        """The messages of one type, each with its own fields."""
        return [x for x in self.received if x.type == kind]

    def has(self, kind: str, **fields: object) -> bool:
        return any(all(getattr(x, k) == v for k, v in fields.items()) for x in self.of_type(kind))

    def step(self) -> int:
        reports = self.of_type("report")
        return reports[-1].progress.step if reports else 0

    def saved_step(self) -> int:
        """Step of the newest checkpoint in its last report; 0: it names none."""
        checkpoint = next((r.progress.checkpoint for r in self.of_type("report")[-1:]), None)
        return checkpoint.step if checkpoint else 0

    def kill(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for s in (self._connection, self._server):
            if s is not None:
                with suppress(OSError):  # the other end was quicker
                    s.shutdown(socket.SHUT_RDWR)  # ends the thread that waits for it
                s.close()


class World:
    """The ranks of one test and the leader's part."""

    def __init__(self, folder: Path, warm: Starter) -> None:
        self.folder = folder
        self.warm = warm
        folder.mkdir(exist_ok=True)
        self.audit = folder / "audit"
        self.number = 0
        self.ranks: dict[str, Rank] = {}

    def start(
        self,
        *ranks: str,
        epochs: int = 20,
        delay: float = 0.1,
        script: Path,
        checkpoint: CheckpointSpec | None = None,
        batch: BatchSettings | None = None,
        divergence: DivergenceSpec | None = None,
        shares: ShareRule = ShareRule.EQUAL,
        **env: str,
    ) -> None:
        saved_step = max((r.saved_step() for r in self.ranks.values()), default=0)
        divergence = divergence or DivergenceSpec()
        settings = RankSettings(
            audit_dir=str(self.audit), checkpoint=checkpoint, batch=batch, divergence=divergence, shares=shares
        )
        for name in ranks:
            command = [sys.executable, str(script), str(self.folder), str(epochs), str(delay)]
            self.ranks[name] = Rank(self.warm, name, self.folder, command, env, self.located, saved_step, settings)

    def located(self) -> m.Located:
        """The position of the job, as etcd shows it."""
        reports = [r.of_type("report")[-1].progress for r in self.ranks.values() if r.of_type("report")]
        newest = max(reports, key=lambda p: (p.step, p.total_steps, p.nth_loop), default=None)
        step, loop = (newest.step, LoopId(newest.total_steps, newest.nth_loop)) if newest else (0, NO_LOOP)
        held = any(r.of_type("adopted") and r.process.poll() is None for r in self.ranks.values())
        return m.Located(step=step, training=held, loop=loop)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        def check() -> object:
            for r in self.ranks.values():
                assert r.process.poll() in (None, 0, -signal.SIGKILL), f"{r.name} failed:\n{r.log.read_text()[-3000:]}"
            return condition()

        deadline = time.monotonic() + PATIENCE
        while not check():
            assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
            time.sleep(0.01)

    def ready(self, *ranks: str) -> None:
        self.wait(f"{ranks} ready", lambda: all(self.ranks[r].is_ready() for r in ranks))

    def propose(self, *ranks: str, reason: str = "Test") -> int:
        """Propose a generation of these ranks to every live rank."""
        self.number += 1
        members = []
        for offset, name in enumerate(ranks):
            ready = self.ranks[name].of_type("ready")[-1]
            place = {
                "id": self.ranks[name].member,
                "worker": name,
                "address": "127.0.0.1",
                "store_port": ready.store_port,
            }
            members.append(GenerationMember(**place, rank_offset=offset))
        generation = Generation(number=self.number, members=tuple(members), reason=reason, leader="test", secret=SECRET)
        for r in self.ranks.values():
            if r.process.poll() is None:
                r.send(m.Proposed(generation=generation))
        return self.number

    def adopted(self, *ranks: str) -> None:
        number = self.number
        self.wait(
            f"{ranks} adopt generation {number}",
            lambda: all(self.ranks[r].has("adopted", generation=number) for r in ranks),
        )

    def together(self, *ranks: str) -> None:
        """Propose a generation of these, and wait until they have adopted it."""
        self.propose(*ranks)
        self.adopted(*ranks)

    def progressed(self, rank: str, steps: int) -> None:
        """Wait until ``rank`` (which must be rank 0) has reported ``steps`` more steps."""
        goal = self.ranks[rank].step() + steps
        self.wait(f"{rank} reaches step {goal}", lambda: self.ranks[rank].step() >= goal)

    def finished(self, *ranks: str) -> dict[str, dict[str, Any]]:
        """Let them run freely; returns what each saved at its end."""
        import torch

        (self.folder / "run-free").touch()
        self.wait(f"{ranks} finish", lambda: all(self.ranks[r].process.poll() == 0 for r in ranks))
        return {r: torch.load(self.folder / f"final-{self.ranks[r].process.pid}.pt") for r in ranks}
