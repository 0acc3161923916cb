"""The figures as types: what ``--json`` writes. Times are seconds."""

from __future__ import annotations

from bench_harness.machine import Machine
from bench_harness.stats import Model


class Cost(Model):
    """The cost of one phase, until nothing more came of it."""

    seconds: float
    """Until all pods were there, or gone."""
    cpu: float
    """Processor seconds of the system's own process."""
    rss_mb: float
    """The greatest resident memory of that process so far."""
    requests: dict[str, int]
    """Of that process to the API server, by verb and resource, from the audit log."""
    all_requests: int
    """Of all processes: also of kubectl, scheduler, controllers, kwok and this benchmark."""
    by_process: dict[str, float]
    """Processor seconds until then, of each process of the run. On few cores their sum is the time."""

    @property
    def own_requests(self) -> int:
        return sum(self.requests.values())


class Rescale(Model):
    """Every job gets one more worker, one spec after the other."""

    cost: Cost
    patching_seconds: float
    """Until the API server had all changed specs."""
    p50: float
    """From just before the change of a spec until the API server had created the pod."""
    p99: float


class Idle(Model):
    """Nothing happens."""

    seconds: float
    cpu: float
    """Processor seconds of the operator."""
    etcd_cpu: float
    """Of the etcd that jobs and operator share."""
    requests: dict[str, int]


class Restart(Model):
    """The operator ends, some specs change, and it starts again."""

    changed: int
    """Specs that changed meanwhile, spread over all jobs."""
    caught_up: float
    """From its start until the last of their pods was created."""
    cpu: float
    """Processor seconds until it had planned every job."""
    rss_mb: float
    requests: dict[str, int]


class Run(Model):
    system: str
    jobs: int
    workers: int
    create: Cost
    delete: Cost
    player_cpu: float | None = None
    """Processor seconds of playing the members, on the same cores."""
    rescale: Rescale | None = None
    idle: Idle | None = None
    restart: Restart | None = None


class Report(Model):
    """Everything."""

    machine: Machine
    kubernetes: str
    kwok: str
    nodes: int
    runs: tuple[Run, ...]
