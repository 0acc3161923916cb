"""The command line of the operator: its help and its refusals."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from elastrain_operator.__main__ import cli


def outcome(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(args), env={"COLUMNS": "400", "NO_COLOR": "1"})
    return result.exit_code, " ".join(result.output.split())


def test_help_names_every_setting_with_its_variable():
    code, words = outcome("--help")
    assert code == 0
    for variable in (
        "ELASTRAIN_ETCD_ENDPOINTS",
        "ELASTRAIN_WATCH_NAMESPACES",
        "ELASTRAIN_CLUSTER",
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
