"""``python -m elastrain_operator``: starts the operator; ``--help`` lists the options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import uvloop
from pydantic import ValidationError

from elastrain import tracing
from elastrain.api import names
from elastrain.etcd import EtcdConfig
from elastrain_operator import logs
from elastrain_operator.config import CapacityConfig, GangConfig, LeaseName, OperatorConfig, WorkerEtcd, read_job_key
from elastrain_operator.process import serve

cli = typer.Typer(add_completion=False, rich_markup_mode="markdown")


def option(env: str, help_: str) -> typer.models.OptionInfo:
    """An option that is also read from an environment variable."""
    return typer.Option(envvar=env, help=help_, show_default=True)  # type: ignore[no-any-return]


EtcdEndpoints = Annotated[str, option(names.ENV_ETCD_ENDPOINTS, "Endpoints of etcd v3: host:port[,host:port].")]
EtcdUsername = Annotated[str, option(names.ENV_ETCD_USERNAME, "etcd user; requires a password file.")]
EtcdPasswordFile = Annotated[str, option(names.ENV_ETCD_PASSWORD_FILE, "File with the password.")]
EtcdCa = Annotated[str, option(names.ENV_ETCD_CA, "CA certificate (PEM); enables TLS.")]
EtcdCert = Annotated[str, option(names.ENV_ETCD_CERT, "Client certificate (PEM).")]
EtcdKey = Annotated[str, option(names.ENV_ETCD_KEY, "Key of the client certificate (PEM).")]
WorkerEtcdEndpoints = Annotated[
    str, option("ELASTRAIN_WORKER_ETCD_ENDPOINTS", "Endpoints of etcd for workers. Default: --etcd-endpoints.")
]
WorkerEtcdSecret = Annotated[
    str,
    option(
        "ELASTRAIN_WORKER_ETCD_SECRET",
        "Secret in each job's namespace with the workers' etcd credentials: those of username, password, ca.crt, "
        "tls.crt and tls.key that the operator itself uses.",
    ),
]
JobKeyFile = Annotated[
    str,
    option(
        "ELASTRAIN_JOB_KEY_FILE",
        "File with at least 32 random bytes. With it each job gets an etcd user with access to its own keys only, "
        "and a Secret with its password, derived from these bytes. --etcd-username must have the role root.",
    ),
]
Namespaces = Annotated[
    str, option("ELASTRAIN_WATCH_NAMESPACES", "Namespaces to serve, separated by commas. Default: all.")
]
Cluster = Annotated[
    str,
    option(
        "ELASTRAIN_CLUSTER",
        "Name of this cluster, unique among those that share an etcd. Default: the UID of its namespace kube-system.",
    ),
]
LeaseTtl = Annotated[int, option(names.ENV_LEASE_TTL, "Seconds after which a silent worker counts as lost.")]
DrainExtra = Annotated[
    float,
    option("ELASTRAIN_DRAIN_EXTRA", "Seconds beyond its pod's grace period that a worker may take to leave."),
]
Resync = Annotated[float, option("ELASTRAIN_RESYNC", "Seconds after which each job is checked even without a change.")]
ShareCapacity = Annotated[
    bool,
    option(
        "ELASTRAIN_CAPACITY",
        "Share the cluster out: jobs without replicas grow into idle capacity. Requires permission to read nodes, "
        "priority classes and the pods of all namespaces.",
    ),
]
CapacityQuotas = Annotated[
    str, option("ELASTRAIN_CAPACITY_QUOTAS", 'JSON: {"team-a": {"nvidia.com/gpu": 8}}; requires --capacity.')
]
CapacityWeights = Annotated[
    str,
    option("ELASTRAIN_CAPACITY_WEIGHTS", 'JSON: {"team-a": 2}: weights for the capacity above the minima. Default: 1.'),
]
CapacityHysteresis = Annotated[
    float, option("ELASTRAIN_CAPACITY_HYSTERESIS", "Least seconds between two resizes of a job for a mere improvement.")
]
CapacityHorizon = Annotated[
    float, option("ELASTRAIN_CAPACITY_HORIZON", "Seconds within which additional workers must make up for the pause.")
]
CapacityPending = Annotated[
    int,
    option(
        "ELASTRAIN_CAPACITY_PENDING",
        "Workers that a job which could grow keeps Pending beyond the room, so that an autoscaler adds nodes; a job "
        "that waits for its minimum keeps all missing ones Pending. 0: none.",
    ),
]
CapacitySharing = Annotated[
    str,
    option(
        "ELASTRAIN_CAPACITY_SHARING",
        "equal, balanced or efficient: sizes of elastic jobs by equal shares, or by the speed-up per accelerator that "
        "each job has measured of itself.",
    ),
]
GangScheduler = Annotated[
    str,
    option(
        "ELASTRAIN_GANG_SCHEDULER",
        "none, coscheduling, volcano, kai or native: the scheduler that is told to bind minReplicas workers together.",
    ),
]
GangSchedulerName = Annotated[
    str,
    option(
        "ELASTRAIN_GANG_SCHEDULER_NAME",
        "Only for jobs whose template has this schedulerName. Default: volcano, kai-scheduler, or any name.",
    ),
]
Kueue = Annotated[
    bool,
    option(
        "ELASTRAIN_KUEUE",
        "Kueue decides the size of jobs with the label kueue.x-k8s.io/queue-name. Requires permission to write "
        "Workloads, and to read queues, flavors and priority classes.",
    ),
]
LeaseFlag = Annotated[
    str,
    option(
        "ELASTRAIN_LEASE",
        "NAMESPACE/NAME of a Lease: of all operators started with it, one leads and the others stand by. "
        "Default: none; this operator must then be the only one.",
    ),
]
LeaseSeconds = Annotated[
    int,
    option(
        "ELASTRAIN_LEASE_SECONDS", "Seconds without a renewal of the Lease after which another operator takes over."
    ),
]
HealthPort = Annotated[int, option("ELASTRAIN_HEALTH_PORT", "Port of GET /healthz, for the probes.")]
MetricsPort = Annotated[int, option("ELASTRAIN_METRICS_PORT", "Port of GET /metrics, for Prometheus; 0: none.")]
TracesEndpoint = Annotated[
    str,
    option(
        tracing.ENV_ENDPOINT,
        "OTLP collector over HTTP, such as http://otel-collector.monitoring:4318: operator and workers send it traces "
        "of rescales. Requires elastrain[tracing] in their images.",
    ),
]
LogLevel = Annotated[str, option("ELASTRAIN_LOG_LEVEL", "debug, info, warning or error.")]


@cli.command()
def main(  # noqa: PLR0917 - one parameter per flag; typer calls it by keyword
    etcd_endpoints: EtcdEndpoints,
    etcd_username: EtcdUsername = "",
    etcd_password_file: EtcdPasswordFile = "",
    etcd_ca: EtcdCa = "",
    etcd_cert: EtcdCert = "",
    etcd_key: EtcdKey = "",
    worker_etcd_endpoints: WorkerEtcdEndpoints = "",
    worker_etcd_secret: WorkerEtcdSecret = "",
    job_key_file: JobKeyFile = "",
    namespaces: Namespaces = "",
    cluster: Cluster = "",
    lease_ttl: LeaseTtl = names.DEFAULT_LEASE_TTL,
    drain_extra: DrainExtra = 30.0,
    resync: Resync = 300.0,
    capacity: ShareCapacity = False,
    capacity_quotas: CapacityQuotas = "",
    capacity_weights: CapacityWeights = "",
    capacity_hysteresis: CapacityHysteresis = 60.0,
    capacity_horizon: CapacityHorizon = 600.0,
    capacity_pending: CapacityPending = 0,
    capacity_sharing: CapacitySharing = "equal",
    gang_scheduler: GangScheduler = "none",
    gang_scheduler_name: GangSchedulerName = "",
    kueue: Kueue = False,
    lease: LeaseFlag = "",
    lease_seconds: LeaseSeconds = 10,
    health_port: HealthPort = 8080,
    metrics_port: MetricsPort = 0,
    traces_endpoint: TracesEndpoint = "",
    log_level: LogLevel = "info",
) -> None:
    """Runs elastic training jobs (`kubectl get etj`): creates their worker pods, publishes the desired size to the
    workers through etcd, replaces lost workers and updates each job's status.

    Uses the service account of its pod, else the current kubeconfig. Requires the CRD and an etcd v3 that workers can
    reach. It may be stopped at any time: training continues, and the next operator continues from what it observes.

    Example: `python -m elastrain_operator --etcd-endpoints 127.0.0.1:2379 --namespaces default`
    """
    flags = locals()
    try:
        level = logs.level_of(flags.pop("log_level"))
        config = configured(flags)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(_message(e) for e in error.errors(include_url=False))) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    logs.configure(level)
    raise typer.Exit(uvloop.run(serve(config)))


def configured(flags: Mapping[str, Any]) -> OperatorConfig:
    """The settings from the values of the flags. Raises ``ValueError`` naming flag, value and rule.

    A flag with the name of a setting is that setting.
    """
    etcd = EtcdConfig.of(**_group("etcd_", flags))
    job_key = read_job_key(flags["job_key_file"])
    made = {
        "etcd": etcd,
        "worker_etcd": _worker_etcd(etcd, **_group("worker_etcd_", flags), per_job=job_key is not None),
        "job_key": job_key,
        "namespaces": tuple(n.strip() for n in flags["namespaces"].split(",") if n.strip()),
        "capacity": _capacity(**_group("capacity_", flags)) if flags["capacity"] else None,
        "gang": _gang(**_group("gang_", flags)),
        "lease": LeaseName.of(flags["lease"]),
    }
    plain = {name: value for name, value in flags.items() if name in OperatorConfig.model_fields}
    return OperatorConfig(**plain | made)


def _group(prefix: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in flags.items() if name.startswith(prefix)}


def _worker_etcd(etcd: EtcdConfig, endpoints: str, secret: str, *, per_job: bool) -> WorkerEtcd:
    """How workers reach etcd: like the operator, unless the flags differ."""
    return WorkerEtcd(
        endpoints=endpoints or ",".join(etcd.endpoints),
        secret=secret,
        user=bool(etcd.username),
        ca=etcd.ca is not None,
        certificate=etcd.cert is not None and not per_job,
        per_job=per_job,
    )


def _gang(scheduler: str, scheduler_name: str) -> GangConfig | None:
    if scheduler == "none":
        return None
    return GangConfig.model_validate({"scheduler": scheduler, "scheduler_name": scheduler_name})


def _capacity(quotas: str, weights: str, **others: float | str) -> CapacityConfig:
    """Raises ``ValueError`` naming the flag."""
    given = {"quotas": _json("--capacity-quotas", quotas), "weights": _json("--capacity-weights", weights), **others}
    try:
        return CapacityConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, *path = map(str, first["loc"])
        where = f" (at {', '.join(path)})" if path else ""
        raise ValueError(f"--capacity-{field} {first['input']!r}{where}: {first['msg']}") from error


def _json(flag: str, text: str) -> Any:
    """A mapping given as JSON; empty: none. The model validates its contents."""
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ValueError(f"{flag} {text!r}: must be a JSON object: {error}") from error


def _message(error: object) -> str:
    assert isinstance(error, dict)
    flag = "--" + str(error["loc"][-1]).replace("_", "-") if error["loc"] else ""
    value = f" {error['input']!r}" if flag else ""
    return f"{flag}{value}: {error['msg']}" if flag else str(error["msg"]).removeprefix("Value error, ")


if __name__ == "__main__":
    cli()
