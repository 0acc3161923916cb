"""A model of the paid time of a job, split by cause. Pure; analytic: means of rates and costs.

Effective training time (ETTR, goodput) is the part of the time that trains: of the job's wall clock in Meta's
"Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (HPCA 2025), of the accelerators' time in
Google's ml-goodput-measurement. Here it is of all *paid* accelerator time, with spares.

Each second of training carries so many seconds of each cause: rate of the event times its cost. The parts are these
seconds over their sum, so none is negative and together they are 1, also where failures are frequent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

HOUR = 3600.0
GB = 1e9


@dataclass(frozen=True, slots=True)
class Constants:
    """What one event costs, in seconds unless a name says otherwise. Each can be replaced by an own measurement.

    *Measured*: by docs/benchmarks.md (2 cores, 110 MB of state, ranks on one machine) and docs/sizing.md. *Assumed*:
    not measured by the project. *Published*: measured by others.
    """

    detect: float = 0.1
    """From a loss until survivors find their generation broken. Measured: 0.07 (killed rank) to 0.13 (killed node)."""
    silent: float = 0.05
    """Part of the losses that no socket and no agent reports, so that a lease must end. Assumed."""
    lease: float = 5.0
    """Lease TTL: the default of a job."""
    decide: float = 0.015
    """From the broken generation to the next one's record. Measured: 0.010 to 0.016; `per_member` comes on top."""
    per_member: float = 0.0027
    """Forming a generation, for each worker. Measured: 11 s for 4,096 members."""
    connect: float = 1.4
    """A new communicator of few ranks. Published, for NCCL's shrink and grow (NVIDIA-NeMo/RL, pull requests 3186 and
    3334): 1.2 to 1.8 at 32 to 256 ranks. Over TCP the project has measured 0.02 at 8."""
    per_rank: float = 0.0027
    """The same, more for each rank. Published: 2.0 to 4.2 in all at 1,024 ranks (as above), and 265 at 98,304 for an
    initialisation by stock NCCL ("Collective Communication for 100k+ GPUs", 2025); the line gives 4.2 and 267."""
    bandwidth: float = 1.2
    """State to a joiner, GB/s to each rank. Measured: 110 MB in 0.08 to 0.13 s, over loopback."""
    first_step: float = 0.03
    """What the first step takes beyond an ordinary one. Measured: 142 ms instead of 117."""
    start: float = 4.0
    """Cold start of a worker whose pod is on a node. Measured: 3.9 to 4.2."""
    copy: float = 10.0
    """Copy of a rank's state to host memory for a checkpoint, GB/s: what training waits for. Assumed."""
    store: float = 10.0
    """The store of durable checkpoints, GB/s for the whole job. Assumed."""
    repair: float = 1800.0
    """Until a lost worker's node is replaced. Assumed."""
    all_lost: float = 0.01
    """Part of the losses that take every copy of the state at once (power, network, store). Assumed."""

    def __post_init__(self) -> None:
        for name in ("silent", "all_lost"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name):g}: must be a part, from 0 to 1")
        for name in ("bandwidth", "copy", "store"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name):g}: must be GB/s above 0")
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < math.inf:
                raise ValueError(f"{field.name}={getattr(self, field.name):g}: must be a finite number of at least 0")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A job and its cluster."""

    cards: int
    """That train; spares come on top."""
    per_node: int
    state: float
    """Bytes of one copy of the training state: parameters, optimizer, buffers."""
    step: float
    """Seconds of an undisturbed step."""
    mttf: float
    """Mean hours between unplanned losses of one card, whatever its cause (card, host, network, software)."""
    constants: Constants = Constants()

    @property
    def rate(self) -> float:
        """Unplanned losses of the job in a second."""
        return self.cards / (self.mttf * HOUR)

    @property
    def nodes(self) -> int:
        """Its workers, one a node."""
        return math.ceil(self.cards / self.per_node)

    @property
    def fatal(self) -> float:
        """Part of the losses that take every copy of the state. On one node a loss takes all."""
        return 1.0 if self.nodes == 1 else self.constants.all_lost


@dataclass(frozen=True, slots=True)
class Settings:
    """What a plan sets."""

    group: int
    """Cards that hold one copy of the state."""
    spares: int
    """Replicas that stand by."""
    interval: int
    """Steps between durable checkpoints."""
    redone: int
    """`maxRedoneSteps`, with one copy of the state only."""


@dataclass(frozen=True, slots=True)
class Split:
    """Parts of the paid accelerator time; they add up to 1."""

    training: float
    """Paid time that trains the model: ETTR, with spares in the denominator."""
    detection: float
    rendezvous: float
    """Decision and connections."""
    state: float
    """State to joiners, and from the store."""
    redone: float
    """The aborted step of each loss, and committed steps that are repeated."""
    start: float
    """First steps, and cold starts of the whole job."""
    checkpoint: float
    waiting: float
    """For capacity: lost replicas that no spare replaces."""
    spare: float


def unit(cluster: Cluster, group: int) -> int:
    """Cards that leave with one lost card: its replica, which is a worker or a group of workers."""
    if group >= cluster.cards:
        return min(cluster.per_node, cluster.cards)  # `shards: all` trains on with any number of workers
    return min(max(group, cluster.per_node), cluster.cards)


def split(cluster: Cluster, settings: Settings) -> Split:
    """The paid time of ``cluster`` under ``settings``."""
    c, rate, step = cluster.constants, cluster.rate, cluster.step
    each = cluster.state / settings.group / GB
    fatal = rate * cluster.fatal
    pauses = {
        "detection": rate * ((1 - c.silent) * c.detect + c.silent * max(c.lease, c.detect)),
        "rendezvous": rate * rendezvous(cluster),
        # Once to the spare or the replacement; after a loss of all copies, from the store.
        "state": rate * each / c.bandwidth + fatal * cluster.state / GB / c.store,
        "start": rate * c.first_step + fatal * c.start,
    }
    again = repetition(sum(pauses.values()))
    spent = {cause: seconds * again for cause, seconds in pauses.items()} | {
        "redone": rate * step * (0.5 + repeated(cluster, settings)),
        "checkpoint": stall(cluster, settings.group) / (settings.interval * step),
        "waiting": waiting(cluster, settings.group, settings.spares),
        "spare": settings.spares * unit(cluster, settings.group) / cluster.cards,
    }
    whole = 1 + sum(spent.values())
    return Split(training=1 / whole, **{cause: seconds / whole for cause, seconds in spent.items()})


def repetition(expected: float) -> float:
    """How often a pause is begun, on average, since a loss in it begins it anew: (e^x - 1) / x, with x the expected
    losses in one pause.

    Daly, "A higher order estimate of the optimum checkpoint interval" (FGCS 2006), has the same of work and restarts.
    """
    return math.expm1(min(expected, 600.0)) / expected if expected > 0 else 1.0


def repeated(cluster: Cluster, settings: Settings) -> float:
    """The mean of the committed steps that a loss repeats: none while another copy of the state lives."""
    durable = settings.interval / 2
    near = 0.0 if cluster.cards // settings.group > 1 else min(settings.redone / 2, durable)
    return cluster.fatal * durable + (1 - cluster.fatal) * near


def rendezvous(cluster: Cluster) -> float:
    """Seconds from the broken generation to the connected next one."""
    c = cluster.constants
    return c.decide + c.per_member * cluster.nodes + c.connect + c.per_rank * cluster.cards


def stall(cluster: Cluster, group: int) -> float:
    """Seconds for which a durable checkpoint stops training: the copy of a rank's part to host memory."""
    return cluster.state / group / GB / cluster.constants.copy


def writing(cluster: Cluster) -> float:
    """Seconds of writing a durable checkpoint, in the background: no interval is shorter."""
    return cluster.state / GB / cluster.constants.store


def waiting(cluster: Cluster, group: int, spares: int) -> float:
    """Seconds of the whole job's time that missing replicas cost, for each second of training.

    Losses within the time of one repair are a Poisson variable; those beyond the spares are missing.
    """
    missing = shortage(cluster.rate * cluster.constants.repair, spares) * unit(cluster, group) / cluster.cards
    part = min(missing, 0.999)
    return part / (1 - part)


def shortage(mean: float, spares: int) -> float:
    """The expected number of a Poisson variable's events beyond ``spares``: E[max(X - spares, 0)]."""
    if mean <= 0:
        return 0.0
    if spares <= mean:  # mean - spares + E[max(spares - X, 0)]: a finite sum
        return mean - spares + sum((spares - x) * poisson(mean, x) for x in range(spares))
    total, x = 0.0, spares + 1
    while True:
        term = (x - spares) * poisson(mean, x)
        total += term
        if term <= 1e-15 * max(total, 1e-300):
            return total
        x += 1


def poisson(mean: float, count: int) -> float:
    """The probability of ``count`` events of a Poisson variable with this ``mean``, above 0."""
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
