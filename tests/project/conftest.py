"""Helm, as the chart's tests call it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CACHED = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain")) / "bin/helm"
KUBERNETES = "1.31.0"  # Helm asks no cluster here, and would take itself for talking to an ancient one

Manifests = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``helm(*args)`` runs Helm on the chart. Skips where there is none (fails if ELASTRAIN_REQUIRE_HELM=1)."""
    program = os.environ.get("ELASTRAIN_HELM") or (str(CACHED) if CACHED.exists() else shutil.which("helm"))
    if program is None:
        reason = f"there is no helm: neither $ELASTRAIN_HELM, {CACHED} nor PATH names one"
        if os.environ.get("ELASTRAIN_REQUIRE_HELM") == "1":
            pytest.fail(f"ELASTRAIN_REQUIRE_HELM=1, but {reason}", pytrace=False)
        pytest.skip(f"{reason} (`e2e/cluster/build.sh helm` builds it)")

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    return run


@pytest.fixture(scope="session")
def rendered(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., Manifests]:
    """``rendered(*settings)``: the chart's manifests as release ``demo`` in namespace ``training``."""

    def render(*settings: str) -> Manifests:
        values = [option for setting in settings for option in ("--set", setting)]
        result = helm(
            "template", "demo", "charts/elastrain", "--namespace=training", f"--kube-version={KUBERNETES}", *values
        )
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return render
