"""``elastrain verify`` in this process; the script's own processes are forks of the warm one."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from corpus import Script
from elastrain_cli.local.command import with_overrides
from elastrain_verify.command.answer import Answer, Report
from elastrain_verify.command.verification import Options, Verification
from warm import Forks, Warm


@pytest.fixture
def judge(warm: Warm, tmp_path: Path) -> Iterator[Callable[..., Answer]]:
    """``judge(script)``: what ``elastrain verify`` says, of the runs ``only`` if some are named."""

    def run(script: Script, only: Sequence[str] = ()) -> Answer:
        for package in script.packages:
            warm.imports(package)
        path = script.written(tmp_path)
        options = Options(path, seconds=math.inf, workers=script.workers, only=only, overrides=script.overrides)
        job = with_overrides(path, script.overrides, [])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            report, start = Report(as_json=False), Forks(warm).Popen
            return Verification(job, options, tmp_path / "runs", report, start=start).judge()

    yield run
