"""The namespaces that commands use and their exit codes, with a fake client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastrain.api import names
from elastrain_cli.client import JobNotFound, NotAllowed, NotConnected, NotInstalled, Refused
from elastrain_cli.client.connection import Connection
from elastrain_cli.cluster import commands, output, submit
from elastrain_cli.cluster.output import Place
from elastrain_cli.shell.answers import EXIT_FAILED, EXIT_NO_CLUSTER, EXIT_REFUSED
from elastrain_resource.job import ElasticTrainingJob


def manifest(**metadata: str) -> dict[str, Any]:
    container = {"name": "trainer", "image": "train:1", "command": ["python", "train.py"]}
    return {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "digits", **metadata},
        "spec": {"maxReplicas": 4, "template": {"spec": {"containers": [container]}}},
    }  # fmt: skip


class Jobs:
    """The client: ``phase`` of every job; ``error`` is raised by every read; ``waited``: the awaited jobs."""

    phase = "Running"
    error: Exception | None = None
    waited: list[str | None]

    def __init__(self, namespace: str | None = None, context: str | None = None) -> None:
        self.namespace = namespace or "default"

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, body: dict[str, Any]) -> ElasticTrainingJob:
        return ElasticTrainingJob.model_validate(body)

    def wait(self, name: str, **_: object) -> None:
        self.waited.append(self.namespace)

    def watch(self, name: str) -> Iterator[ElasticTrainingJob]:
        yield ElasticTrainingJob.model_validate({**manifest(), "status": {"phase": self.phase}})

    def suspend(self, name: str) -> None:
        if self.error:
            raise self.error

    def workers(self, name: str) -> tuple[()]:
        return ()

    def list(self) -> tuple[()]:
        return ()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> type[Jobs]:
    played = type("Played", (Jobs,), {"waited": []})
    monkeypatch.setattr(output, "Jobs", played)
    return played


def test_a_submitted_job_is_waited_for_in_the_namespace_of_its_manifest(jobs, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(namespace="team-a")))
    asked = submit.ScriptJob(name=None, image=None, sizes=(1, None, None), limits=(), arguments=())
    assert submit.submit(Place(), file, asked, dry_run=False) == 0
    assert jobs.waited == ["team-a"]


@pytest.mark.parametrize(("phase", "code"), [("Succeeded", 0), ("Failed", EXIT_FAILED)])
def test_the_exit_code_of_watch_is_the_jobs_outcome(jobs, phase: str, code: int) -> None:
    jobs.phase = phase
    assert commands.watch(Place(), "digits") == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotConnected("no cluster"), EXIT_NO_CLUSTER),
        (NotInstalled("no operator"), EXIT_NO_CLUSTER),
        (NotAllowed("no right"), EXIT_NO_CLUSTER),
        (JobNotFound("no job"), EXIT_REFUSED),
        (Refused("a rule"), EXIT_REFUSED),
    ],
)
def test_the_exit_code_of_a_command_is_its_error(jobs, capsys, error: Exception, code: int) -> None:
    jobs.error = error
    assert commands.suspend(Place(), "digits") == code
    assert capsys.readouterr().err == f"{error}\n"


@pytest.mark.parametrize(("context", "namespace"), [(None, "first"), ("a", "first"), ("b", "second"), ("c", "default")])
def test_the_namespace_is_that_of_the_chosen_context(tmp_path: Path, context: str | None, namespace: str) -> None:
    contexts = {"a": {"namespace": "first"}, "b": {"namespace": "second"}, "c": {}}
    file = tmp_path / "config"
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "one", "cluster": {"server": "https://127.0.0.1:6443"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": n, "context": {"cluster": "one", "user": "me", **c}} for n, c in contexts.items()],
    }  # fmt: skip
    file.write_text(yaml.safe_dump(config))
    assert asyncio.run(namespace_of(file, context)) == namespace


async def namespace_of(file: Path, context: str | None) -> str:
    connection = await Connection.open(kubeconfig=str(file), context=context)
    try:
        return connection.namespace
    finally:
        await connection.close()
