"""What is measured: two ranks on this machine, and the folder in which their checkpoints become complete."""

from __future__ import annotations

import contextlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from bench_harness.agents import Agents
from bench_harness.processes import HOST, free_ports
from bench_rescale.steplog import ENV_CHECKPOINT, ENV_CHECKPOINT_EVERY, ENV_SHARDING
from elastrain.api.settings import CheckpointSpec, RankSettings

RANKS = 2
LEASE_TTL = 2
"""Seconds: a restart waits until the killed members have gone."""
NEVER = 10**9
"""Steps."""
_STEP = re.compile(r"step-(\d+)(\.[0-9a-f.-]+)?")


class System(ABC):
    """One system for one run; a context manager that runs its services."""

    about: ClassVar[str]
    nodes: ClassVar[int] = RANKS
    """Processes that start the ranks."""

    def __init__(self, directory: Path, every: int) -> None:
        """``directory``: of this run; ``every``: steps between two checkpoints."""
        self.directory, self.every = directory, every

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def service_pids(self) -> tuple[int, ...]:
        return ()

    @abstractmethod
    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Command and environment of process ``number``; a restart has the same numbers."""

    @abstractmethod
    def folders(self) -> Iterable[Path]:
        """Of all complete checkpoints."""

    def complete(self) -> dict[int, Path]:
        """The folder of each step that a restart would take; of steps that several nodes have saved, one."""
        found = {}
        with contextlib.suppress(FileNotFoundError):  # one was deleted meanwhile
            for folder in self.folders():
                if step := _STEP.fullmatch(folder.name):
                    found[int(step[1])] = folder
        return found


class Elastrain(System):
    about = "elastrain, replicated, checkpoints on a volume"
    program: ClassVar[str] = "bench_rescale.train_elastrain"
    shards: ClassVar[int] = 1

    def __init__(self, directory: Path, every: int) -> None:
        super().__init__(directory, every)
        settings = RankSettings(shards=self.shards, checkpoint=self.spec())
        self._agents = Agents(
            directory, self.program, lease_ttl=LEASE_TTL, nproc=RANKS // self.nodes, settings=settings
        )

    def spec(self) -> CheckpointSpec:
        return CheckpointSpec(path=str(self.directory / "checkpoints"), every_steps=self.every)

    def __enter__(self) -> System:
        self._agents.__enter__()
        self._agents.want(self.nodes, least=self.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self._agents.__exit__()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return self._agents.service_pids

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        return self._agents.node(number)

    def folders(self) -> Iterable[Path]:
        return (self.directory / "checkpoints").glob("step-*")


class ElastrainSharded(Elastrain):
    about = "elastrain, one group of two shards, both ranks write to a volume"
    program = "bench_rescale.train_elastrain_sharded"
    shards = RANKS
    nodes = 1


class Dcp(System):
    about = "DDP over gloo, torch.distributed.checkpoint.async_save, which writes in a thread"
    nodes = 1
    sharding: ClassVar[str] = "none"

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={RANKS}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{free_ports(1)[0]}", f"--local-addr={HOST}"]
        return [*command, "-m", "bench_rescale.train_dcp"], {
            "GLOO_SOCKET_IFNAME": "lo",
            ENV_CHECKPOINT: str(self.directory / "checkpoints"),
            ENV_CHECKPOINT_EVERY: str(self.every),
            ENV_SHARDING: self.sharding,
        }

    def folders(self) -> Iterable[Path]:
        return (path.parent for path in (self.directory / "checkpoints").glob("step-*/.metadata"))


class DcpSharded(Dcp):
    about = "FSDP2 over gloo, async_save in a thread"
    sharding = "all"


SYSTEMS: Mapping[str, type[System]] = {
    "elastrain": Elastrain,
    "dcp": Dcp,
    "elastrain-sharded": ElastrainSharded,
    "dcp-sharded": DcpSharded,
}
