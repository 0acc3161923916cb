"""What the tiers allow, and how their costs are shown."""

from __future__ import annotations

import asyncio
import subprocess
import time
from types import SimpleNamespace

import pytest

from tiers import Cost, RuleBroken, broken_rule, row, tier


@pytest.mark.parametrize(
    ("nodeid", "expected"),
    [
        ("tests/unit/api/test_a.py::test_it[x/y]", "unit"),
        ("tests/training/test_a.py::test_it", "training"),
        ("tests/guests/pairs/unit/test_a.py::test_it", "unit"),
        ("e2e/test_training.py::test_it", ""),
    ],
)
def test_a_tier_is_a_folder(nodeid: str, expected: str) -> None:
    assert tier(nodeid) == expected


@pytest.mark.parametrize(
    ("event", "argument", "rule"),
    [
        ("subprocess.Popen", "etcd", "starts a process (subprocess.Popen)"),
        ("os.fork", None, "starts a process (os.fork)"),
        ("import", "torch", "imports torch"),
        ("import", "elastrain.api", None),
    ],
)
def test_processes_and_torch_break_the_rules_of_unit_tests(event: str, argument: object, rule: str) -> None:
    assert broken_rule(event, (argument,)) == rule


async def nap(seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_the_rules_are_enforced(request: pytest.FixtureRequest) -> None:
    guard = request.config.pluginmanager.get_plugin("tiers").guard
    time.sleep(0.01)
    assert not guard.broken
    time.sleep(0.31)
    asyncio.run(nap(0.31))
    with pytest.raises(RuleBroken):
        subprocess.run(["true"], check=True)
    assert guard.broken == [*["sleeps 0.31 s (the limit is 0.3 s)"] * 2, "starts a process (subprocess.Popen)"]
    guard.broken.clear()


def test_a_row_has_outcomes_wall_clock_and_cpu_time() -> None:
    cost = Cost()
    for when, outcome, start in (("setup", "passed", 1.0), ("call", "passed", 2.0), ("setup", "skipped", 4.0)):
        cost.add(SimpleNamespace(when=when, outcome=outcome, start=start, stop=start + 1, cpu=0.5))
    assert row("unit", cost).split() == ["unit", "2", "1/0/1", "4.0", "1.5"]
