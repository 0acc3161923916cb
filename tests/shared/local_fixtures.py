"""A job of fake ranks (``tests/shared/fake_rank.py``): all of local mode is real except torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastrain.api import names
from elastrain_cli.local.runner import LocalJob
from warm import Warm

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


@pytest.fixture
def manifest(tmp_path) -> Callable[..., Path]:
    """Write a manifest: ``manifest(replicas=2, env={"FAKE_RANK_STEPS": "50"})``; the rest are fields of the spec."""

    def write(env: dict[str, str] | None = None, command: list[str] | None = None, **spec: Any) -> Path:
        # The ranks import no torch, so they need not be forks.
        variables = {"FAKE_RANK_TRAIL": str(tmp_path), names.ENV_FORK_RANKS: "off", **(env or {})}
        container = {
            "name": "trainer",
            "image": "example/trainer:1",
            "command": command or ["python", str(FAKE_RANK)],
            "env": [{"name": k, "value": v} for k, v in variables.items()],
        }
        document = {
            "apiVersion": "elastrain.dev/v1alpha1",
            "kind": "ElasticTrainingJob",
            "metadata": {"name": "fake"},
            "spec": {"maxReplicas": 4, **spec, "template": {"spec": {"containers": [container]}}},
        }
        path = tmp_path / "job.yaml"
        path.write_text(yaml.safe_dump(document))
        return path

    return write


@pytest.fixture
def run_job(light_agents: Warm) -> Iterator[Callable[..., LocalJob]]:
    """Start a local job; it is killed at the end of the test."""
    jobs: list[LocalJob] = []

    def start(path: Path, **options: Any) -> LocalJob:
        job = LocalJob(path, lease_ttl=2, **options)
        jobs.append(job)
        return job.__enter__()

    yield start
    for job in jobs:
        job.__exit__(None, None, None)
