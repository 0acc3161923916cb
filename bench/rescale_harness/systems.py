"""The systems under test: their services, and the command that is one node."""

from __future__ import annotations

import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.job import CheckpointSpec
from elastrain.api.keys import JobKeys
from elastrain.api.records import Progress, Target
from elastrain.data import audit
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain.local.etcd_server import EtcdServer
from rescale_harness import analysis
from rescale_harness.results import Samples
from rescale_harness.steplog import ENV_CHECKPOINT, ENV_CHECKPOINT_EVERY, Line

MAX_NODES = 4
HOST = "127.0.0.1"


class System(ABC):
    """One system for one run; a context manager that runs its services."""

    about: ClassVar[str]
    """What it is, in a sentence, for the table."""

    def __init__(self, directory: Path, checkpoint_every: int) -> None:
        """``directory``: of this run, exists. ``checkpoint_every``: steps."""
        self.directory = directory
        self.checkpoint_every = checkpoint_every

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


class Torchrun(System):
    """Stock ``torchrun``, rendezvous by the c10d store in node 0."""

    about = "stock torchrun, c10d rendezvous, defaults but for restarts allowed and no shared store"
    conf: ClassVar[str] = ""
    flags: ClassVar[tuple[str, ...]] = ()

    def __init__(self, directory: Path, checkpoint_every: int) -> None:
        super().__init__(directory, checkpoint_every)
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
            ENV_CHECKPOINT_EVERY: str(self.checkpoint_every),
        }

    def rendezvous(self, number: int) -> list[str]:
        conf = ",".join(filter(None, [f"is_host={'true' if number == 0 else 'false'}", self.conf]))
        return ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{self._port}", f"--rdzv-conf={conf}"]

    def samples(self, lines: list[Line]) -> Samples:
        return analysis.lineage_samples(lines)


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


class Elastrain(System):
    """Agents with a real etcd. The benchmark plays the operator: it wants as many nodes as there are."""

    about = "elastrain, in process, its default settings"

    def __init__(self, directory: Path, checkpoint_every: int) -> None:
        super().__init__(directory, checkpoint_every)
        self._keys = JobKeys("bench", "rescale", directory.name)
        self._audit = directory / "audit"

    def __enter__(self) -> System:
        self._etcd = EtcdServer()
        self._etcd.start()
        self._config = EtcdConfig.of(self._etcd.endpoint)
        with EtcdClient(self._config) as client:
            client.put(self._keys.target, Target(min=1, max=MAX_NODES, desired=MAX_NODES).encode())
        return self

    def __exit__(self, *_: object) -> None:
        self._etcd.close()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return (self._etcd.pid,) if self._etcd.pid is not None else ()

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        name = f"node-{number}"
        command = [sys.executable, "-m", "elastrain", "agent", "--", sys.executable, "-m"]
        checkpoint = CheckpointSpec(path=str(self.directory / "checkpoints"), every_steps=self.checkpoint_every)
        return [*command, "rescale_harness.train_elastrain"], {
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
        }

    def samples(self, lines: list[Line]) -> Samples:
        verdict = audit.verify(self._audit)
        return Samples(
            committed=verdict.samples, lost=verdict.lost, repeated=verdict.repeated, problems=verdict.problems
        )

    def own_account(self) -> dict[str, object]:
        with EtcdClient(self._config) as client:
            held = client.get(self._keys.progress)
        if held is None:
            return {}
        return {"rescales": [r.model_dump(mode="json") for r in Progress.decode(held.value).rescales]}


SYSTEMS: Mapping[str, type[System]] = {
    "elastrain": Elastrain,
    "torchrun-default": Torchrun,
    "torchrun-tuned": TorchrunTuned,
    "torchrun-etcd-v3": TorchrunEtcd,
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
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
