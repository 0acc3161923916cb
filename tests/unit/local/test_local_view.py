"""The live picture and the plain lines."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from elastrain.api.batch import BatchFigures
from elastrain.api.records import Generation, GenerationMember, Progress, Rescale
from elastrain_cli.local.status import LocalStatus, WorkerStatus, resource, workers
from elastrain_cli.local.view import View
from elastrain_cli.shell.printing import document
from elastrain_cli.shell.view import details
from local_jobs import JOB

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PLACE = GenerationMember(id="digits-0.x", worker="digits-0", address="a", store_port=1, rank_offset=0)
RESCALE = Rescale(generation=2, from_size=2, to_size=1, reason="Drain", step=9, pause_seconds=0.05)
STATUS = LocalStatus(
    job="digits",
    phase="Running",
    min=1,
    max=4,
    desired=1,
    workers=(
        WorkerStatus(name="digits-0", pid=77, phase="ready", node="here", member="digits-0.x", generation=2),
        WorkerStatus(name="digits-1", pid=78, phase="drained", ended=True),
        WorkerStatus(name="digits-2", pid=79, phase="failed", ended=True, message="ScriptFailed: KeyError: [1]"),
    ),
    generation=Generation(number=2, members=(PLACE,), reason="Drain", leader="digits-0.x"),
    progress=Progress(
        generation=2,
        world_size=1,
        members=1,
        step=50,
        total_steps=100,
        samples=3200,
        step_seconds=0.5,
        loss=0.5,
        rescales=(RESCALE,),
    ),
)


def shown(width: int = 160, status: LocalStatus = STATUS) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(details(resource(JOB, status, NOW), workers(status), (), NOW))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_picture_shows_the_state_of_the_job():
    text = shown()
    assert "digits  Running  1/1 workers (min 1, max 4)  generation 2 (Drain)" in text
    assert "step 50/100, epoch 0, loss 0.5, 128 samples/s, 0m25s left" in text
    assert "last rescale: Drain 2→1 ranks: 0.05 s pause" in text


def test_the_picture_shows_the_batch_of_a_job_that_chooses_it():
    figures = BatchFigures(samples=128, base=64, noise_scale=1133.3)
    progress = STATUS.progress.model_copy(update={"batch": figures})
    text = shown(status=STATUS.model_copy(update={"progress": progress}))
    assert "batch 128 (2 x 64), noise scale 1,100, efficiency 0.95" in text


def test_the_picture_shows_running_and_failed_workers_but_not_those_that_left():
    text = shown()
    assert "digits-0" in text
    assert "digits-1" not in text
    assert "KeyError: [1]" in text, "what a script said is not markup"


def test_what_this_machine_does_not_know_is_absent_from_the_status():
    printed = document(resource(JOB, STATUS, NOW))["status"]
    assert printed["lastRescale"] == {
        "from": 2, "to": 1, "reason": "Drain", "pauseSeconds": 0.05, "lostSteps": 0, "phases": {},
    }  # fmt: skip
    assert None not in [*printed.values(), *printed["progress"].values()]


def test_a_failed_job_says_why():
    text = shown(
        status=STATUS.model_copy(update={"phase": "Failed", "message": "digits-2: ScriptFailed: KeyError: [1]"})
    )
    assert "digits  Failed" in text
    assert "  digits-2: ScriptFailed: KeyError: [1]" in text


def test_the_plain_view_prints_workers_output_unchanged():
    console = Console(file=io.StringIO(), width=40)
    with View(console, live=False) as view:
        view.line("digits-0", "a [red]long[/red] line " * 5)
        view.show(JOB, STATUS)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "digits-0 │ " + "a [red]long[/red] line " * 5
    assert "digits-2 failed at step 0: ScriptFailed: KeyError: [1]" in lines
    assert lines[-1].startswith("step 50/100")
