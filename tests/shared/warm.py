"""The programs of tests as forks of one process that has imported what they import."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from elastrain_cli.local import worker
from elastrain_verify.forks import RANKS, Forks, Warm, WarmProcess

__all__ = ["RANKS", "Forks", "Warm", "WarmProcess"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """``warm.start([sys.executable, SCRIPT, ...], env, out)``: starts programs that need torch."""
    process = Warm(*RANKS, environment={**os.environ, **ENVIRONMENT})
    yield process
    process.close()


@pytest.fixture(scope="session")
def light() -> Iterator[Warm]:
    """The same for programs without torch: agents of fake ranks, and operators."""
    process = Warm("elastrain.agent.runtime", environment={**os.environ, **ENVIRONMENT})
    yield process
    process.close()


@pytest.fixture
def warm_agents(warm: Warm, monkeypatch: pytest.MonkeyPatch) -> Warm:
    """Agents of local jobs, and their ranks, are forks of the warm process that has imported torch."""
    monkeypatch.setattr(worker, "subprocess", Forks(warm))
    return warm


@pytest.fixture
def light_agents(light: Warm, monkeypatch: pytest.MonkeyPatch) -> Warm:
    """Agents of local jobs of fake ranks are forks of the warm process without torch."""
    monkeypatch.setattr(worker, "subprocess", Forks(light))
    return light
