"""The architecture as a failing check: permitted imports, and modules that processes must not load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


# import-linter sees neither the imports of a package's own __init__ nor those of its dependencies: hence these tests.
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("elastrain", {"torch", "numpy", "kopf", "kubernetes", "grpc"}),
        ("elastrain.api.manifest, elastrain.api.schema.crd", {"torch", "numpy", "kopf", "kubernetes", "grpc"}),
        ("elastrain.cli.main", {"torch", "kopf", "kubernetes"}),
        ("elastrain.agent", {"torch", "kopf", "kubernetes"}),
        # Before the zygote runs, and in it: each module is a delay, or one that the training script did not import.
        ("elastrain.agent.process.start", {"torch", "grpc", "pydantic", "structlog", "typer"}),
        ("elastrain.agent.process.zygote", {"torch", "grpc", "pydantic", "structlog", "subprocess"}),
        # Beside a program of another framework, in each worker.
        ("elastrain_launchers.restart", {"torch", "numpy", "kopf", "kubernetes"}),
        ("elastrain_launchers.horovod.node", {"torch", "numpy", "kopf", "kubernetes"}),
        ("elastrain_operator", {"torch", "numpy"}),
        ("elastrain_operator.__main__", {"torch", "numpy"}),
        ("elastrain_operator.job.plan", {"torch", "numpy", "kopf", "kubernetes"}),
    ],
)
def test_import_leaves_heavy_libraries_out(modules: str, absent: set[str]) -> None:
    code = f"import sys; before = set(sys.modules); import {modules}; print(*set(sys.modules) - before)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert not absent & set(result.stdout.split())


def test_a_test_run_does_not_find_the_sources_as_the_standard_librarys_operator() -> None:
    code = "import operator; print(operator.__file__)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ROOT not in Path(result.stdout.strip()).parents
