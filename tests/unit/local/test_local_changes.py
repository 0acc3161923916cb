"""The lines that a user reads while a local job runs."""

from __future__ import annotations

import builders
from elastrain.api.records import CheckpointState, Progress, Rescale, Resumed
from elastrain_cli.local import changes as module
from elastrain_cli.local.changes import finished_line
from elastrain_cli.local.status import LocalStatus, WorkerStatus


def status(*workers: WorkerStatus, **fields) -> LocalStatus:
    return LocalStatus(
        **{"job": "j", "phase": "Running", "min": 1, "max": 4, "desired": 1, "workers": workers, **fields}
    )


def progress(**fields) -> Progress:
    return Progress(**{"generation": 1, "world_size": 2, "members": 2, "step": 100, **fields})


def changes(before: LocalStatus | None, after: LocalStatus) -> list[str]:
    """The sentences, without what has changed."""
    return [sentence for _, sentence in module.changes(before, after)]


def test_what_has_changed_stands_before_each_sentence():
    rescale = Rescale(generation=2, from_size=1, to_size=2, reason="Grow", step=90, pause_seconds=0.05)
    after = status(
        WorkerStatus(name="j-0", pid=7, phase="ready"),
        phase="Draining", generation=builders.generation(2, "j-0.x"),
        progress=progress(rescales=(rescale,), checkpoint=CheckpointState(step=90, path="/c")),
    )  # fmt: skip
    kinds = [kind for kind, _ in module.changes(None, after)]
    assert list(dict.fromkeys(kinds)) == ["Phase", "Worker", "Generation", "Rescaled", "Checkpoint"]


def test_no_line_is_printed_twice():
    now = status(WorkerStatus(name="j-0", pid=1, phase="ready"), progress=progress())
    assert changes(None, now)
    assert changes(now, now) == []


def test_a_worker_is_followed_from_start_to_end():
    started = status(WorkerStatus(name="j-0", pid=7, phase="starting"))
    ready = status(WorkerStatus(name="j-0", pid=7, phase="ready"))
    ended = status(
        WorkerStatus(name="j-0", pid=7, phase="failed", ended=True, step=3, message="ScriptFailed: KeyError: 1")
    )
    assert changes(None, started) == ["j-0 started (pid 7)"]
    assert changes(started, ready) == ["j-0 is ready"]
    assert changes(ready, ended) == ["j-0 failed at step 3: ScriptFailed: KeyError: 1"]


def test_a_restart_in_place_is_shown():
    before = status(WorkerStatus(name="j-0", pid=7, phase="ready"))
    after = status(WorkerStatus(name="j-0", pid=7, phase="warming", restarts=1))
    assert changes(before, after) == ["j-0: a rank was killed; its ranks are started again"]


def test_a_workers_trouble_and_its_recovery_are_shown():
    well = status(WorkerStatus(name="j-0", pid=7, phase="ready"))
    slow = status(WorkerStatus(name="j-0", pid=7, phase="ready", health="slow", message="10 times as long"))
    assert changes(well, slow) == ["j-0 is a straggler: 10 times as long"]
    assert changes(slow, slow) == []
    assert changes(slow, well) == ["j-0 is healthy again"]


def test_a_generation_and_its_rescale_are_shown_once():
    formed = builders.generation(2, "j-0.x")
    rescale = Rescale(generation=2, from_size=1, to_size=2, reason="Grow", step=90, pause_seconds=0.0521)
    before, after = status(), status(generation=formed, progress=progress(rescales=(rescale,)))
    assert changes(before, after) == [
        "generation 2 (Grow): j-0",
        "step 90: Grow 1→2 ranks: 0.05 s pause",
    ]


def test_a_failed_checkpoint_is_shown_with_its_reason():
    failed = progress(checkpoint=CheckpointState(error="write /c: No space left on device"))
    assert changes(status(progress=progress()), status(progress=failed)) == [
        "checkpoint failed: write /c: No space left on device"
    ]


def test_an_audit_log_that_became_incomplete_is_shown_once():
    full = progress(audit_error="the audit log is incomplete from step 5 on: /a: No space left on device")
    assert changes(status(progress=progress()), status(progress=full)) == [full.audit_error]
    assert changes(status(progress=full), status(progress=full)) == []


RESUMED = CheckpointState(step=122, path="/c", resumed=Resumed(step=122, tier="volume", path="/c"))
LOST = Rescale(generation=2, from_size=2, to_size=1, reason="Lost", step=95, pause_seconds=0.1)
START = Rescale(generation=1, from_size=0, to_size=2, reason="Start", step=122, pause_seconds=0.1)


def test_rescales_of_the_run_before_are_not_shown_if_a_job_resumes():
    now = status(progress=progress(step=130, rescales=(LOST, START), checkpoint=RESUMED))
    assert changes(None, now) == [
        "resumed from the checkpoint of step 122 (/c)",
        "training starts on 2 ranks at step 122",
        "checkpoint of step 122: /c",
    ]


def test_a_job_that_had_finished_before_says_so():
    line, _ = finished_line(status(progress=progress(step=122, rescales=(LOST,), checkpoint=RESUMED)))
    assert "already finished at step 122: nothing to do" in line


def test_a_job_whose_script_never_joins_is_told_apart_from_one_that_trained():
    line, style = finished_line(status(desired=2))
    assert "no rank called elastrain.join(): 2 independent copies" in line
    assert "elastrain convert" in line
    assert "yellow" in style
    assert finished_line(status(progress=progress(loss=0.5))) == (
        "job j finished at step 100, loss 0.5000",
        "bold green",
    )
