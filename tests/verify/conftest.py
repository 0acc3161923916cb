"""``elastrain verify`` in this process; the script's own processes are forks of the warm one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from corpus import Script
from elastrain.cli.local import worker
from elastrain.cli.local.command import with_overrides
from elastrain_verify.command import execute
from elastrain_verify.command.answer import Answer, Report
from elastrain_verify.command.verification import Options, Verification
from warm import Forks, Warm


@pytest.fixture
def judge(warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Answer]]:
    """``judge(script)``: what ``elastrain verify`` says, of the runs ``only`` if some are named."""
    for module in (worker, execute):
        monkeypatch.setattr(module, "subprocess", Forks(warm))

    def run(script: Script, only: Sequence[str] = ()) -> Answer:
        for package in script.packages:
            warm.imports(package)
        path = script.written(tmp_path)
        options = Options(path, workers=script.workers, only=only, overrides=script.overrides)
        job = with_overrides(path, script.overrides, [])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return Verification(job, options, tmp_path / "runs", Report(as_json=False)).judge()

    yield run
