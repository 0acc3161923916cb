"""``python -m elastrain_operator``: starts the operator; ``--help`` lists the options.

:data:`FLAGS` declares each flag once, with its variable and its help. A flag of a setting in ``config.py`` takes name,
type, default and help from there.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import uvloop
from pydantic import BaseModel, ValidationError

from elastrain.etcd import EtcdConfig
from elastrain_operator import logs
from elastrain_operator.config import CapacityConfig, LeaseName, OperatorConfig, WorkerEtcd, read_job_key
from elastrain_operator.process import serve

cli = typer.Typer(add_completion=False, rich_markup_mode="markdown")


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command."""

    name: str
    """``lease_ttl`` is ``--lease-ttl``, and the variable ``ELASTRAIN_LEASE_TTL``."""
    help: str
    default: Any = ""

    @classmethod
    def of(cls, model: type[BaseModel], field: str) -> Flag:
        """The flag of a setting; one of a part of the settings begins with the part's name."""
        setting = model.model_fields[field]
        name = field if model is OperatorConfig else f"capacity_{field}"
        default = setting.default if isinstance(setting.default, bool | int | float) else str(setting.default)
        return cls(name, " ".join((setting.description or "").split()), default)

    @property
    def parameter(self) -> inspect.Parameter:
        """For typer."""
        option = typer.Option(envvar=f"ELASTRAIN_{self.name.upper()}", help=self.help, show_default=True)
        kind = str if self.default is inspect.Parameter.empty else type(self.default)
        form = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, form, default=self.default, annotation=Annotated[kind, option])


FLAGS = (
    Flag("etcd_endpoints", "Endpoints of etcd v3: host:port[,host:port].", inspect.Parameter.empty),
    Flag("etcd_username", "etcd user; requires a password file."),
    Flag("etcd_password_file", "File with the password."),
    Flag("etcd_ca", "CA certificate (PEM); enables TLS."),
    Flag("etcd_cert", "Client certificate (PEM)."),
    Flag("etcd_key", "Key of the client certificate (PEM)."),
    Flag(
        "worker_etcd_secret",
        "Secret in each job's namespace with the workers' etcd credentials: those of username, password, ca.crt, "
        "tls.crt and tls.key that the operator itself uses.",
    ),
    Flag(
        "job_key_file",
        "File with at least 32 random bytes. With it each job gets an etcd user with access to its own keys only, "
        "and a Secret with its password, derived from these bytes. --etcd-username must have the role root.",
    ),
    Flag("namespaces", "Namespaces to serve, separated by commas. Default: all."),
    Flag.of(OperatorConfig, "lease_ttl"),
    Flag(
        "capacity",
        "Share the cluster out: jobs without replicas grow into idle capacity. Requires permission to read nodes, "
        "priority classes and the pods of all namespaces.",
        default=False,
    ),
    Flag("capacity_quotas", 'JSON: {"team-a": {"nvidia.com/gpu": 8}}; requires --capacity.'),
    Flag("capacity_weights", 'JSON: {"team-a": 2}: weights for the capacity above the minima. Default: 1.'),
    *(Flag.of(CapacityConfig, field) for field in ("hysteresis", "pending", "sharing")),
    Flag.of(OperatorConfig, "gang_scheduler"),
    Flag.of(OperatorConfig, "kueue"),
    Flag(
        "lease",
        "NAMESPACE/NAME of a Lease: of all operators started with it, one leads and the others stand by. "
        "Default: none; this operator must then be the only one.",
    ),
    Flag.of(OperatorConfig, "lease_seconds"),
    Flag.of(OperatorConfig, "health_port"),
    Flag.of(OperatorConfig, "metrics_port"),
    Flag("log_level", "debug, info, warning or error.", default="info"),
)


def main(**flags: Any) -> None:
    """Runs elastic training jobs (`kubectl get etj`): creates their worker pods, publishes the desired size to the
    workers through etcd, replaces lost workers and updates each job's status.

    Uses the service account of its pod, else the current kubeconfig. Requires the CRD and an etcd v3 that workers can
    reach. It may be stopped at any time: training continues, and the next operator continues from what it observes.

    Example: `python -m elastrain_operator --etcd-endpoints 127.0.0.1:2379 --namespaces default`
    """
    try:
        level = logs.level_of(flags.pop("log_level"))
        config = configured(flags)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(_message(e) for e in error.errors(include_url=False))) from error
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    logs.configure(level)
    raise typer.Exit(uvloop.run(serve(config)))


_parameters = [flag.parameter for flag in FLAGS]
main.__signature__ = inspect.Signature(_parameters)  # type: ignore[attr-defined]  # from which typer makes the options
main.__annotations__ = {p.name: p.annotation for p in _parameters}
cli.command()(main)


def configured(flags: Mapping[str, Any]) -> OperatorConfig:
    """The settings from the values of the flags. Raises ``ValueError`` naming flag, value and rule.

    A flag with the name of a setting is that setting.
    """
    etcd = EtcdConfig.of(**_group("etcd_", flags))
    job_key = read_job_key(flags["job_key_file"])
    made = {
        "etcd": etcd,
        "worker_etcd": WorkerEtcd(  # as the operator reaches it, unless the flags differ
            endpoints=",".join(etcd.endpoints),
            secret=flags["worker_etcd_secret"],
            user=bool(etcd.username),
            ca=etcd.ca is not None,
            certificate=etcd.cert is not None and job_key is None,
            per_job=job_key is not None,
        ),
        "job_key": job_key,
        "namespaces": tuple(n.strip() for n in flags["namespaces"].split(",") if n.strip()),
        "capacity": _capacity(_group("capacity_", flags)) if flags["capacity"] else None,
        "lease": LeaseName.of(flags["lease"]),
    }
    plain = {name: value for name, value in flags.items() if name in OperatorConfig.model_fields}
    return OperatorConfig(**plain | made)


def _group(prefix: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in flags.items() if name.startswith(prefix)}


def _capacity(given: dict[str, Any]) -> CapacityConfig:
    """Raises ``ValueError`` naming the flag."""
    for field in ("quotas", "weights"):
        text = given[field]
        try:
            given[field] = json.loads(text) if text.strip() else {}
        except ValueError as error:
            raise ValueError(f"--capacity-{field} {text!r}: must be a JSON object: {error}") from error
    try:
        return CapacityConfig.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, *path = map(str, first["loc"])
        where = f" (at {', '.join(path)})" if path else ""
        raise ValueError(f"--capacity-{field} {first['input']!r}{where}: {first['msg']}") from error


def _message(error: object) -> str:
    assert isinstance(error, dict)
    flag = "--" + str(error["loc"][-1]).replace("_", "-") if error["loc"] else ""
    value = f" {error['input']!r}" if flag else ""
    return f"{flag}{value}: {error['msg']}" if flag else str(error["msg"]).removeprefix("Value error, ")


if __name__ == "__main__":
    cli()
