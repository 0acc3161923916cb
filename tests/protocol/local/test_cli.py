"""The command line as processes and in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from elastrain import __version__

ELASTRAIN = [sys.executable, "-m", "elastrain_cli.main"]


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    nowhere = {"KUBECONFIG": str(tmp_path / "no-cluster")}
    return {**os.environ, **nowhere, "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "200", "NO_COLOR": "1"}


@pytest.fixture
def running(environment, manifest) -> Iterator[subprocess.Popen[str]]:
    """``elastrain run`` of a job that never ends, once it trains."""
    path = manifest(replicas=1)
    run = subprocess.Popen(
        [*ELASTRAIN, "run", str(path), "--plain"], env=environment, stdout=subprocess.PIPE, stderr=2, text=True
    )
    assert run.stdout is not None
    assert any("generation 1" in line for line in run.stdout), "it ended before it trained"
    yield run
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        run.wait(30)
    run.stdout.close()


def test_version(elastrain):
    assert elastrain("version").stdout == f"elastrain {__version__}\n"


@pytest.mark.parametrize("command", ["", "run", "scale", "status", "validate", "audit", "agent"])
def test_help_has_an_example(elastrain, command):
    shown = elastrain(*command.split(), "--help")
    assert shown.exit_code == 0
    assert re.search(r"(?i)example|train; Ctrl-C drains", shown.stdout)


def test_a_valid_manifest_is_summarised(elastrain, manifest):
    shown = elastrain("validate", manifest(replicas=2, checkpoint={"path": "/c", "everySteps": 1}))
    assert (shown.exit_code, shown.stderr[:51]) == (0, "warning: spec.checkpoint.path /c lies on no volumeM")
    assert "valid: job fake, 2 workers (1 to 4) of 1 rank" in shown.stdout


@pytest.mark.parametrize("command", ["validate", "run"])
def test_an_invalid_manifest_is_refused_with_field_value_and_rule(elastrain, manifest, command):
    shown = elastrain(command, manifest(minReplicas=5))
    assert shown.exit_code == 2
    assert re.search(r"spec\.minReplicas: 5: must not be greater than maxReplicas", shown.stderr), shown.stderr


def test_a_changed_field_is_checked_like_the_manifest(elastrain, manifest):
    shown = elastrain("run", manifest(), "--set", "replicas=9")
    assert shown.exit_code == 2
    assert "spec.replicas: 9" in shown.stderr


def test_a_malformed_option_is_refused(elastrain, manifest):
    shown = elastrain("run", manifest(), "--set", "replicas")
    assert (shown.exit_code, shown.stderr) == (2, "--set replicas: must be NAME=VALUE\n")


def test_a_missing_etcd_is_named(elastrain, manifest):
    shown = elastrain("run", manifest(), "--etcd", "/no/etcd")
    assert shown.exit_code == 2
    assert "'/no/etcd' is not an executable file" in shown.stderr


def test_a_command_that_does_not_exist_fails_at_once_and_is_named(elastrain, light_agents, manifest):
    shown = elastrain("run", manifest(command=["no-such-command"]), "--plain")
    assert shown.exit_code == 1
    assert "Usage: command: 'no-such-command' is not an executable file on PATH" in shown.stdout


def test_a_failing_script_ends_with_1_and_its_last_lines(elastrain, light_agents, manifest):
    shown = elastrain("run", manifest(replicas=1, backoffLimit=0, env={"FAKE_RANK_FAIL": "raise"}), "--plain")
    assert shown.exit_code == 1
    assert "job fake failed" in shown.stdout
    assert shown.stdout.rstrip().endswith("ValueError: the batch is empty")


def test_a_job_that_finishes_ends_with_0(elastrain, light_agents, manifest):
    shown = elastrain("run", manifest(), "--plain", "--set", "replicas=2", "--env", "FAKE_RANK_STEPS=20")
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    assert "job fake finished at step 20" in shown.stdout


def test_a_running_job_is_scaled_and_shown_and_drains_at_ctrl_c(elastrain, running):
    refused = elastrain("scale", "fake", 7)
    assert (refused.exit_code, refused.stderr) == (
        2,
        "replicas: 7: must be between minReplicas (1) and maxReplicas (4)\n",
    )
    assert elastrain("scale", "fake", 2).stdout == "fake: 2 workers desired (was 1)\n"
    assert any("generation 2 (Grow): fake-0, fake-1" in line for line in running.stdout)
    shown = json.loads(elastrain("status", "fake", "-o", "json").stdout)
    assert (shown["kind"], shown["status"]["desiredReplicas"]) == ("ElasticTrainingJob", 2)
    assert "fake-1" in elastrain("status").stdout
    running.send_signal(signal.SIGINT)
    rest = running.stdout.read()
    assert running.wait(30) == 130
    assert "job fake stopped at step" in rest
    assert "spec.checkpoint is not set" in rest


def test_a_job_that_does_not_run_is_named(elastrain):
    shown = elastrain("scale", "nothing", 2)
    assert shown.exit_code == 3
    assert "cannot connect to a cluster" in shown.stderr
    assert shown.stderr.endswith("no job nothing runs on this machine either; elastrain status lists the local jobs\n")
    answer = elastrain("status", "nothing", "-o", "json")
    told = json.loads(answer.stderr)
    assert (told["exitCode"], answer.exit_code, answer.stdout) == (3, 3, ""), "one object, and no line beside it"
    assert "cannot connect to a cluster" in told["error"]


def test_the_audit_of_an_empty_directory_is_refused(elastrain, tmp_path):
    shown = elastrain("audit", tmp_path)
    assert shown.exit_code == 2
    assert "no audit lines" in shown.stderr
