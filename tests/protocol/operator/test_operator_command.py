"""The command line of the operator: its help and its refusals."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from elastrain_operator import __main__
from elastrain_operator.__main__ import cli
from elastrain_operator.config import CapacityConfig, LeaseName


def outcome(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(args), env={"COLUMNS": "400", "NO_COLOR": "1"})
    return result.exit_code, " ".join(result.output.split())


def test_help_names_every_setting_with_its_variable():
    code, words = outcome("--help")
    assert code == 0
    for variable in (
        "ELASTRAIN_ETCD_ENDPOINTS",
        "ELASTRAIN_NAMESPACES",
        "ELASTRAIN_LEASE_TTL",
        "ELASTRAIN_CAPACITY",
        "ELASTRAIN_CAPACITY_QUOTAS",
    ):
        assert variable in words


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "--etcd-endpoints"),
        (("--etcd-endpoints=http://etcd:2379",), "write host:port without a scheme"),
        (("--etcd-endpoints=etcd", "--lease-ttl=1"), "--lease-ttl 1: Input should be greater than or equal to 2"),
        (
            ("--etcd-endpoints=etcd", "--log-level=loud"),
            "--log-level 'loud': must be one of debug, info, warning, error",
        ),
        (("--etcd-endpoints=etcd", "--capacity", "--capacity-quotas=[1]"), "--capacity-quotas [1]"),
        (("--etcd-endpoints=etcd", "--capacity", "--capacity-sharing=fast"), "--capacity-sharing 'fast'"),
        (
            ("--etcd-endpoints=etcd", "--capacity", "--capacity-quotas={"),
            "--capacity-quotas '{': must be a JSON object",
        ),
        (
            ("--etcd-endpoints=etcd", "--capacity", '--capacity-quotas={"a": {"cpu": "lots"}}'),
            "cpu of namespace a: 'lots' is not a quantity",
        ),
        (
            ("--etcd-endpoints=etcd", "--capacity", '--capacity-weights={"a": 0}'),
            "--capacity-weights 0 (at a): Input should be greater than or equal to 1",
        ),
        (("--etcd-endpoints=etcd", "--etcd-ca=/none"), "'/none' is not a file"),
        (("--etcd-endpoints=etcd", "--job-key-file=/none"), "--job-key-file '/none' cannot be read: No such file"),
        (("--etcd-endpoints=etcd", "--job-key-file=/dev/null"), "has 0 bytes, a key needs at least 32"),
        (("--etcd-endpoints=etcd", f"--job-key-file={__file__}"), "--job-key-file needs --etcd-username"),
    ],
)
def test_wrong_setting_is_refused_by_name(args, words):
    code, output = outcome(*args)
    assert code == 2
    assert words in output


def test_flags_become_the_settings_of_the_operator(monkeypatch):
    started = []
    monkeypatch.setattr(__main__, "serve", started.append)
    monkeypatch.setattr(__main__.uvloop, "run", lambda _: 0)
    monkeypatch.setattr(__main__.logs, "configure", lambda _: None)
    own = ("--etcd-endpoints=etcd", "--namespaces=a, b", "--lease=n/l")
    shared = (
        "--capacity",
        "--capacity-hysteresis=1",
        "--capacity-pending=3",
        "--capacity-sharing=efficient",
        '--capacity-weights={"a": 3}',
    )
    plain = {"lease_ttl": 9, "lease_seconds": 11, "health_port": 81, "metrics_port": 91}
    given = [f"--{name.replace('_', '-')}={value}" for name, value in plain.items()]
    assert outcome(*own, *shared, *given) == (0, "")
    (config,) = started
    assert {name: getattr(config, name) for name in plain} == plain
    assert (config.etcd.endpoints, config.worker_etcd.endpoints) == (("etcd:2379",), "etcd:2379")
    assert (config.namespaces, config.lease) == (("a", "b"), LeaseName(namespace="n", name="l"))
    assert config.capacity == CapacityConfig(hysteresis=1, pending=3, sharing="efficient", weights={"a": 3})
