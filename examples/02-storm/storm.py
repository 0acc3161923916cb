"""Fifty random joins, leaves and kills hit the training of a small language model, and its loss curve does not change.

Trains the job of ``job.yaml`` undisturbed, and then through a storm that follows from its seed; compares what both have
left behind and draws it. Nothing here takes the job's word for it: losses are those that the ranks wrote step by step,
samples are judged by the audit log, models are compared parameter by parameter. Run it by ``make storm``, or
``python examples/02-storm/storm.py`` with etcd on PATH. Exit code 1 if a promise was broken.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from proof import Check, Fired, Run, alone, together
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from weather import Event, Holders, Kind, forecast, may_happen, pace

from elastrain.api import records
from elastrain_audit.judge import verify as verdict_of
from elastrain_cli.local.runner import LocalJob

HERE = Path(__file__).parent
PATIENCE = 180  # seconds that any one thing may take, on a slow machine
SMALLEST, LARGEST, FIRST = 2, 4, 2  # workers that are wanted; kills leave fewer
OTHER_SIZE = 3  # workers of the second undisturbed run

console = Console(highlight=False, soft_wrap=True)


class Dtype(StrEnum):
    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Bar:
    """Where one run stands, on one line."""

    def __init__(self, progress: Progress, name: str, steps: int) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(name, total=steps, state="starts")

    def show(self, news: records.Progress) -> None:
        loss = f", loss {news.loss:.3f}" if news.loss is not None else ""
        self._progress.update(self._task, completed=news.step, state=f"{news.world_size} ranks{loss}")

    def say(self, text: str) -> None:
        self._progress.console.print(text)


def reach(job: LocalJob, step: int) -> None:
    """Wait until ``step`` steps are committed; every ten of them have ``PATIENCE`` seconds."""
    done = 0
    while done < step:
        goal = min(step, done + 10)
        status = job.wait(
            lambda s, goal=goal: s.progress and s.progress.step >= goal, timeout=PATIENCE, what=f"step {goal}"
        )
        done = status.progress.step if status.progress else 0


def unleash(job: LocalJob, run: Run, events: Sequence[Event], bar: Bar) -> None:
    """Let ``events`` happen to ``job``, each as soon as it is due and enough workers hold the job's state.

    Raises ``RuntimeError`` if the job ends before they have all happened.
    """
    holders = Holders()
    for number, event in enumerate(events, 1):
        reach(job, event.due)
        status = job.wait(
            lambda s, event=event: may_happen(event, s, holders),
            timeout=PATIENCE,
            what=f"the storm's event {number}, {event.kind}: workers that can live through it",
        )
        # The moment within a step is random, too; a report comes always at the same one.
        time.sleep(event.choice * ((status.progress and status.progress.step_seconds) or 0.0))
        hit = ""
        if event.kind is Kind.JOIN:
            job.scale(status.desired + 1)
        elif event.kind is Kind.LEAVE:
            job.scale(status.desired - 1)
        else:
            candidates = holders.of(status)
            victim = candidates[int(event.choice * len(candidates))]
            holders.killed(victim.member)
            hit = victim.name
            job.kill_worker(hit, "rank" if event.kind is Kind.KILL_RANK else "worker")
        step = run.last_step()
        run.fired.append(Fired(event.kind, hit, step))
        size = f" {status.desired} → {job.status().desired}" if not hit else f", {hit}"
        bar.say(f"[dim]step {step:4}[/dim]  {number:2} of {len(events)}: {event.kind}{size}")


def train(run: Run, workers: int, dtype: Dtype, step_seconds: float, events: Sequence[Event], bar: Bar) -> None:
    """Do ``run`` and fill in what it has left behind. ``step_seconds``: least time that a step takes."""

    def on_progress(progress: records.Progress) -> None:
        run.started = run.started or time.monotonic() - began
        bar.show(progress)
        for rescale in progress.rescales:
            run.rescales.setdefault(rescale.generation, rescale)

    def on_line(worker: str, text: str) -> None:
        if text.startswith("loss on"):
            bar.say(f"{run.name}: {text}")
        elif "Error" in text or "Traceback" in text:
            bar.say(f"[red]{worker} │ {text}[/red]")

    began = time.monotonic()
    run.folder.mkdir(parents=True)
    environment = {"STEPS": str(run.steps), "DTYPE": dtype, "STEP_SECONDS": str(step_seconds), "OUT": str(run.folder)}
    with LocalJob(
        HERE / "job.yaml",
        state_dir=run.folder / "state",
        replicas=workers,
        environment=environment,
        on_line=on_line,
        on_progress=on_progress,
    ) as job:
        try:
            unleash(job, run, events, bar)
            reach(job, run.steps)
            job.wait(timeout=PATIENCE)
            run.ended = f"{job.result} {job.message}".strip()
        except (RuntimeError, ValueError, TimeoutError) as error:
            # Where the job has ended well before all events came, that is for the judge to say.
            run.ended = "finished" if job.result == "finished" else str(error)
    run.seconds = time.monotonic() - began
    run.read_losses()
    if run.losses:
        run.verdict = verdict_of(job.audit_dir)


def weather_report(run: Run) -> Table:
    """How often each kind of event happened, and how long training paused for the changes that followed."""
    table = Table(title="the storm", title_justify="left")
    for column in ("event", "times"):
        table.add_column(column, justify="left" if column == "event" else "right")
    count = Counter(f.kind for f in run.fired)
    for kind in Kind:
        table.add_row(kind, str(count[kind]))
    return table


def pauses(run: Run) -> Table:
    """How long training stood still for each change, by its reason. Events close to each other make one change."""
    table = Table(title="changes of generation", title_justify="left")
    table.add_column("reason")
    for column in ("times", "pause min", "median", "max"):
        table.add_column(column, justify="right")
    changes = [r for r in run.rescales.values() if r.from_size]
    for reason in [*sorted({r.reason for r in changes}), ""]:
        seconds = sorted(r.pause_seconds for r in changes if reason in (r.reason, ""))
        if seconds:
            figures = (seconds[0], median(seconds), seconds[-1])
            table.add_row(reason or "all", str(len(seconds)), *(f"{s * 1000:.0f} ms" for s in figures))
    return table


def judge(runs: Sequence[Run], events: int, dtype: Dtype) -> list[Check]:
    """Every promise. The storm is the second run; the others are undisturbed."""
    calm, storm, *others = runs
    happened = f"events: {len(storm.fired)} of {events} have happened"
    hint = "; workers start too slowly here for such a storm: give it more time by --step-seconds or --steps"
    all_did = len(storm.fired) == events
    checks = [Check(all_did, happened if all_did else happened + hint)]
    checks += alone(storm)
    for run in (calm, *others):
        checks += [c for c in alone(run) if not c.kept]
    if all(run.ended == "finished" for run in runs):
        checks += [together(calm, run, dtype) for run in (storm, *others)]
    return checks


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, records.Rescale) else str(value)


def main(
    events: Annotated[int, typer.Option(min=0, help="joins, leaves and kills")] = 50,
    seed: Annotated[int, typer.Option(help="of the storm; data and model have one of their own")] = 1,
    steps: Annotated[int, typer.Option(min=20, help="of the training")] = 600,
    dtype: Annotated[Dtype, typer.Option(help="float64 shows that what is left of a difference is rounding")] = (
        Dtype.FLOAT32
    ),
    other_size: Annotated[
        bool, typer.Option(help=f"train undisturbed on {OTHER_SIZE} workers, too: a yardstick for differences")
    ] = True,
    step_seconds: Annotated[
        float | None,
        typer.Option(help="least time of a step in the storm; default: by how long workers take to start here"),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="where to draw it (PNG or SVG); needs matplotlib")] = None,
    keep: Annotated[Path | None, typer.Option(help="folder for all logs; without it they are kept on failure")] = None,
) -> None:
    """Train undisturbed and through a storm of random joins, leaves and kills; compare; draw."""
    folder = Path(tempfile.mkdtemp(prefix="elastrain-storm-")) if keep is None else keep
    forecasted = forecast(seed, events, steps, smallest=SMALLEST, largest=LARGEST, first=FIRST)
    columns = (
        TextColumn("{task.description:26}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} {task.fields[state]}"),
    )
    runs = [Run(f"undisturbed, {FIRST} workers", folder / "calm", steps), Run("storm", folder / "storm", steps)]
    calm, storm = runs
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        train(calm, FIRST, dtype, 0.0, (), Bar(progress, calm.name, steps))
        if step_seconds is None:
            step_seconds = pace(calm.started, events, steps)
            console.print(
                f"workers take {calm.started:.1f} s to start here: with {step_seconds:.2f} s a step the storm"
                f" takes {steps * step_seconds / 60:.0f} minutes"
            )
        train(storm, FIRST, dtype, step_seconds, forecasted, Bar(progress, storm.name, steps))
        if other_size:
            runs.append(other := Run(f"undisturbed, {OTHER_SIZE} workers", folder / "other", steps))
            train(other, OTHER_SIZE, dtype, 0.0, (), Bar(progress, other.name, steps))
    (folder / "runs.json").write_text(json.dumps([asdict(run) for run in runs], default=_plain))
    checks = judge(runs, events, dtype)
    for table in (weather_report(storm), pauses(storm)):
        console.print(table)
    for check in checks:
        console.print(f"  {'[green]✓' if check.kept else '[bold red]✗'} {check.found}[/]")
    if picture is not None and all(run.losses for run in runs):
        from picture import draw

        draw(picture, runs, seed=seed, dtype=dtype)
        console.print(f"  drawn: {picture}")
    kept = all(check.kept for check in checks)
    if kept and keep is None:
        shutil.rmtree(folder)
    console.print(
        "[bold green]every promise was kept[/]" if kept else f"[bold red]not every promise was kept[/]; logs: {folder}"
    )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    typer.run(main)
