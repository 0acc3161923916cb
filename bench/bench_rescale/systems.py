"""The systems under test: their services, and the command that is one node."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench_harness import network
from bench_harness.agents import MAX_NODES, Agents
from bench_harness.names import ENV_DEVICE, ENV_STATE_MIB
from bench_harness.network import Network
from bench_harness.processes import HOST, free_ports, listens, popen
from bench_harness.relay import Link
from bench_rescale import history
from bench_rescale.events import NEED_AGENTS, Event
from bench_rescale.results import Samples
from bench_rescale.steplog import (
    ENV_CHECKPOINT,
    ENV_CHECKPOINT_EVERY,
    ENV_SHARDING,
    ENV_SHARDS,
    Line,
)
from elastrain.api.settings import RankSettings
from elastrain_audit import judge

MOST_STARTED = 2 * MAX_NODES
"""Nodes of a run, with those that have ended."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the systems are run with."""

    checkpoint_every: int = 20
    """Steps between durable checkpoints."""
    lease_ttl: int | None = None
    """Seconds; None: elastrain's default."""
    etcd_away: float = 2.0
    """Seconds between the end of etcd and its restart."""
    state_mib: int = 0
    """Frozen weights."""
    device: str = "cpu"
    cards: int = 1
    """CUDA devices that the nodes share."""
    torchft_python: Path | None = None
    """Python of a virtual environment with torch and torchft."""
    link: Link | None = None
    """Of the network between the nodes; None: loopback."""
    train_minutes: float = 5.0
    """Of undisturbed training."""


class System(ABC):
    """One system for one run; a context manager that runs its services."""

    about: ClassVar[str]
    """One line for the tables and the help."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """``directory``: of this run, exists."""
        self.directory = directory
        self.settings = settings

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        """What it lacks to be run here, and the way out; None: nothing."""
        if settings.link is not None:
            return "--network: only elastrain is measured on a slow network"
        return None if settings.device == "cpu" else "--device: only elastrain is measured on a GPU"

    @classmethod
    def has(cls, event: Event) -> bool:
        """Whether the event has an equivalent in it."""
        return event not in NEED_AGENTS

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def service_pids(self) -> tuple[int, ...]:
        """Processes that this object runs, and ends, itself."""
        return ()

    def environment(self, number: int) -> dict[str, str]:
        """Of node ``number``: what the workload is."""
        cards = {"CUDA_VISIBLE_DEVICES": str(number % self.settings.cards)} if self.settings.device != "cpu" else {}
        return {ENV_STATE_MIB: str(self.settings.state_mib), ENV_DEVICE: self.settings.device, **cards}

    @abstractmethod
    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Command and environment of the process (the agent) that is node ``number``, with one rank."""

    def ended(self, number: int) -> None:
        """All processes of node ``number`` have ended, as a kubelet or a runner reports."""
        return

    @abstractmethod
    def samples(self, lines: list[Line]) -> Samples:
        """Samples that the run consumed. Raises ``ValueError`` if the run left nothing to judge."""

    def rescales(self) -> list[dict[str, object]]:
        """The system's own records of its rescales; while the services still run."""
        return []


class Torchrun(System):
    """Stock ``torchrun``, rendezvous by the c10d store in node 0."""

    about = "stock torchrun, c10d rendezvous, defaults but for restarts allowed and no shared store"
    conf: ClassVar[str] = ""
    flags: ClassVar[tuple[str, ...]] = ()
    program: ClassVar[str] = "bench_rescale.train_torchrun"
    nproc: ClassVar[int] = 1
    """Ranks of a node."""
    store_in_node_0: ClassVar[bool] = True

    def __init__(self, directory: Path, settings: Settings) -> None:
        super().__init__(directory, settings)
        [self._port] = free_ports(1)

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        host = self.store_in_node_0 and number == 0
        conf = ",".join(filter(None, [f"is_host={str(host).lower()}", self.conf]))
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MAX_NODES}"]
        command += [
            f"--nproc-per-node={self.nproc}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={HOST}:{self._port}",
            f"--rdzv-conf={conf}",
        ]
        # Without restarts the first lost worker ends the job.
        command += [f"--rdzv-endpoint={HOST}:{self._port}", "--rdzv-id=bench", f"--local-addr={HOST}"]
        command += ["--max-restarts=1000", *self.flags]
        return [*command, "-m", self.program], {
            **self.environment(number),
            "GLOO_SOCKET_IFNAME": "lo",
            # With its shared store (the default of torch 2.13) a node that joins later never learns the master's
            # address, and the whole job ends: nothing could be compared.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            ENV_CHECKPOINT: str(self.directory / "checkpoint.pt"),
            ENV_CHECKPOINT_EVERY: str(self.settings.checkpoint_every),
        }

    def samples(self, lines: list[Line]) -> Samples:
        return history.lineage_samples(lines)


class TorchrunTuned(Torchrun):
    about = (
        "the same, tuned: last_call_timeout=1, keep_alive_interval=1, keep_alive_max_attempt=3, monitor interval 0.1 s"
    )
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    flags = ("--monitor-interval=0.1",)


class TorchrunFsdp(TorchrunTuned):
    about = "FSDP2 over all ranks, torchrun tuned as above, DCP in the background"
    program = "bench_rescale.train_dcp"
    sharding: ClassVar[str] = "all"

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command, environment = super().node(number)
        folder = {ENV_CHECKPOINT: str(self.directory / "checkpoints")}
        return command, environment | folder | {ENV_SHARDING: self.sharding}


class TorchrunHsdp(TorchrunFsdp):
    about = "the same with two ranks a node, which hold the model together; nodes replicate each other (HSDP)"
    nproc = 2
    sharding = "node"


class Elastrain(System):
    about = "elastrain, in process, its default settings"
    program: ClassVar[str] = "bench_rescale.train_elastrain"
    nproc: ClassVar[int] = 1
    """Ranks of a node."""
    ranks: ClassVar[RankSettings] = RankSettings()
    saves: ClassVar[bool] = True
    """Whether it writes durable checkpoints."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        super().__init__(directory, settings)
        self.agents = Agents(
            directory,
            self.program,
            checkpoint_every=settings.checkpoint_every if self.saves else None,
            lease_ttl=settings.lease_ttl,
            nproc=self.nproc,
            settings=self.ranks.model_copy(update={"audit_dir": str(directory / "audit")}),
            network=Network(settings.link, MOST_STARTED, directory / "relay.log") if settings.link else None,
        )

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        return network.missing() if settings.link is not None else None

    @classmethod
    def has(cls, _event: Event) -> bool:
        return True

    def __enter__(self) -> System:
        self.agents.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.agents.__exit__()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return self.agents.service_pids

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command, environment = self.agents.node(number)
        return command, {**environment, **self.environment(number)}

    def ended(self, number: int) -> None:
        self.agents.end_lease(number)

    def samples(self, lines: list[Line]) -> Samples:
        verdict = judge.verify(self.agents.audit)
        return Samples(
            committed=verdict.samples, lost=verdict.lost, repeated=verdict.repeated, problems=verdict.problems
        )

    def rescales(self) -> list[dict[str, object]]:
        return self.agents.rescales()


class ElastrainHsdp(Elastrain):
    about = "elastrain with parallelism.shards: 2, two ranks a node (HSDP)"
    program = "bench_rescale.train_elastrain_sharded"
    nproc = 2
    ranks = RankSettings(shards=2)


class ElastrainOneCopy(Elastrain):
    about = "elastrain with parallelism.shards: all, at most 20 steps redone after a loss; no durable checkpoints"
    program = "bench_rescale.train_elastrain_sharded"
    ranks = RankSettings(shards="all")
    saves = False


class TorchftTuned(System):
    """torchft's fault-tolerant DDP: a lighthouse, and one replica group per node under ``torchrun``."""

    about = (
        "torchft, one replica group a node, tuned: lighthouse quorum_tick_ms=50, join_timeout_ms=1000, "
        "heartbeat_timeout_ms=1000; timeout 10 s, quorum timeout 30 s"
    )
    LIGHTHOUSE = ("--quorum_tick_ms", "50", "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000")
    SERVES_SECONDS = 30.0
    shards: ClassVar[int] = MAX_NODES
    """Of the data; each node that ever starts has one."""
    nproc: ClassVar[int] = 1
    """Ranks of a node."""
    sharding: ClassVar[str] = "none"

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        python = settings.torchft_python
        how = "torchft: --torchft-python must be the Python of a virtual environment with torch and torchft"
        if python is None:
            return f"{how}; it was not given"
        try:
            answer = subprocess.run(
                [python, "-c", "import torchft"], capture_output=True, text=True, timeout=120, check=False
            )
        except OSError as error:
            return f"{how}, not {str(python)!r}: {error}"
        if answer.returncode != 0:
            last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
            return f"{how}; {python} cannot import it: {last[0]}"
        return super().missing(settings)

    def __enter__(self) -> System:
        assert self.settings.torchft_python is not None
        [self._port] = free_ports(1)
        command = [str(self.settings.torchft_python.with_name("torchft_lighthouse")), "--min_replicas", "1"]
        command += ["--bind", f"[::]:{self._port}", *self.LIGHTHOUSE]
        with (self.directory / "lighthouse.log").open("ab") as log:
            self._service = popen(command, log, {})
        end = time.monotonic() + self.SERVES_SECONDS
        while not listens(self._port):
            if self._service.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(f"torchft's lighthouse does not serve; see {self.directory / 'lighthouse.log'}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._service.kill()
        self._service.wait()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return (self._service.pid,)

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command = [str(self.settings.torchft_python), "-m", "torch.distributed.run", "--nnodes=1"]
        command += [
            f"--nproc-per-node={self.nproc}",
            "--max-restarts=1000",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=localhost:0",
        ]
        command += ["--local-addr=localhost", "--monitor-interval=0.1", "-m", "bench_rescale.train_torchft"]
        return command, {
            **self.environment(number),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHFT_LIGHTHOUSE": f"http://localhost:{self._port}",
            "TORCHFT_TIMEOUT_SEC": "10",
            "TORCHFT_QUORUM_TIMEOUT_SEC": "30",
            ENV_SHARDS: str(self.shards),
            ENV_SHARDING: self.sharding,
        }

    def samples(self, lines: list[Line]) -> Samples:
        return history.sharded_samples(lines)


class TorchftHsdp(TorchftTuned):
    about = "the same with two ranks a node, which hold the model together by FSDP2"
    nproc = 2
    sharding = "node"


SYSTEMS: Mapping[str, type[System]] = {
    "elastrain": Elastrain,
    "elastrain-hsdp": ElastrainHsdp,
    "elastrain-one-copy": ElastrainOneCopy,
    "torchrun-default": Torchrun,
    "torchrun-tuned": TorchrunTuned,
    "torchrun-fsdp": TorchrunFsdp,
    "torchrun-hsdp": TorchrunHsdp,
    "torchft-tuned": TorchftTuned,
    "torchft-hsdp": TorchftHsdp,
}
