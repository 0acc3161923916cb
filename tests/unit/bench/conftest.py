"""Reports contain the commit and etcd's version, which programs print: not in a unit test."""

import pytest

from bench_harness import machine


@pytest.fixture(autouse=True)
def _no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_commit", lambda: "abc")
    monkeypatch.setattr(machine, "_etcd_version", lambda: "3.6.6")
