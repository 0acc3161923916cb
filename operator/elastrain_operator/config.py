"""The operator's settings. ``__main__`` fills them from flags and ``ELASTRAIN_*`` variables.

The text below a field that is a flag is the flag's help.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretBytes, field_validator, model_validator

from elastrain.api import names
from elastrain.etcd import EtcdConfig
from elastrain_operator.allocation.resources import quantity
from elastrain_operator.allocation.snapshot import Policy, Sharing

MIN_KEY_BYTES = 32


class WorkerEtcd(BaseModel):
    """How workers reach etcd. Secrets are named, never copied into pods."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoints: Annotated[str, Field(min_length=1)]
    """``host:port[,host:port]`` as seen from a worker."""
    secret: str = ""
    """Secret in the job's namespace with the keys below; empty: etcd needs no credentials."""
    user: bool = False
    """The secret has ``username`` and ``password``."""
    ca: bool = False
    """The secret has ``ca.crt``: TLS."""
    certificate: bool = False
    """The secret has ``tls.crt`` and ``tls.key``: a client certificate."""
    per_job: bool = False
    """Each job has its own user and secret, created by this operator; ``secret`` is then empty."""

    @model_validator(mode="after")
    def _credentials_have_a_source(self) -> Self:
        if self.per_job and self.secret:
            raise ValueError(
                f"--worker-etcd-secret {self.secret!r} and --job-key-file exclude each other: with the latter each job "
                "gets a Secret of its own"
            )
        if (self.user or self.ca or self.certificate) and not (self.secret or self.per_job):
            raise ValueError(
                "worker etcd secret is empty, but the operator's own etcd connection uses a user, a CA or a "
                "certificate: workers need theirs from a Secret in the job's namespace; name it with "
                "--worker-etcd-secret, or have the operator make one for each job with --job-key-file"
            )
        return self


class CapacityConfig(BaseModel):
    """How the cluster is shared out between jobs; ``allocation/snapshot.py`` describes the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    quotas: dict[str, dict[str, str | int | float]] = {}
    """Namespace → resource → quantity, in Kubernetes' notation."""
    weights: dict[str, Annotated[int, Field(ge=1, le=1000)]] = {}
    hysteresis: Annotated[float, Field(ge=0)] = 60.0
    """Least seconds between two resizes of a job for a mere improvement."""
    pending: Annotated[int, Field(ge=0, le=100)] = 0
    """Workers that a job which could grow keeps Pending beyond the room, so that an autoscaler adds nodes; a job that
    waits for its minimum keeps all missing ones Pending. 0: none."""
    sharing: Sharing = Sharing.EQUAL
    """equal, balanced or efficient: sizes of elastic jobs by equal shares, or by the speed-up per accelerator that each
    job has measured of itself."""

    @field_validator("quotas")
    @classmethod
    def _quantities_are_quantities(cls, quotas: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for namespace, bounds in quotas.items():
            for resource, text in bounds.items():
                try:
                    quantity(resource, str(text))
                except ValueError as error:
                    raise ValueError(f"{resource} of namespace {namespace}: {error}") from error
        return quotas

    def policy(self) -> Policy:
        """The allocator's form of these settings."""
        bounds = {n: {r: quantity(r, str(text)) for r, text in q.items()} for n, q in self.quotas.items()}
        return Policy(
            quotas=bounds,
            weights=self.weights,
            hysteresis=self.hysteresis,
            pending=self.pending,
            sharing=self.sharing,
        )


class LeaseName(BaseModel):
    """The Lease (coordination.k8s.io) by which replicas of the operator elect a leader."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]

    @classmethod
    def of(cls, text: str) -> Self | None:
        """From ``NAMESPACE/NAME``; empty: None. Raises ``ValueError`` (which includes ``ValidationError``)."""
        if not text:
            return None
        namespace, slash, name = text.partition("/")
        if not slash or not namespace or not name or "/" in name:
            raise ValueError(f"--lease {text!r}: must be NAMESPACE/NAME of a Lease, such as elastrain/operator")
        return cls(namespace=namespace, name=name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class OperatorConfig(BaseModel):
    """Settings of one operator process."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True
    )  # fmt: skip

    etcd: EtcdConfig
    worker_etcd: WorkerEtcd
    job_key: SecretBytes | None = None
    """The key from which the passwords of jobs are derived; None: the operator creates no users."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are served; empty: all."""
    owner: str = ""
    """The UID of the namespace kube-system (:func:`elastrain_operator.process.identified`): the value of the records
    ``owner``, the proof that a job is of this cluster. Only such records are deleted."""
    lease_ttl: Annotated[int, Field(ge=2, le=300)] = names.DEFAULT_LEASE_TTL
    """Seconds after which a silent worker counts as lost."""
    resync: Annotated[float, Field(gt=0)] = 300.0
    """Seconds after which each job is checked even without a change."""
    capacity: CapacityConfig | None = None
    """None: the cluster is not shared out; the desired size of a job without ``replicas`` is then ``maxReplicas``."""
    gang_scheduler: Literal["none", "coscheduling", "volcano", "native"] = "none"
    """none, coscheduling, volcano or native: the scheduler that binds minReplicas workers together, for which the
    operator writes their gang."""
    kueue: bool = False
    """Kueue decides the size of jobs with the label kueue.x-k8s.io/queue-name. Requires permission to write
    Workloads, and to read queues, flavors and priority classes."""
    lease: LeaseName | None = None
    """The leader holds this Lease; None: there is never another replica."""
    lease_seconds: Annotated[int, Field(ge=3, le=60)] = 10
    """Seconds without a renewal of the Lease after which another operator takes over."""
    health_port: Annotated[int, Field(ge=1, le=65535)] = 8080
    """Port of GET /healthz, for the probes."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of GET /metrics, for Prometheus; 0: none."""

    @model_validator(mode="after")
    def _users_can_be_made(self) -> Self:
        if self.job_key is not None and not (self.etcd.username and self.etcd.ca):
            raise ValueError(
                "--job-key-file needs --etcd-username and --etcd-password-file (of a user with the role root, which "
                "may make others) and --etcd-ca (passwords must not travel in the clear)"
            )
        return self


def read_job_key(file: str) -> SecretBytes | None:
    """The key in ``file``; None if no file is named. Raises ``ValueError`` if the file is unusable."""
    if not file:
        return None
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise ValueError(f"--job-key-file {file!r} cannot be read: {error.strerror}") from None
    if len(key) < MIN_KEY_BYTES:
        raise ValueError(f"--job-key-file {file!r} has {len(key)} bytes, a key needs at least {MIN_KEY_BYTES}")
    return SecretBytes(key)
