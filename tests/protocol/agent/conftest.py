"""Agents as real processes, with ranks that speak the protocol without torch (``tests/shared/fake_rank.py``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Termination
from local_fixtures import FAKE_RANK
from warm import Warm, WarmProcess


class Worker:
    """One agent, and the files that it and its ranks write."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes] | WarmProcess, trail: Path, termination: Path
    ) -> None:
        self.name = name
        self.process = process
        self._trail = trail
        self._termination = termination

    def trail(self, what: str = "") -> list[dict]:
        """The records of its ranks, oldest incarnation first."""
        files = sorted(self._trail.glob(f"{self.name}.*"), key=lambda f: f.stat().st_mtime)
        notes = [json.loads(line) for f in files for line in f.read_text().splitlines() if line.endswith("}")]
        return [n for n in notes if not what or n["what"] == what]

    def in_generation(self, number: int, world: int) -> bool:
        """Whether its ranks have adopted a generation of this size with at least this number."""
        adopted = self.trail("adopted")
        return bool(adopted) and adopted[-1]["generation"] >= number and adopted[-1]["world"] == world

    def rank_pid(self) -> int:
        return self.trail()[-1]["pid"]

    def ends(self) -> tuple[int, Termination]:
        code = self.process.wait(timeout=30)
        return code, Termination.decode(self._termination.read_bytes())


@pytest.fixture
def start(
    request: pytest.FixtureRequest, light: Warm, job_keys: JobKeys, tmp_path: Path
) -> Iterator[Callable[..., Worker]]:
    """Start an agent: ``start("a", FAKE_RANK_STEPS=50)``; or with another command, code or etcd (``where``)."""
    workers: list[Worker] = []

    def start(
        name: str, *command: str, code: str = "", where: dict[str, str] | None = None, **variables: object
    ) -> Worker:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        termination = directory / "termination.json"
        environment = {
            **os.environ,
            **(where or {names.ENV_ETCD_ENDPOINTS: request.getfixturevalue("etcd").endpoint}),
            names.ENV_NAMESPACE: job_keys.namespace,
            names.ENV_JOB: job_keys.job,
            names.ENV_JOB_UID: job_keys.uid,
            names.ENV_WORKER: name,
            names.ENV_ADDRESS: "127.0.0.1",
            names.ENV_LEASE_TTL: "2",
            names.ENV_TERMINATION_LOG: str(termination),
            names.ENV_FORK_RANKS: "off",  # these ranks do not import torch
            "FAKE_RANK_TRAIL": str(directory),
            **{k: str(v) for k, v in variables.items()},
        }
        rank = command or (sys.executable, str(FAKE_RANK))
        process: subprocess.Popen[bytes] | WarmProcess
        if code:
            process = subprocess.Popen([sys.executable, "-c", code, *rank], env=environment)
        else:
            agent = [sys.executable, "-m", "elastrain", "agent", "--", *rank]
            process = light.start(agent, environment, os.fdopen(os.dup(1), "wb"))
        workers.append(Worker(name, process, directory, termination))
        return workers[-1]

    yield start
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
