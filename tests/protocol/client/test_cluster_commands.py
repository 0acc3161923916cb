"""The commands on a real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from elastrain_cli.cluster import app as plugin

pytestmark = pytest.mark.apiserver


@pytest.fixture
def environment(cluster, tmp_path: Path) -> dict[str, str]:
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["contexts"][0]["context"]["namespace"] = cluster.namespace
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return {**os.environ, "KUBECONFIG": str(path), "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator runs, and ``submit`` does not wait for one."""
    monkeypatch.setattr("elastrain_cli.cluster.submit.NOTICE_SECONDS", 0.05)


@pytest.fixture
def job_file(manifest, tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(manifest(replicas=2)))
    return path


def test_a_job_can_be_managed_by_commands_alone(elastrain, cluster, job_file: Path) -> None:
    empty = elastrain("list")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr == f"no jobs in namespace {cluster.namespace}; elastrain submit FILE starts a job\n"
    submitted = elastrain("submit", job_file)
    assert submitted.stdout == f"digits: submitted to namespace {cluster.namespace}; elastrain watch digits\n"
    assert re.search(r"digits +Pending +0/2", elastrain("list").stdout)
    assert elastrain("scale", "digits", 3).stdout == "digits: 3 workers desired (was 2)\n"
    assert elastrain("suspend", "digits").exit_code == 0
    assert cluster.job("digits")["spec"]["suspend"] is True
    assert elastrain("resume", "digits").exit_code == 0
    assert elastrain("delete", "digits").stdout == "digits: deleted\n"
    assert elastrain("status", "digits").exit_code == 2


def test_answers_are_also_available_as_data(elastrain, job_file: Path) -> None:
    elastrain("submit", job_file)
    assert json.loads(elastrain("list", "-o", "json").stdout)["items"][0]["metadata"]["name"] == "digits"
    status = yaml.safe_load(elastrain("status", "digits", "-o", "yaml").stdout)
    assert status["spec"]["replicas"] == 2
    assert "managedFields" not in status["metadata"]
    assert elastrain("list", "-o", "name").stdout == "digits\n"


def test_a_script_becomes_a_job_with_the_script_in_it(elastrain, cluster, tmp_path: Path) -> None:
    script = tmp_path / "train_net.py"
    script.write_text("print('hello')\n")
    options = ("--max", 8, "--image", "train:1", "--limit", "nvidia.com/gpu=1")
    dry = elastrain("submit", script, *options, "--dry-run", "--", "--epochs", "3")
    config_map, job = yaml.safe_load_all(dry.stdout)
    assert config_map["data"] == {"train_net.py": "print('hello')\n"}
    assert job["spec"]["template"]["spec"]["containers"][0]["command"][2:] == ["--epochs", "3"]
    assert elastrain("list", "-o", "name").stdout == "", "nothing was sent"
    sent = elastrain("submit", script, *options, "--", "--epochs", "3")
    assert sent.exit_code == 0, sent.stderr
    assert cluster.job("train-net")["spec"]["maxReplicas"] == 8
    assert "hello" in cluster.kubectl("get", "configmap", "train-net-script", "-o", "yaml")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max", "8"), "--image must name an image"),
        (("--image", "train:1"), "--max must set the largest number of workers"),
        (("--max", "8", "--image", "x", "--limit", "gpu"), "--limit gpu: must be RESOURCE=N"),
        (("--max", "2", "--min", "3", "--image", "x"), "spec.minReplicas: 3: must not be greater than maxReplicas (2)"),
    ],
)
def test_a_wrong_option_of_submit_is_named(elastrain, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    answer = elastrain("submit", script, *options)
    assert answer.exit_code == 2
    assert words in answer.stderr


def test_options_of_a_script_are_refused_for_a_manifest(elastrain, job_file: Path) -> None:
    answer = elastrain("submit", job_file, "--max", 8)
    assert (answer.exit_code, "is a manifest;" in answer.stderr) == (2, True)


def test_watching_ends_with_the_job_and_its_outcome_as_exit_code(environment, elastrain, cluster, job_file) -> None:
    elastrain("submit", job_file)
    cluster.says("digits", phase="Running", step=4, readyReplicas=2, desiredReplicas=2)
    command = [sys.executable, "-m", "elastrain_cli.main", "watch", "digits"]
    watching = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stdout.readline() == "digits: Running, 2/2 workers, step 4\n"
    cluster.says("digits", phase="Failed")
    assert watching.stdout.readline() == "digits: Failed, 2/2 workers, step 4\n"
    assert watching.wait(30) == 1


def test_watching_from_a_pipe_shows_why_a_job_waits_and_why_it_failed(
    environment, elastrain, cluster, job_file
) -> None:
    elastrain("submit", job_file)
    since = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    waits = since | {"type": "PodsReady", "status": "False", "reason": "Starting", "message": "0 of 2 workers train"}
    failed = since | {"type": "Failed", "status": "True", "reason": "UserError", "message": "rank 1: ValueError: [bad]"}
    failure = {
        "worker": "digits-1", "rank": 1, "time": "2026-01-01T00:00:00Z", "cause": "user", "reason": "UserError",
        "message": "boom", "logTail": "Traceback\n  oh",
    }  # fmt: skip
    cluster.says("digits", phase="Pending", conditions=[waits])
    command = [sys.executable, "-m", "elastrain_cli.main", "watch", "digits"]
    watching = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert watching.stdout is not None
    assert watching.stdout.readline() == "digits: Pending, 0/2 workers: 0 of 2 workers train\n"
    cluster.says("digits", phase="Failed", conditions=[failed], lastFailure=failure)
    said, lost, *words = watching.stdout.read().splitlines()
    assert said == "digits: Failed, 0/2 workers: rank 1: ValueError: [bad]"
    assert lost.endswith("ago, rank 1 in digits-1: UserError: boom")
    assert words == ["    Traceback", "      oh"]
    assert watching.wait(30) == 1


def test_explain_leads_from_a_job_without_operator_to_the_doctor(elastrain, job_file: Path) -> None:
    elastrain("submit", job_file)
    assert elastrain("explain", "digits").stdout.splitlines() == [
        "digits  Pending, 0/2 workers",
        "- no operator has observed the job",
        "  → elastrain doctor",
    ]


def test_the_doctor_finds_missing_parts_and_asks_whether_workers_are_admitted(elastrain, cluster) -> None:
    found = elastrain("doctor")
    assert found.exit_code == 3, "there is no operator"
    assert re.search(r"✓ API server: v1\.\d+", found.stdout)
    assert "✓ ElasticTrainingJob: served as v1alpha1" in found.stdout
    assert "✓ permissions: all required permissions" in found.stdout
    assert "✗ operator: not installed by the chart\n  → helm install" in found.stdout
    assert f"✓ workers: namespace {cluster.namespace} admits them" in found.stdout


def test_logs_report_that_there_are_no_workers(elastrain, job_file: Path) -> None:
    elastrain("submit", job_file)
    assert elastrain("logs", "digits").stderr == "digits: has no workers; elastrain explain digits\n"


def test_a_missing_cluster_has_its_exit_code_and_message(elastrain, environment, tmp_path: Path) -> None:
    environment["KUBECONFIG"] = str(tmp_path / "nowhere")
    answer = elastrain("list")
    assert answer.exit_code == 3
    assert "name it in $KUBECONFIG" in answer.stderr


def test_kubectl_finds_the_plugin_with_the_same_commands(environment) -> None:
    answer = CliRunner().invoke(plugin.app, ["list", "-o", "name"], env=environment)
    assert (answer.exit_code, answer.stdout) == (0, "")
