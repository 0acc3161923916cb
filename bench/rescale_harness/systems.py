"""The systems under test: their services, and the command that is one node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Member, Phase, Progress, Target
from elastrain.data import audit
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.etcd.server import EtcdServer
from elastrain.tether import tethered
from rescale_harness import history
from rescale_harness.events import MAX_NODES, NEED_STEERING, Event
from rescale_harness.results import Samples
from rescale_harness.steplog import ENV_CHECKPOINT, ENV_CHECKPOINT_EVERY, ENV_SHARDS, Line

HOST = "127.0.0.1"
AWAY_SECONDS = 2.0
"""For which a killed coordinator is away."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the systems are run with."""

    checkpoint_every: int = 20
    """Steps between durable checkpoints."""
    lease_ttl: int | None = None
    """Seconds; None: elastrain's default."""
    torchft_python: Path | None = None
    """Python of a virtual environment with torch and torchft."""


class System(ABC):
    """One system for one run; a context manager that runs its services."""

    about: ClassVar[str]
    """What it is, in a sentence, for the table."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        """``directory``: of this run, exists."""
        self.directory = directory
        self.settings = settings

    @classmethod
    def missing(cls, _settings: Settings) -> str | None:
        """What it lacks to be run here, and the way out; None: nothing."""
        return None

    @classmethod
    def has(cls, event: Event) -> bool:
        """Whether the event has an equivalent in it."""
        return event not in NEED_STEERING or issubclass(cls, Steered)

    def __enter__(self) -> System:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def service_pids(self) -> tuple[int, ...]:
        """Processes that this object runs, and ends, itself."""
        return ()

    @abstractmethod
    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Command and environment of the process (the agent) that is node ``number``, with one rank."""

    @abstractmethod
    def samples(self, lines: list[Line]) -> Samples:
        """What became of the samples, after the run. Raises ``ValueError`` if the run left nothing to judge."""

    def own_account(self) -> dict[str, object]:
        """What the system says about its rescales; while the services still run."""
        return {}


class Steered(ABC):
    """A system that is told how many nodes should train, says how they stand, and has a coordinator to be restarted."""

    @abstractmethod
    def want(self, nodes: int) -> None:
        """From now on so many nodes should train; more that are there stand by."""

    @abstractmethod
    def stands_by(self, number: int) -> bool:
        """Whether the node could train at once, were it wanted."""

    @abstractmethod
    def proposed(self, number: int) -> bool:
        """Whether a generation has been proposed that includes the node."""

    @abstractmethod
    def restart_coordinator(self) -> None:
        """``kill -9`` it and, a while later, start it on its data; returns when it serves again."""


class Torchrun(System):
    """Stock ``torchrun``, rendezvous by the c10d store in node 0."""

    about = "stock torchrun, c10d rendezvous, defaults but for restarts allowed and no shared store"
    conf: ClassVar[str] = ""
    flags: ClassVar[tuple[str, ...]] = ()

    def __init__(self, directory: Path, settings: Settings) -> None:
        super().__init__(directory, settings)
        self._port = _free_port()

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes=1:{MAX_NODES}", "--nproc-per-node=1"]
        # Without restarts the first lost worker ends the job.
        command += [*self.rendezvous(number), "--rdzv-id=bench", f"--local-addr={HOST}", "--max-restarts=100"]
        command += [*self.flags, "-m", "rescale_harness.train_torchrun"]
        return command, {
            "GLOO_SOCKET_IFNAME": "lo",
            # With its shared store (the default of torch 2.13) a node that joins later never learns the master's
            # address, and the whole job ends: nothing could be compared.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            ENV_CHECKPOINT: str(self.directory / "checkpoint.pt"),
            ENV_CHECKPOINT_EVERY: str(self.settings.checkpoint_every),
        }

    def rendezvous(self, number: int) -> list[str]:
        conf = ",".join(filter(None, [f"is_host={'true' if number == 0 else 'false'}", self.conf]))
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{self._port}", f"--rdzv-conf={conf}"]

    def samples(self, lines: list[Line]) -> Samples:
        return history.lineage_samples(lines)


class TorchrunTuned(Torchrun):
    about = (
        "the same, tuned: last_call_timeout=1, keep_alive_interval=1, keep_alive_max_attempt=3, monitor interval 0.1 s"
    )
    conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
    flags = ("--monitor-interval=0.1",)


class TorchrunEtcd(Torchrun):
    """Stock ``torchrun`` over elastrain's rendezvous: what the rendezvous alone changes."""

    about = "stock torchrun, elastrain's rendezvous on etcd v3, monitor 0.1 s"
    flags = ("--monitor-interval=0.1",)

    def __enter__(self) -> System:
        self._etcd = EtcdServer()
        self._etcd.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._etcd.close()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return (self._etcd.pid,) if self._etcd.pid is not None else ()

    def rendezvous(self, number: int) -> list[str]:
        return ["--rdzv-backend=etcd-v3", f"--rdzv-endpoint={self._etcd.endpoint}"]


class Elastrain(System, Steered):
    """Agents with a real etcd. The benchmark plays the operator: it wants as many nodes as there are."""

    about = "elastrain, in process, its default settings"
    program = "rescale_harness.train_elastrain"
    """Module that every rank runs."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        super().__init__(directory, settings)
        self._keys = JobKeys("bench", "rescale", directory.name)
        self._audit = directory / "audit"

    def __enter__(self) -> System:
        self._etcd = EtcdServer()
        self._etcd.start()
        self._config = EtcdConfig.of(self._etcd.endpoint)
        self._client = EtcdClient(self._config)
        self.want(MAX_NODES)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._etcd.close()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return (self._etcd.pid,) if self._etcd.pid is not None else ()

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        name = _worker(number)
        ttl = self.settings.lease_ttl
        command = [sys.executable, "-m", "elastrain", "agent", "--", sys.executable, "-m"]
        every = self.settings.checkpoint_every
        checkpoint = CheckpointSpec(path=str(self.directory / "checkpoints"), every_steps=every)
        return [*command, self.program], {
            **self._config.to_environment(),
            names.ENV_NAMESPACE: self._keys.namespace,
            names.ENV_JOB: self._keys.job,
            names.ENV_JOB_UID: self._keys.uid,
            names.ENV_WORKER: name,
            names.ENV_NODE: name,
            names.ENV_ADDRESS: HOST,
            names.ENV_CHECKPOINT: checkpoint.model_dump_json(by_alias=True),
            names.ENV_AUDIT_DIR: str(self._audit),
            names.ENV_TERMINATION_LOG: str(self.directory / f"{name}.termination.json"),
            ENV_AGENT_LOG: str(self.directory / f"{name}.agent.log"),
            **({} if ttl is None else {names.ENV_LEASE_TTL: str(ttl)}),
        }

    def samples(self, lines: list[Line]) -> Samples:
        verdict = audit.verify(self._audit)
        return Samples(
            committed=verdict.samples, lost=verdict.lost, repeated=verdict.repeated, problems=verdict.problems
        )

    def own_account(self) -> dict[str, object]:
        held = self._client.get(self._keys.progress)
        if held is None:
            return {}
        return {"rescales": [r.model_dump(mode="json") for r in Progress.decode(held.value).rescales]}

    def want(self, nodes: int) -> None:
        self._client.put(self._keys.target, Target(min=1, max=MAX_NODES, desired=nodes).encode())

    def stands_by(self, number: int) -> bool:
        members = [Member.decode(kv.value) for kv in self._client.get_prefix(self._keys.members)[0]]
        return any(m.worker == _worker(number) and m.phase is Phase.READY for m in members)

    def proposed(self, number: int) -> bool:
        held = self._client.get(self._keys.generation)
        return held is not None and any(m.worker == _worker(number) for m in Generation.decode(held.value).members)

    def restart_coordinator(self) -> None:
        self._etcd.kill()
        time.sleep(AWAY_SECONDS)
        self._etcd.start()


class TorchftTuned(System):
    """torchft's fault-tolerant DDP: a lighthouse, and one replica group per node under ``torchrun``."""

    about = (
        "torchft, one replica group a node, tuned: lighthouse quorum_tick_ms=50, join_timeout_ms=1000, "
        "heartbeat_timeout_ms=1000; timeout 10 s, quorum timeout 30 s"
    )
    LIGHTHOUSE = ("--quorum_tick_ms", "50", "--join_timeout_ms", "1000", "--heartbeat_timeout_ms", "1000")
    SERVES_SECONDS = 30.0

    @classmethod
    def missing(cls, settings: Settings) -> str | None:
        python = settings.torchft_python
        how = "--torchft-python must be the Python of a virtual environment with torch and torchft-nightly"
        if python is None:
            return f"torchft-tuned: {how}; it was not given"
        try:
            answer = subprocess.run(
                [python, "-c", "import torchft"], capture_output=True, text=True, timeout=120, check=False
            )
        except OSError as error:
            return f"torchft-tuned: {how}, not {str(python)!r}: {error}"
        if answer.returncode != 0:
            last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
            return f"torchft-tuned: {how}; {python} cannot import it: {last[0]}"
        if not cls._lighthouse(python).exists():
            return f"torchft-tuned: {how}; there is no {cls._lighthouse(python)}"
        return None

    @staticmethod
    def _lighthouse(python: Path) -> Path:
        return python.with_name("torchft_lighthouse")

    def __enter__(self) -> System:
        assert self.settings.torchft_python is not None
        self._port = _free_port()
        command = [str(self._lighthouse(self.settings.torchft_python)), "--min_replicas", "1"]
        command += ["--bind", f"[::]:{self._port}", *self.LIGHTHOUSE]
        with (self.directory / "lighthouse.log").open("ab") as log:
            self._service = subprocess.Popen(
                tethered(command, signal.SIGKILL),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        end = time.monotonic() + self.SERVES_SECONDS
        while not _listens(self._port):
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
        command += ["--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        command += ["--local-addr=localhost", "--monitor-interval=0.1", "-m", "rescale_harness.train_torchft"]
        return command, {
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHFT_LIGHTHOUSE": f"http://localhost:{self._port}",
            "TORCHFT_TIMEOUT_SEC": "10",
            "TORCHFT_QUORUM_TIMEOUT_SEC": "30",
            ENV_SHARDS: str(MAX_NODES),
        }

    def samples(self, lines: list[Line]) -> Samples:
        return history.sharded_samples(lines)


SYSTEMS: Mapping[str, type[System]] = {
    "elastrain": Elastrain,
    "torchrun-default": Torchrun,
    "torchrun-tuned": TorchrunTuned,
    "torchrun-etcd-v3": TorchrunEtcd,
    "torchft-tuned": TorchftTuned,
}


def base_environment() -> dict[str, str]:
    """What every process of every system gets: our own environment without what would steer a trainer."""
    steering = ("ELASTRAIN_", "TORCHELASTIC_", "TORCH_", "PET_", "ETCD_", "GLOO_")
    fixed_world = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    own = {k: v for k, v in os.environ.items() if not k.startswith(steering) and k not in fixed_world}
    return {
        **own,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent.parent), own.get("PYTHONPATH", "")])),
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


def _worker(number: int) -> str:
    return f"node-{number}"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
