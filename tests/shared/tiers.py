"""The tiers of the tests, by folder: what each may do, and its cost.

``tests/unit`` starts no process, imports no torch and does not sleep: an audit hook fails a test that does.
The end of a run lists tests, wall-clock time and CPU time (children included) of each tier.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from warm import forks_seconds

TESTS = Path(__file__).parents[1]
TIERS = ("unit", "sim", "protocol", "training", "verify")
STARTED = float(os.environ.get("ELASTRAIN_TESTS_STARTED") or time.time())
"""Seconds since the epoch at which the whole run, linters included, has begun; ``make test`` says so."""
LONGEST_SLEEP = 0.3
"""Seconds that the code of a unit test may sleep at a time. What the product's code sleeps there, a test shortens."""
FORBIDDEN_EVENTS = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen",
}  # fmt: skip


class RuleBroken(AssertionError):
    """A test breaks a rule of its tier."""


def tier(nodeid: str) -> str:
    """The tier of a test, by its path from the repository's root; empty if it is in none."""
    parts = Path(nodeid.partition("::")[0]).parts
    if parts[:2] == ("tests", "guests"):  # tests/guests/GUEST/TIER
        parts = ("tests", *parts[3:])
    return parts[1] if len(parts) > 2 and parts[0] == "tests" and parts[1] in TIERS else ""


def broken_rule(event: str, arguments: tuple[Any, ...]) -> str | None:
    """The rule for unit tests that ``event`` (as of :func:`sys.audit`) breaks; None: none. Pure."""
    if event in FORBIDDEN_EVENTS:
        return f"starts a process ({event})"
    if event == "import" and arguments[0] == "torch":
        return "imports torch"
    return None


def too_long(seconds: float) -> str | None:
    """The same for a sleep. Pure."""
    return f"sleeps {seconds:g} s (the limit is {LONGEST_SLEEP:g} s)" if seconds > LONGEST_SLEEP else None


class Guard:
    """Fails a unit test that breaks a rule: for processes and torch at once, for sleeps at its end."""

    def __init__(self) -> None:
        self.active = False
        self.pid = os.getpid()
        self.broken: list[str] = []
        sys.addaudithook(self._audit)
        self._sleep, self._asleep = time.sleep, asyncio.sleep
        time.sleep, asyncio.sleep = self._timed_sleep, self._timed_asleep

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.active and (rule := broken_rule(event, arguments)) is not None and os.getpid() == self.pid:
            self.broken.append(rule)
            raise RuleBroken(f"a test of tests/unit {rule}: CONTRIBUTING.md says what each tier may do")

    def _slept(self, seconds: float, caller: FrameType) -> None:
        if self.active and TESTS in Path(caller.f_code.co_filename).parents and (rule := too_long(seconds)):
            self.broken.append(rule)

    def _timed_sleep(self, seconds: float) -> None:
        self._sleep(seconds)
        self._slept(seconds, sys._getframe(1))

    async def _timed_asleep(self, delay: float, result: Any = None) -> Any:
        """Only a completed sleep counts: long waits are cancelled at the end of a test."""
        caller = sys._getframe(1)
        done = await self._asleep(delay, result)
        self._slept(delay, caller)
        return done


def cpu_seconds() -> float:
    """CPU time of this process, of all its children, and of those of their children that have ended."""
    t = os.times()
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for pid in (task / "children").read_text().split():
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return t.user + t.system + t.children_user + t.children_system + ticks / os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """The cost of one tier's tests so far."""

    outcomes: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})
    first: float = float("inf")
    last: float = 0.0
    cpu: float = 0.0

    def add(self, report: pytest.TestReport) -> None:
        self.first, self.last = min(self.first, report.start), max(self.last, report.stop)
        self.cpu += getattr(report, "cpu", 0.0)
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1


class Tiers:
    """pytest's plugin: guards the unit tests, and prints the table of tiers."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.costs: dict[str, Cost] = {}
        self._cpu: Any = None
        """CPU time at the end of the last test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        self.guard.active = isinstance(collector, pytest.Module) and tier(collector.nodeid) == "unit"
        try:
            return (yield)
        finally:
            self.guard.active = False
            self.guard.broken.clear()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if self._cpu is None:
            self._cpu = cpu_seconds()
        self.guard.active = tier(item.nodeid) == "unit"
        try:
            return (yield)
        finally:
            self.guard.active = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        if report.when == "teardown":  # once a test: with thirty threads it takes a millisecond
            now = cpu_seconds()
            report.cpu, self._cpu = now - self._cpu, now
        if report.when == "call" and report.passed and self.guard.broken:
            report.outcome, report.longrepr = "failed", f"a test of tests/unit {', and '.join(self.guard.broken)}"
        self.guard.broken.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.costs.setdefault(tier(report.nodeid), Cost()).add(report)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if hasattr(config, "workerinput") or not any(self.costs.get(name) for name in TIERS):
            return
        terminalreporter.section("tiers")
        terminalreporter.write_line(
            f"{'tier':10} {'tests':>6} {'passed/failed/skipped':>22} {'wall s':>8} {'CPU s':>8}"
        )
        for name in TIERS:
            if cost := self.costs.get(name):
                terminalreporter.write_line(row(name, cost))
        if forks := forks_seconds():
            terminalreporter.write_line(f"forks of the warm processes, of any tier {forks:28.1f}")
        terminalreporter.write_line(f"{time.time() - STARTED:.0f} s in all, linters and collection included")


def row(name: str, cost: Cost) -> str:
    """A tier's line of the table. Wall-clock time is that from its first test's begin to its last one's end."""
    shown = "/".join(str(count) for count in cost.outcomes.values())
    tests = sum(cost.outcomes.values())
    return f"{name:10} {tests:6} {shown:>22} {cost.last - cost.first:8.1f} {cost.cpu:8.1f}"
