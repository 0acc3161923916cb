"""First attempts with ``elastrain run``: a script, a script with a mistake, a port in use."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elastrain_cli import etcd_server
from elastrain_cli.etcd_server import EtcdServer
from elastrain_cli.local.hints import hint
from elastrain_cli.local.script import job_of
from elastrain_resource.manifest import InvalidManifest


def test_a_script_becomes_a_job_that_is_named_after_it(tmp_path: Path) -> None:
    script = tmp_path / "Train_GPT2.py"
    script.write_text("pass")
    job = job_of(script, ["--epochs", "3"])
    assert (job.name, job.spec.min_replicas, job.spec.desired_replicas, job.spec.max_replicas) == (
        "train-gpt2",
        1,
        2,
        8,
    )
    assert job.spec.template["spec"]["containers"][0]["command"] == ["python", "Train_GPT2.py", "--epochs", "3"]


@pytest.mark.parametrize(("file", "name"), [("2nd.py", "job-2nd"), ("---.py", "job")])
def test_a_script_whose_name_is_no_jobs_name_gets_one(tmp_path: Path, file: str, name: str) -> None:
    (tmp_path / file).write_text("pass")
    assert job_of(tmp_path / file, []).name == name


def test_a_script_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest, match=r"nope\.py.*\n.*no such file"):
        job_of(tmp_path / "nope.py", [])


@pytest.mark.parametrize(
    ("tail", "advice"),
    [
        ("ModuleNotFoundError: No module named 'torch'", f"torch: {sys.executable} -m pip install 'fsspec>="),
        ("ModuleNotFoundError: No module named 'sklearn.datasets'", "has no module sklearn:"),
        ("/py: can't open file '/here/x.py': [Errno 2] No such file or directory", "are relative to /here"),
    ],
)
def test_a_missing_part_of_a_first_attempt_is_named(tail: str, advice: str) -> None:
    assert advice in hint(tail, Path("/here"))


def test_a_clear_failure_gets_no_advice() -> None:
    assert hint("ValueError: the batch is empty", Path("/here")) == ""


def test_a_script_runs_with_its_arguments_and_a_missing_part_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint('got', sys.argv[1:], flush=True)\nimport no_such_module\n")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "ELASTRAIN_FORK_RANKS": "off", "COLUMNS": "200"}
    options = ("--plain", "--set", "replicas=1", "--set", "backoffLimit=0", "--", "--epochs", "3")
    run = subprocess.run(
        [sys.executable, "-m", "elastrain", "run", str(script), *options],
        env=environment, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert run.returncode == 1
    assert "got ['--epochs', '3']" in run.stdout
    assert run.stdout.rstrip().endswith("where PACKAGE has the module no_such_module")


def test_etcd_takes_other_ports_if_they_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as faster:
        faster.bind(("127.0.0.1", 0))
        faster.listen()
        taken = faster.getsockname()[1]
        choices = iter([[taken, etcd_server._free_ports("127.0.0.1", 1)[0]], etcd_server._free_ports("127.0.0.1", 2)])
        monkeypatch.setattr(etcd_server, "_free_ports", lambda *_: next(choices))
        with EtcdServer() as server:
            assert server.pid is not None
            assert server.client_port != taken
