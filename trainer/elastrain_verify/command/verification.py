"""All runs of one script, one after the other, up to the first that parts from the reference."""

from __future__ import annotations

import itertools
import math
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from elastrain_cli.local.command import BadOption
from elastrain_cli.local.spec import local_spec
from elastrain_resource.job import ElasticTrainingJob
from elastrain_verify import files, history, kinds, parts, variables
from elastrain_verify.branches import branches, moments
from elastrain_verify.command import job as manifests
from elastrain_verify.command import outputs
from elastrain_verify.command.answer import NOT_RUN, Answer, Report
from elastrain_verify.command.execute import Folders, JobRun, NotExercised, RunFailed, Start, reference
from elastrain_verify.command.side_by_side import idle_processors, side_by_side
from elastrain_verify.compare import Bounds, Parting, data_apart, parting
from elastrain_verify.history import History
from elastrain_verify.runs import FEWEST_STEPS, Kind, Run, plan, shards_of
from elastrain_verify.settings import OWN, Settings
from elastrain_verify.variables import Variable

SECONDS = 120.0
"""No further run begins after them."""
MOST_STEPS = 16
LOOP_SECONDS = 4.0
"""The first reference decides the number of steps: as many as fit into these seconds, up to :data:`MOST_STEPS`."""
EPOCH_STEPS = 5
SEEDS = 1, 2, 3
"""Of data, if one of them shows branches that the script's own data do not."""
LEAST_LIMIT = 90.0
TIMES_SLOWER = 20.0
"""A run of the job may take so many times as long as the reference."""
FIRST_LIMIT = 900.0
UNUSED = "No step of these runs depends on that: all is well if each body sets it anew; else track it"
EPSILON, RELATIVE = 1.2e-7, 1e-10
"""Least bounds: the distance of two numbers in float32; in float64 far above it."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of the command line."""

    target: Path
    arguments: Sequence[str] = ()
    steps: int | None = None
    seconds: float = SECONDS
    workers: int = 3
    only: Sequence[str] = ()
    """Names of runs; empty: all."""
    dtype: str | None = None
    """None: float64 if the script runs in it, else its own types."""
    as_json: bool = False
    keep: Path | None = None
    etcd: Path | None = None
    whole_epochs: bool = False
    overrides: Sequence[str] = ()
    variables: Sequence[str] = ()

    @property
    def environment(self) -> dict[str, str]:
        """Raises ``BadOption``."""
        for text in self.variables:
            if not text.partition("=")[1]:
                raise BadOption(f"--env {text}: must be NAME=VALUE")
        return {name: value for name, _, value in (text.partition("=") for text in self.variables)}


@dataclass
class Verification:
    """Judges one script."""

    job: ElasticTrainingJob
    options: Options
    root: Path
    report: Report
    dtype: str = "float64"
    bounds: Bounds = field(default_factory=Bounds)
    steps: int = 0
    """Of each run, once the reference has decided it."""
    limit: float = FIRST_LIMIT
    """Seconds of each wait."""
    files: Mapping[str, files.Tokens] = field(default_factory=dict)
    """What the reference has written, as far as a second one does so too."""
    done: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    in_parts: bool = False
    """The model depends on the number of workers."""
    of_ranks: set[str] = field(default_factory=set)
    """Variables of the script that ranks have for themselves, as undisturbed runs show."""
    of_bodies: list[Variable] = field(default_factory=list)
    """Those that each body changes, and on which a run depends that parts."""
    lasting: dict[str, str] = field(default_factory=dict)
    """Untracked variables of the script, with the title of the first run after which they are others."""
    directories: list[Path] = field(default_factory=list)
    """Of the two references, in which they have written their files."""
    began: float = field(default_factory=time.monotonic)
    start: Start = subprocess.Popen
    """Of processes."""
    stop: threading.Event = field(default_factory=threading.Event)
    """Runs under way are not needed any more."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of folders."""

    def judge(self) -> Answer:
        """Raises ``BadOption``, ``OSError``, and what a manifest's directories raise."""
        self.dtype = self.options.dtype or self.dtype
        self.source = local_spec(self.job, self.options.target.resolve().parent, None, self.options.environment)
        self.notes += self.source.notes
        first = Run("reference", Kind.REFERENCE, "plain torch, one process: the reference", 1)
        if (error := self._begin(first)) is not None:
            if not any(b"elastrain" in text for text in self.scripts()):
                way_out = f"elastrain convert {self.options.target} proposes the change"
                self.notes.append(f"the script does not use elastrain: {way_out}")
            return self._answer(2, first, error=error, fault=kinds.NO_REFERENCE)
        with closing(side_by_side(self._plan(), self._execute, idle_processors())) as outcomes:
            try:
                return self._first_fault(outcomes)
            finally:
                self.stop.set()

    def _first_fault(self, outcomes: Iterator[tuple[Run, Future[tuple[History, Folders]]]]) -> Answer:
        for run, outcome in outcomes:
            try:
                answer = self._judge(run, outcome)
            except NotExercised as error:
                self.notes.append(f"{NOT_RUN}{run.title}{error}")
                continue
            if answer is not None:
                return answer
            self.done.append(run)
        for title in dict.fromkeys(self.lasting.values()):
            names = [name for name, run in self.lasting.items() if run == title]
            self.notes.append(f"not tracked, and others after {title}: {', '.join(names)}. {UNUSED}")
        return self._answer(0)

    def _execute(self, run: Run) -> tuple[History, Folders]:
        """In a thread of its own. Raises :class:`NotExercised`, :class:`RunFailed`."""
        if time.monotonic() - self.began > self.options.seconds:
            raise NotExercised(f", after the {self.options.seconds:.0f} s of --time")
        return self._reference(run) if run.kind is Kind.REPEAT else self._job(run)

    def scripts(self) -> list[bytes]:
        """The texts of the scripts in the job's command. After :meth:`judge`."""
        paths = [self.source.directory / word for word in self.source.command if word.endswith(".py")]
        return [path.read_bytes() for path in paths if path.is_file()]

    def _begin(self, first: Run) -> RunFailed | None:
        """Run the reference; why it can be none."""
        started = time.monotonic()
        try:
            self.truth, folders = self._reference(first, seconds=LOOP_SECONDS)
        except RunFailed as error:
            if self.options.dtype is not None:
                return error
            self.dtype, self.bounds = OWN, Bounds(EPSILON)
            try:
                self.truth, folders = self._reference(first, seconds=LOOP_SECONDS)
            except RunFailed as again:
                return again
            last = error.tail.strip().rpartition("\n")[2]
            self.notes.append(f"in the script's own types, since it fails in float64: {last}")
        self.files, self.directories = folders.written(), [folders.files]
        self.truths = {0: self.truth}
        self.limit = max(LEAST_LIMIT, TIMES_SLOWER * (time.monotonic() - started))
        self.steps = self.truth.last_step
        if not self.steps:
            return RunFailed("it commits no step: it calls no elastrain.join(), or its loop is empty")
        if self.steps < FEWEST_STEPS:
            self.notes.append(f"{NOT_RUN}disturbances, since the script has only {self.steps} steps")
        return None

    def _plan(self) -> list[Run]:
        kills, seed = self._kills()
        backwards, only = self.truth.several_backwards, self.options.only
        runs = list(plan(self.steps, self.options.workers, several_backwards=backwards, kills=kills, seed=seed))
        if unknown := sorted(set(only) - {run.name for run in runs}):
            raise BadOption(f"--only {unknown[0]}: must be one of {', '.join(run.name for run in runs)}")
        return [run for run in runs if run.name in (only or [run.name])]

    def _kills(self) -> tuple[list[int], int]:
        """The steps in whose bodies a rank is killed, one of each branch, and the seed of data that has several."""
        kills = moments(branches(self.truth), self.steps)
        for seed in SEEDS if self.truth.facts.get("own") and not self.truth.own_loop and len(kills) == 1 else ():
            run = Run(f"seed-{seed}", Kind.REFERENCE, f"plain torch, with other data ({seed})", 1, seed=seed)
            try:
                other, _ = self._reference(run)
            except RunFailed:
                break
            if len(found := moments(branches(other), self.steps)) > 1:
                self.truths[seed] = other
                return found, seed
        return kills, 0

    def _judge(self, run: Run, outcome: Future[tuple[History, Folders]]) -> Answer | None:
        """None: ``run`` is equal to the reference. Raises :class:`NotExercised`."""
        try:
            found, folders = outcome.result()
        except RunFailed as error:
            return self._answer(2 if run.kind is Kind.REPEAT else 1, run, error=error)
        self.truth = self.truths[run.seed]
        apart = parting(self.truth, found, self.bounds)
        if apart is not None and run.kind is not Kind.REPEAT:
            cut = parts.schedule(found)
            if parts.is_cut(cut) or (self.truth.own_loop and cut):
                apart = self._in_parts(run, found, cut, apart)
        if apart is None:
            self._note_variables(run, found)
            return self._judge_files(run, found, folders)
        return self._parts(run, found, apart)

    def _note_variables(self, run: Run, found: History) -> None:
        """Of a run that is equal to the reference."""
        if not run.at:
            self.of_ranks |= variables.ever(self.truth, found).keys()
        elif any(r.kind is Kind.SEVERAL for r in self.done):
            for v in variables.one_each(variables.lasting(self.truth, found, but=self.of_ranks)):
                self.lasting.setdefault(self._named(v), run.title)

    def _named(self, variable: Variable) -> str:
        """With the line of the script."""
        scripts = [text.decode(errors="replace") for text in self.scripts()]
        line = next((line for text in scripts if (line := variable.line(text))), 0)
        return variable.path + f" (line {line})" * bool(line)

    def _parts(self, run: Run, found: History, apart: Parting) -> Answer:
        """``run`` parts from the reference at ``apart``."""
        kind = kinds.fault(run, apart, self._ranks(run), truth=self.truth, found=found, bounds=self.bounds)
        shown = kinds.first_of(kind, self.truth, found, self.bounds) if kind in kinds.OWN else None
        code = 2 if run.kind is Kind.REPEAT else 1
        causes = self.of_bodies if apart.of_bodies else []
        if run.at and kind not in kinds.OWN and any(r.kind is Kind.SEVERAL for r in self.done):
            before = apart.step - (not apart.ended)
            causes = variables.causes(self.truth, found, before=before, but=self.of_ranks)
        named = [(self._named(v), v) for v in variables.one_each(causes)]
        return self._answer(code, run, parting=shown or apart, fault=kind, variables=tuple(named))

    def _ranks(self, run: Run) -> int:
        """In the end of ``run``."""
        return (run.then or run.workers) * self.source.nproc

    def _judge_files(self, run: Run, found: History, folders: Folders) -> Answer | None:
        """The files of a run whose states are equal to the reference's."""
        if run.kind is Kind.REPEAT:
            self.directories.append(folders.files)
            self.files = files.repeatable(self.files, folders.written())
            return None
        ranks = self._ranks(run)
        if run.seed or not any(r.kind is Kind.REPEAT for r in self.done):
            return None
        exact = not (self.dtype == OWN or self.in_parts or self.bounds.measured is not None)
        apart = files.difference(self.files, folders.written(), ranks, words=exact)
        if apart is not None and self.truth.own_loop and run.kind is Kind.ONE:
            self._take_files_of_adapter(run, folders)
            apart = files.difference(self.files, folders.written(), ranks, words=exact)
        if apart is not None:
            last = Parting(found.last_step, f"file {apart.name}", apart.expected, apart.found, world=ranks, ended=True)
            return self._parts(run, found, replace(last, lacks=apart.lacks))
        if not exact:
            return None  # the numbers are equal only as far as the states are
        reference, repeat = self.directories
        numbers = outputs.parting([*self.files], reference, repeat, folders.files, self.bounds)
        if numbers is None:
            return None
        return self._parts(run, found, replace(numbers, step=found.last_step, world=ranks))

    def _take_files_of_adapter(self, run: Run, folders: Folders) -> None:
        """From now on texts that the framework's own loop writes otherwise are compared with those of the adapter.

        Frameworks note what their own loop does, such as times of its parts. ``folders``: of ``run``.
        """
        replay = Run(f"{run.name}-files", Kind.REFERENCE, "plain torch, with elastrain's adapter", 1)
        try:
            _, replayed = self._reference(replay, cut=((0, 1),))
        except RunFailed:
            return
        by_adapter = files.repeatable(replayed.written(), folders.written())
        for name in sorted(self.files.keys() & by_adapter.keys()):
            alone = {name: self.files[name]}
            if files.difference(alone, folders.written(), 1) is not None and by_adapter[name]:
                self.files = {**self.files, name: by_adapter[name]}
                self.notes.append(f"file {name}: the framework's own loop writes another text than elastrain's adapter")

    def _in_parts(self, run: Run, found: History, cut: parts.Schedule, apart: Parting) -> Parting | None:
        """Judge ``found``, which parts from the reference, by one that cuts its batches in the same way."""
        replay = Run(
            f"{run.name}-reference", Kind.REFERENCE, f"plain torch, batches cut as in: {run.title}", 1, seed=run.seed
        )
        try:
            other, _ = self._reference(replay, cut=cut)
        except RunFailed:  # several backwards in a loop body cannot be computed in parts
            return apart
        own = self.dtype == OWN
        bounds = parts.measured(self.truth, other, *((EPSILON, parts.ROUNDING_OF_HALVES) if own else (RELATIVE,)))
        reasons = self.truth.depends_on_parts
        if bounds is not None:
            self.bounds = parts.wider(self.bounds, bounds)
            still = parting(self.truth, found, self.bounds)
            if still is None or not reasons:
                return still and self._with_cause(still, other, found)
        bounds = self.bounds
        if own and (rounded := self._rounded(replay, cut, other)) is not None:
            bounds = rounded
        in_parts = parting(self.truth, found, bounds, alternative=other)
        if in_parts is not None:
            return self._with_cause(in_parts, other, found)
        if not parts.is_cut(cut):  # the batches are whole: only the loop is another
            return replace(apart, of_adapter=True)
        if not reasons:
            return replace(apart, of_a_part=True)
        note = f"the model depends on the number of workers, as with DDP: {', '.join(reasons)} ({kinds.PAGE_OF_PARTS})"
        if not self.in_parts:
            self.notes.append(note)
        self.in_parts = True
        return None

    def _with_cause(self, apart: Parting, cut: History, found: History) -> Parting:
        """``apart``, or what shows its cause beside the reference ``cut``: other data, or variables that each body
        changes."""
        data = data_apart(cut, found)
        if data is not None and data.step <= apart.step:
            return data
        of_ranks = {v.name for v in variables.ever(self.truth, found).values()}
        changed = [v for v in variables.ever(self.truth, cut).values() if v.name not in of_ranks]
        self.of_bodies = [replace(v, worker="each part") for v in changed]
        return replace(apart, of_bodies=bool(self.of_bodies))

    def _rounded(self, replay: Run, cut: parts.Schedule, exact: History) -> Bounds | None:
        """Bounds by what rounding errors of the gradients make of a reference that cuts its batches."""
        run = replace(replay, name=f"{replay.name}-rounded", title=f"{replay.title}, with rounding errors")
        try:
            rounded, _ = self._reference(run, cut=cut, perturbed=True)
            return parts.measured(exact, rounded, EPSILON, most=math.inf)
        except RunFailed:
            return None

    def _answer(self, code: int, run: Run | None = None, **found: Any) -> Answer:
        found.setdefault("fault", kinds.FAILS if run is not None else None)
        return Answer(
            exit_code=code, script=str(self.options.target), run=run, done=tuple(self.done), notes=tuple(self.notes),
            steps=self.steps, workers=self.options.workers, dtype=self.dtype,
            seconds=time.monotonic() - self.began, **found,
        )  # fmt: skip

    # -- runs ----------------------------------------------------------------------------------------------------------
    def _reference(
        self, run: Run, *, seconds: float | None = None, cut: parts.Schedule = (), perturbed: bool = False
    ) -> tuple[History, Folders]:
        folders = self._folders(run)
        seconds = None if self.options.steps else seconds
        whole = bool(cut) and not parts.is_cut(cut)
        changes = {"seconds": seconds, "parts": cut, "perturbed": perturbed, "whole": whole, "seed": run.seed}
        settings = self._settings(folders, "reference").model_copy(update=changes)
        job = manifests.of_run(self.job, folders.files, workers=1, most=1)
        spec = local_spec(job, folders.files, folders.state, self.options.environment)
        with self.report.running(run):
            reference(spec, folders, settings, self.limit, self.start)
        return history.read(folders.records), folders

    def _job(self, run: Run) -> tuple[History, Folders]:
        folders = self._folders(run)
        with self.report.running(run):
            whole = run.kind is Kind.ONE and self.truths[0].own_loop
            settings = self._settings(folders, "job").model_copy(update={"whole": whole, "seed": run.seed})
            JobRun(
                self.job, run, folders, settings, etcd=self.options.etcd, limit=self.limit,
                variables=self.options.environment, start=self.start, stop=self.stop,
            ).execute()  # fmt: skip
        return history.read(folders.records), folders

    def _folders(self, run: Run) -> Folders:
        folders = Folders(self.root / f"{next(self.numbers):02}-{run.name}")
        folders.furnish(self.source.directory)
        return folders

    def _settings(self, folders: Folders, mode: Any) -> Settings:
        return Settings(
            mode=mode,
            records=folders.records,
            steps=self.steps or self.options.steps or MOST_STEPS,
            fewest=2 * FEWEST_STEPS,
            dtype=self.dtype,
            epoch_steps=None if self.options.whole_epochs else EPOCH_STEPS,
            shards=shards_of(self.job.spec.shards, self.source.nproc, self.options.workers),
        )
