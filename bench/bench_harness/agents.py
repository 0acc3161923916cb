"""elastrain's agents, one rank each, with a real etcd. The benchmark plays the operator by writing the job's target."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Self

from bench_harness.network import Network
from bench_harness.processes import HOST
from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Member, Phase, Progress, Target
from elastrain.api.settings import CheckpointSpec, RankSettings
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_cli.etcd_server import EtcdServer

MAX_NODES = 16
"""Of one job; each needs some 350 MB and a start that takes seconds of a core."""


class _ReachedEtcd(EtcdServer):
    """One that the nodes of a slow network reach."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host

    @property
    def endpoint(self) -> str:
        return f"{self._host}:{self.client_port}"


class Agents:
    """One job. A context manager that runs its etcd; the caller starts the agents."""

    def __init__(
        self,
        directory: Path,
        program: str,
        *,
        checkpoint_every: int | None = None,
        lease_ttl: int | None = None,
        nproc: int = 1,
        settings: RankSettings | None = None,
        network: Network | None = None,
    ) -> None:
        """``program``: the module that each of an agent's ``nproc`` ranks runs. Without ``checkpoint_every`` (steps)
        there are neither checkpoints nor an audit log. ``lease_ttl``: seconds; None: the default. ``settings``: others
        of the ranks. ``network``: between the agents; None: loopback."""
        self.audit = directory / "audit"
        self._directory = directory
        self._program = program
        self._checkpoint_every = checkpoint_every
        self._lease_ttl = lease_ttl
        self._nproc = nproc
        self._settings = settings or RankSettings()
        self._network = network
        self._keys = JobKeys("bench", "job", directory.name)
        self.uid = self._keys.uid

    def __enter__(self) -> Self:
        if self._network is not None:
            self._network.__enter__()
        self._etcd = EtcdServer() if self._network is None else _ReachedEtcd(self._network.address(0))
        self._etcd.start()
        self._config = EtcdConfig.of(self._etcd.endpoint)
        self._client = EtcdClient(self._config)
        self.want(MAX_NODES)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._etcd.close()
        if self._network is not None:
            self._network.__exit__()

    @property
    def service_pids(self) -> tuple[int, ...]:
        """etcd and the network, which this object ends itself."""
        etcd = (self._etcd.pid,) if self._etcd.pid is not None else ()
        return etcd if self._network is None else (*etcd, *self._network.pids)

    def carried(self) -> int | None:
        """Bytes that nodes and services have sent so far; None: over loopback, not counted."""
        return None if self._network is None else self._network.carried()

    def node(self, number: int) -> tuple[list[str], dict[str, str]]:
        """Command and environment of the agent that is node ``number``."""
        name = worker(number)
        environment = {
            **self._config.to_environment(),
            names.ENV_NAMESPACE: self._keys.namespace,
            names.ENV_JOB: self._keys.job,
            names.ENV_JOB_UID: self._keys.uid,
            names.ENV_WORKER: name,
            names.ENV_NODE: name,
            names.ENV_ADDRESS: HOST if self._network is None else self._network.address(number + 1),
            names.ENV_TERMINATION_LOG: str(self._directory / f"{name}.termination.json"),
            ENV_AGENT_LOG: str(self._directory / f"{name}.agent.log"),
        }
        settings = self._settings
        if self._checkpoint_every is not None:
            spec = CheckpointSpec(path=str(self._directory / "checkpoints"), every_steps=self._checkpoint_every)
            settings = settings.model_copy(update={"checkpoint": spec, "audit_dir": str(self.audit)})
        environment |= {names.ENV_NPROC: str(self._nproc), **settings.to_environment()}
        if self._lease_ttl is not None:
            environment[names.ENV_LEASE_TTL] = str(self._lease_ttl)
        rank = [sys.executable, "-m", self._program]
        command = [sys.executable, "-m", "elastrain", "agent", "--", *rank]
        return command if self._network is None else self._network.inside(number + 1, command), environment

    def want(self, nodes: int, least: int = 1) -> None:
        """Ask for ``nodes`` nodes that train; further ones stand by. Fewer than ``least`` do not train."""
        self._client.put(self._keys.target, Target(min=least, max=MAX_NODES, desired=nodes).encode())

    def stands_by(self, number: int) -> bool:
        """Whether the node is ready to train."""
        return any(member.phase is Phase.READY for member, _ in self._members(number))

    def end_lease(self, number: int) -> None:
        """What the operator does with proof that all processes of the node have ended (docs/rendezvous.md), without
        the time that a kubelet and an API server take to tell it."""
        for _, lease in self._members(number):
            self._client.end_lease(lease)

    def _members(self, number: int) -> list[tuple[Member, int]]:
        """The registered members of a node, each with its lease."""
        found = [(Member.decode(kv.value), kv.lease) for kv in self._client.get_prefix(self._keys.members)[0]]
        return [(member, lease) for member, lease in found if member.worker == worker(number)]

    def rescales(self) -> list[dict[str, object]]:
        """The newest records of rescales (``elastrain.api.records.Rescale``)."""
        held = self._client.get(self._keys.progress)
        return [r.model_dump(mode="json") for r in Progress.decode(held.value).rescales] if held else []

    def restart_etcd(self, away: float) -> None:
        """``kill -9`` and, after ``away`` seconds, a start on the same data; returns when etcd serves again."""
        self._etcd.kill()
        time.sleep(away)
        self._etcd.start()


def worker(number: int) -> str:
    return f"node-{number}"


def base_environment() -> dict[str, str]:
    """The environment of all processes: this one's, without variables that steer a trainer."""
    steering = ("ELASTRAIN_", "TORCHELASTIC_", "TORCH_", "PET_", "ETCD_", "GLOO_")
    fixed_world = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
    own = {k: v for k, v in os.environ.items() if not k.startswith(steering) and k not in fixed_world}
    bench = str(Path(__file__).parent.parent)
    return {
        **own,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [bench, own.get("PYTHONPATH", "")])),
        "GRPC_ENABLE_FORK_SUPPORT": "0",
    }
