"""Agents and leader of a few ranks on one machine, played by this process: no etcd, no cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from elastrain.api import messages as m
from elastrain.api import names
from elastrain.api.records import Generation, GenerationMember, Rescale

TRAIN = Path(__file__).with_name("train.py")
PATIENCE = 120.0


class Failed(RuntimeError):
    """A scenario did not go as it must."""


class Rank:
    def __init__(self, name: str, folder: Path, environment: dict[str, str], width: int) -> None:
        self.name, self.folder = name, folder
        self.received: list[m.RankMessage] = []
        path = folder / f"{name}.sock"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        self._server.listen()
        self._connection: socket.socket | None = None
        own = {names.ENV_WORKER: name, names.ENV_AGENT_SOCKET: str(path), names.ENV_LOCAL_RANK: "0", **environment}
        clean = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRAIN_")}
        with (folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAIN), str(folder), str(width)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": "2", **clean, **own},
            )
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        try:
            self._connection, _ = self._server.accept()
            for line in self._connection.makefile("rb"):
                message = m.RANK_MESSAGE.validate_json(line)
                if message.type == "hello":
                    self.send(m.Welcome(member=f"{self.name}.0", address="127.0.0.1", lease_ttl=5, step=0))
                self.received.append(message)
        except OSError:
            return  # the rank is gone

    def send(self, message: m.AgentMessage) -> None:
        assert self._connection is not None
        self._connection.sendall(message.encode() + b"\n")

    def has(self, kind: str, **fields: object) -> bool:
        return any(x.type == kind and all(getattr(x, k) == v for k, v in fields.items()) for x in list(self.received))

    def rescales(self) -> dict[int, Rescale]:
        reports = [x for x in list(self.received) if x.type == "report"]
        return {r.generation: r for r in reports[-1].progress.rescales} if reports else {}

    def steps(self) -> list[dict]:
        path = self.folder / f"{self.name}.steps"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def committed(self) -> int:
        steps = self.steps()
        return steps[-1]["step"] if steps else 0

    def log_tail(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for s in (self._connection, self._server):
            if s is not None:
                s.close()


class World:
    """Use as a context: its ranks are ended."""

    def __init__(self, folder: Path, environments: Callable[[int], dict[str, str]], width: int) -> None:
        """``environments(i)``: what the i-th rank that is started gets beside the process's own."""
        self.folder = folder
        folder.mkdir(parents=True)
        self.ranks: dict[str, Rank] = {}
        self.number = 0
        self._environments, self._width = environments, width

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks.values():
            rank.stop()

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            for rank in self.ranks.values():
                if rank.process.poll() not in {None, 0, -signal.SIGKILL}:
                    raise Failed(f"{rank.name} ended with {rank.process.returncode}:\n{rank.log_tail()}")
            if time.monotonic() > end:
                logs = "\n".join(f"--- {r.name}\n{r.log_tail()}" for r in self.ranks.values())
                raise Failed(f"not within {PATIENCE:g} s: {what}\n{logs}")
            time.sleep(0.005)

    def start(self, *ranks: str) -> None:
        """Returns when they are ready: imported, warmed up, waiting for a generation."""
        for name in ranks:
            self.ranks[name] = Rank(name, self.folder, self._environments(len(self.ranks)), self._width)
        self.wait(f"{ranks} ready", lambda: all(self.ranks[r].has("ready") for r in ranks))

    def propose(self, *ranks: str) -> int:
        """A generation of these ranks, told to all that live; returns its number."""
        self.number += 1
        members = []
        for offset, name in enumerate(ranks):
            ready = next(x for x in reversed(self.ranks[name].received) if x.type == "ready")
            place = {"id": f"{name}.0", "worker": name, "address": "127.0.0.1", "store_port": ready.store_port}
            members.append(GenerationMember(**place, rank_offset=offset))
        generation = Generation(number=self.number, members=tuple(members), reason="Bench", leader="bench")
        for rank in self.ranks.values():
            if rank.process.poll() is None:
                rank.send(m.Proposed(generation=generation))
        return self.number

    def trained(self, ranks: str, steps: int) -> None:
        """Wait until each of these has committed so many more steps in the newest generation."""
        number = self.number
        self.wait(
            f"{ranks} adopt generation {number}",
            lambda: all(self.ranks[r].has("adopted", generation=number) for r in ranks),
        )
        goals = {r: self.ranks[r].committed() + steps for r in ranks}
        self.wait(f"{ranks} train on", lambda: all(self.ranks[r].committed() >= goals[r] for r in ranks))

    def stall(self, rank: str, since: float) -> float:
        """The longest gap between two committed steps, from the last one before ``since`` on."""
        times = [line["at"] for line in self.ranks[rank].steps()]
        recent = [t for t in times if t >= since]
        before = [t for t in times if t < since][-1:]
        gaps = [b - a for a, b in pairwise(before + recent)]
        return max(gaps, default=0.0)

    def replicas_differ(self) -> str | None:
        """The first step after which two ranks held other bits."""
        digests: dict[int, tuple[str, list[int]]] = {}
        for rank in self.ranks.values():
            for line in rank.steps():
                if "digest" in line:
                    first, digest = digests.setdefault(line["step"], (rank.name, line["digest"]))
                    if digest != line["digest"]:
                        return f"after step {line['step']} {rank.name} and {first} hold different parameters"
        return None
