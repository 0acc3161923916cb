"""Groups whose ranks are threads of the test, and a scripted agent: the test simulates agents and leader, the ranks are
real processes."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conditions import eventually
from elastrain.api import messages as m
from elastrain.api import names
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import CheckpointSpec, RankSettings
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.exchange import Meeting
from elastrain.elastic.comm.meeting import MeetingPoint
from warm import Warm

PATIENCE = 60.0
"""Seconds that a test waits for a condition before it fails, saying which."""


class Rank:
    """One member with one rank: a training process and the agent's end of its socket."""

    def __init__(
        self,
        warm: Warm,
        name: str,
        folder: Path,
        command: list[str],
        env: dict[str, str],
        locate: Callable[[], m.Located],
        saved_step: int,
        settings: RankSettings,
    ) -> None:
        self.name = name
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
        self.process = warm.start(command, {**os.environ, **own, **env}, self.log.open("wb"))
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
                self.received.append(message)
        except OSError:
            return

    def _welcome(self) -> None:
        place = {"member": self.member, "address": "127.0.0.1", "lease_ttl": 5}
        settled = {"settings": self._settings, "saved_step": self._saved_step}
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
        self._connection.sendall(message.encode() + b"\n")

    def of_type(self, kind: str) -> list[m.RankMessage]:
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
                s.close()


class World:
    """The ranks of one test and the leader's part."""

    def __init__(self, folder: Path, warm: Warm) -> None:
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
        script: Path | None = None,
        checkpoint: CheckpointSpec | None = None,
        **env: str,
    ) -> None:
        script = script or Path(__file__).parent / "train_float64.py"
        saved_step = max((r.saved_step() for r in self.ranks.values()), default=0)
        settings = RankSettings(audit_dir=str(self.audit), checkpoint=checkpoint)
        for name in ranks:
            command = [sys.executable, str(script), str(self.folder), str(epochs), str(delay)]
            self.ranks[name] = Rank(self.warm, name, self.folder, command, env, self.located, saved_step, settings)

    def located(self) -> m.Located:
        """The position of the job, as etcd shows it."""
        reports = [r.of_type("report")[-1].progress for r in self.ranks.values() if r.of_type("report")]
        newest = max(reports, key=lambda p: (p.step, p.total_steps), default=None)
        step, loop_end = (newest.step, newest.total_steps) if newest else (0, 0)
        held = any(r.of_type("adopted") and r.process.poll() is None for r in self.ranks.values())
        return m.Located(step=step, training=held, loop_end=loop_end)

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        def check() -> object:
            for r in self.ranks.values():
                assert r.process.poll() in (None, 0, -signal.SIGKILL), f"{r.name} failed:\n{r.log.read_text()[-3000:]}"
            return condition()

        eventually(check, PATIENCE, what)

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
        generation = Generation(number=self.number, members=tuple(members), reason=reason, leader="test")
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

    def progressed(self, rank: str, steps: int) -> None:
        """Wait until ``rank`` (which must be rank 0) has reported ``steps`` more steps."""
        goal = self.ranks[rank].step() + steps
        self.wait(f"{rank} reaches step {goal}", lambda: self.ranks[rank].step() >= goal)

    def finished(self, *ranks: str) -> dict[str, dict]:
        """Let them run freely; returns what each saved at its end."""
        import torch

        (self.folder / "run-free").touch()
        self.wait(f"{ranks} finish", lambda: all(self.ranks[r].process.poll() == 0 for r in ranks))
        return {r: torch.load(self.folder / f"final-{self.ranks[r].process.pid}.pt") for r in ranks}


@pytest.fixture
def world(tmp_path: Path, warm: Warm) -> Iterator[World]:
    w = World(tmp_path, warm)
    yield w
    for r in w.ranks.values():
        r.stop()


@pytest.fixture
def meeting_point() -> Iterator[MeetingPoint]:
    point = MeetingPoint("127.0.0.1")
    yield point
    point.close()


@pytest.fixture
def generation(meeting_point: MeetingPoint) -> Callable[..., Generation]:
    """Generations of workers ``w0``, ``w1`` … with one rank each, whose meeting point is served by the test."""

    def of(world_size: int, number: int = 1) -> Generation:
        place = {"address": "127.0.0.1", "store_port": meeting_point.port}
        members = tuple(GenerationMember(id=f"m{r}", worker=f"w{r}", rank_offset=r, **place) for r in range(world_size))
        return Generation(number=number, members=members, reason="Test", leader="m0")

    return of


@pytest.fixture
def each() -> Callable[[Callable, Iterable], list]:
    """Run on all ranks at once."""

    def run(function: Callable, arguments: Iterable) -> list:
        arguments = list(arguments)
        with ThreadPoolExecutor(len(arguments)) as pool:
            return list(pool.map(function, arguments, timeout=PATIENCE))

    return run


@pytest.fixture
def connect(generation, each) -> Iterator[Callable[..., list[Communicator]]]:
    """Communicators of a number of ranks; they are closed at the end."""
    made: list[Communicator] = []

    def of(world_size: int, number: int = 1) -> list[Communicator]:
        g = generation(world_size, number)

        def one(rank: int) -> Communicator:
            return Communicator(of=g, rank=rank, meeting=Meeting(g, rank, lambda: False), address="127.0.0.1")

        ranks = each(one, range(world_size))
        made.extend(ranks)
        return ranks

    yield of
    for c in made:
        c.close()


@pytest.fixture
def pair(connect) -> list[Communicator]:
    return connect(2)
