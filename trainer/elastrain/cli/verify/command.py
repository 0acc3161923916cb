"""The command: executes the runs one after the other, and stops at the first that parts from the reference."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastrain.api import names
from elastrain.api.manifest import InvalidManifest
from elastrain.cli.local.command import BadOption, with_overrides
from elastrain.cli.local.spec import local_spec
from elastrain.cli.verify import job as manifests
from elastrain.cli.verify.answer import Answer, Report
from elastrain.cli.verify.execute import Folders, JobRun, NotExercised, RunFailed, reference
from elastrain.etcd.server import EtcdNotFound, find_etcd
from elastrain.verify import history, kinds
from elastrain.verify.compare import Bounds, parting
from elastrain.verify.history import History
from elastrain.verify.runs import FEWEST_STEPS, Kind, Run, plan
from elastrain.verify.settings import Settings

MOST_STEPS = 16
LOOP_SECONDS = 4.0
"""The first reference decides the number of steps: as many as fit into these seconds, up to :data:`MOST_STEPS`."""
EPOCH_STEPS = 5
LEAST_LIMIT = 90.0
TIMES_SLOWER = 20.0
"""A run of the job may take so many times as long as the reference."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of the command line."""

    target: Path
    arguments: Sequence[str] = ()
    steps: int | None = None
    seconds: float | None = None
    workers: int = 3
    only: Sequence[str] = ()
    """Names of runs; empty: all."""
    dtype: str = "float64"
    as_json: bool = False
    keep: Path | None = None
    etcd: Path | None = None
    whole_epochs: bool = False
    overrides: Sequence[str] = ()
    variables: Sequence[str] = ()


def verify(options: Options) -> int:
    """``elastrain verify``; returns the exit code: 0 safe, 1 a run parts, 2 not judged."""
    report = Report(as_json=options.as_json)
    try:
        find_etcd(options.etcd)
        job = with_overrides(options.target, options.overrides, options.arguments)
    except (InvalidManifest, EtcdNotFound, BadOption) as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is the command line
        return names.EXIT_USAGE
    root = options.keep or Path(tempfile.mkdtemp(prefix="elastrain-verify-"))
    try:
        answer = Verification(job, options, root.resolve(), report).judge()
    except BadOption as error:
        print(error, file=sys.stderr)  # noqa: T201
        return names.EXIT_USAGE
    finally:
        if options.keep is None:
            shutil.rmtree(root, ignore_errors=True)
    report.conclude(answer, options.keep)
    return answer.exit_code


@dataclass
class Verification:
    """All runs of one script."""

    job: Any
    options: Options
    root: Path
    report: Report
    done: list[Run] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def judge(self) -> Answer:
        variables = dict(v.partition("=")[::2] for v in self.options.variables)
        self.spec = local_spec(self.job, self.options.target.resolve().parent, None, variables)
        first = Run("reference", Kind.REFERENCE, "the reference: one process, plain torch", 1)
        started = time.monotonic()
        try:
            self.truth = self._reference(first, seconds=LOOP_SECONDS)
        except RunFailed as error:
            return self._answer(2, first, error=error)
        self.limit = max(LEAST_LIMIT, TIMES_SLOWER * (time.monotonic() - started))
        self.steps = self.truth.last_step
        if not self.steps:
            why = "it commits no step: it calls no elastrain.join(), or its loop is empty"
            return self._answer(2, first, error=RunFailed(why))
        if self.steps < FEWEST_STEPS:
            self.skipped.append(f"disturbances: the script has only {self.steps} steps")
        for run in self._plan():
            if self.options.seconds is not None and time.monotonic() - self.began > self.options.seconds:
                self.skipped.append(run.title)
                continue
            try:
                found = self._reference(run) if run.kind is Kind.REPEAT else self._job(run)
            except RunFailed as error:
                return self._answer(2 if run.kind is Kind.REPEAT else 1, run, error=error)
            except NotExercised as error:
                self.skipped.append(f"{run.title}: {error}")
                continue
            if (apart := parting(self.truth, found, Bounds())) is not None:
                return self._answer(2 if run.kind is Kind.REPEAT else 1, run, parting=apart)
            self.done.append(run)
        return self._answer(0)

    def _plan(self) -> list[Run]:
        runs, only = list(plan(self.steps, self.options.workers)), self.options.only
        if unknown := sorted(set(only) - {run.name for run in runs}):
            raise BadOption(f"--only {unknown[0]}: must be one of {', '.join(run.name for run in runs)}")
        return [run for run in runs if run.name in (only or [run.name])]

    def _answer(self, code: int, run: Run | None = None, **found: Any) -> Answer:
        parting = found.get("parting")
        fault = None if run is None else kinds.fault(run, parting) if parting is not None else kinds.FAILS
        return Answer(
            exit_code=code, script=str(self.options.target), run=run, fault=fault, done=tuple(self.done),
            skipped=tuple(self.skipped), steps=getattr(self, "steps", 0), workers=self.options.workers,
            dtype=self.options.dtype, seconds=time.monotonic() - self.began, **found,
        )  # fmt: skip

    # -- runs ----------------------------------------------------------------------------------------------------------
    def _reference(self, run: Run, seconds: float | None = None) -> History:
        folders = self._folders(run)
        settings = self._settings(folders, "reference", seconds=None if self.options.steps else seconds)
        job = manifests.of_run(self.job, folders.files, workers=1, most=1)
        variables = dict(v.partition("=")[::2] for v in self.options.variables)
        spec = local_spec(job, folders.files, folders.state, variables)
        with self.report.running(run):
            reference(spec, folders, settings, getattr(self, "limit", 600.0))
        return history.read(folders.records)

    def _job(self, run: Run) -> History:
        folders = self._folders(run)
        with self.report.running(run):
            JobRun(
                self.job, run, folders, self._settings(folders, "job"), etcd=self.options.etcd, limit=self.limit,
                variables=dict(v.partition("=")[::2] for v in self.options.variables),
            ).execute()  # fmt: skip
        return history.read(folders.records)

    def _folders(self, run: Run) -> Folders:
        number = len(list(self.root.glob("[0-9][0-9]-*")))
        folders = Folders(self.root / f"{number:02}-{run.name}")
        folders.furnish(self.spec.directory)
        return folders

    def _settings(self, folders: Folders, mode: str, seconds: float | None = None) -> Settings:
        steps = getattr(self, "steps", None) or self.options.steps or MOST_STEPS
        return Settings(
            mode=mode, records=folders.records, steps=steps, seconds=seconds, fewest=FEWEST_STEPS * 2,
            dtype=self.options.dtype, epoch_steps=None if self.options.whole_epochs else EPOCH_STEPS,
        )  # fmt: skip
