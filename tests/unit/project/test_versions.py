"""The oldest Kubernetes that is claimed is one that a test runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastrain_cli.cluster import doctor

ROOT = Path(__file__).parents[3]


def found(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(), re.MULTILINE)
    assert match, f"{path}: nothing matches {pattern}"
    return match[1]


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("charts/elastrain/Chart.yaml", r'^kubeVersion: ">=(1\.\d+)\.0-0"$'),
        ("docs/operations.md", r"^- Kubernetes (1\.\d+) or newer"),
        ("docs/start.md", r"Kubernetes (1\.\d+) or newer"),
        ("docs/reference/cli.md", r"Kubernetes (1\.\d+) or newer"),
    ],
)
def test_oldest_version_that_is_claimed_is_the_one_that_runs_nightly(path: str, pattern: str) -> None:
    nightly = found("Makefile", r"^OTHER_KUBERNETES \?= v(1\.\d+)\.\d+$")
    assert found(path, pattern) == nightly == ".".join(map(str, doctor.OLDEST))
