"""Programs that ``make test`` brings while the first tests run (``scripts/get-test-programs``): who waits for them, and
one line for all tests that were skipped for want of one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

FOLDER = "ELASTRAIN_PROGRAMS"
"""Environment variable: the folder with the ``log`` and, at the end, the file ``over``; unset if all are there."""
MOST_SECONDS = 1800
USERS = (
    "tests/protocol/api/", "tests/protocol/client/", "tests/protocol/kueue/", "tests/protocol/operator/",
    "tests/guests/dashboard/protocol/",
)  # fmt: skip
MISSING = "elastrain needs a program: "
"""Begins the reason of a test that is skipped for want of a program."""


def are_coming() -> bool:
    return bool(os.environ.get(FOLDER))


def uses_programs(nodeid: str) -> bool:
    """Whether a test may start such a program."""
    return nodeid.startswith(USERS)


def wait_until_over() -> None:
    """Returns when the programs are there or cannot be had; fails after half an hour."""
    over = Path(os.environ[FOLDER], "over")
    deadline = time.monotonic() + MOST_SECONDS
    while not over.exists():
        if time.monotonic() > deadline:
            pytest.exit(f"scripts/get-test-programs is not over after {MOST_SECONDS} s: see {over.parent}/log", 2)
        time.sleep(0.5)


class Programs:
    """The plugin."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if are_coming() and uses_programs(item.nodeid):
            wait_until_over()  # here, where no test's time-out runs
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Reports of one reason have one place, so that pytest sums them up in one line."""
        if report.skipped and isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr
            at = reason.find(MISSING)
            report.longrepr = (path, line, reason) if at < 0 else ("programs", 0, reason[at + len(MISSING) :])

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        log = Path(os.environ.get(FOLDER, os.devnull), "log")
        if are_coming() and not hasattr(terminalreporter.config, "workerinput") and log.exists():
            terminalreporter.section("programs that were brought")
            terminalreporter.write(log.read_text())
