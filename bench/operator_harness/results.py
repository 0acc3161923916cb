"""The figures as types: what ``--json`` writes and ``--render`` reads. Times are seconds."""

from __future__ import annotations

from pydantic import Field

from rescale_harness.results import Machine, Model


class Cost(Model):
    """What something cost, from its beginning until nothing more came of it."""

    seconds: float
    """Until all pods were there, or gone."""
    cpu: float
    """Processor seconds of the system's own process."""
    rss_mb: float
    """The greatest resident memory of that process so far."""
    requests: dict[str, int]
    """Of that process to the API server, by verb and resource, from the audit log."""
    all_requests: int
    """Of everybody: also of kubectl, scheduler, controllers, kwok and this benchmark."""
    everybody: dict[str, float] = Field(default_factory=dict)
    """Processor seconds until then, by who used them; empty in reports of before that was measured."""

    @property
    def own_requests(self) -> int:
        return sum(self.requests.values())


class Rescale(Model):
    """Every job was given one more worker, one spec after the other."""

    cost: Cost
    patching_seconds: float
    """That the changes of the specs took."""
    p50: float
    """From just before a spec was changed until the API server had created the pod."""
    p99: float
    longest: float


class Idle(Model):
    """Nothing happened."""

    seconds: float
    cpu: float
    """Processor seconds of the operator."""
    etcd_cpu: float
    """Of the etcd that jobs and operator share."""
    requests: dict[str, int]


class Restart(Model):
    """The operator was ended, a few specs were changed, and it was started again."""

    changed: int
    """Specs that were changed meanwhile, spread over all jobs."""
    caught_up: float
    """From its start until the last of their pods was created."""
    cpu: float
    """Processor seconds until it had looked at every job."""
    rss_mb: float
    requests: dict[str, int]


class Run(Model):
    system: str
    jobs: int
    workers: int
    create: Cost
    delete: Cost
    player_cpu: float | None = None
    """Processor seconds that it took to play the members, beside the system and on the same cores."""
    rescale: Rescale | None = None
    idle: Idle | None = None
    restart: Restart | None = None

    @property
    def pods(self) -> int:
        return self.jobs * self.workers


class Report(Model):
    format: int = 1
    machine: Machine
    kubernetes: str
    kwok: str
    nodes: int
    began: str
    """UTC."""
    load_after: float
    """Average load when it was over: other work on the machine spoils seconds, hardly CPU and counts."""
    runs: tuple[Run, ...]
