"""A whole job where no IPv4 address exists: etcd, rendezvous, sums, state for a joiner, a kill and a drain."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

DIGITS = Path(__file__).parents[3] / "examples/01-digits"
ALONE = 'ip link set lo up && ip -4 addr flush dev lo && ip -6 addr show dev lo | grep -q ::1 && exec "$@"'
"""In a network namespace of its own: nothing but ``::1``."""


def network(*command: str) -> list[str]:
    return ["unshare", "--net", "--map-root-user", "sh", "-c", ALONE, "sh", *command]


def test_a_job_trains_grows_loses_a_worker_and_is_drained_without_an_ipv4_address(tmp_path: Path) -> None:
    if not shutil.which("ip") or subprocess.run(network("true"), capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    job = yaml.safe_load((DIGITS / "job.yaml").read_text())
    job["metadata"]["name"], job["spec"]["replicas"] = "v6", 2
    (trainer,) = job["spec"]["template"]["spec"]["containers"]
    trainer["command"] = ["python", str(DIGITS / "train.py"), "--epochs", "1000", "--step-seconds", "0.05"]
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump(job))
    driver = Path(__file__).with_name("run_without_ipv4.py")
    done = subprocess.run(
        network(sys.executable, str(driver), str(manifest)), capture_output=True, text=True, timeout=380, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"families": ["AF_INET6"], "addresses": ["::1"], "problems": [], "redone": 0}
