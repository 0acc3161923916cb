"""The differences between two statuses of a local job, as sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from elastrain.api.records import CheckpointState, Progress, Rescale
from elastrain_cli.local.status import LocalStatus, WorkerStatus
from elastrain_cli.shell.view import rescale_line
from elastrain_resource.job import reported

HEALTH_WORDS = {"belowMin": "ready", "slow": "a straggler"}
"""Text for the terminal; other values of ``Health`` are printed unchanged."""


def changes(before: LocalStatus | None, after: LocalStatus) -> list[tuple[str, str]]:
    """One sentence for each change, in a fixed order, after what has changed: Phase, Worker, Generation, Resumed,
    Rescaled, Checkpoint or Audit."""
    old = before.progress if before else None
    return [
        *(("Phase", sentence) for sentence in _phase(before, after)),
        *(("Worker", sentence) for sentence in _workers(before, after)),
        *(("Generation", sentence) for sentence in _generation(before, after)),
        *(("Resumed", sentence) for sentence in _resumed(old, after.progress)),
        *(("Rescaled", _rescaled(r)) for r in new_rescales(old, after.progress)),
        *(("Checkpoint", sentence) for sentence in _checkpoint(old, after.progress)),
        *(("Audit", sentence) for sentence in _audit(old, after.progress)),
    ]


def _phase(before: LocalStatus | None, after: LocalStatus) -> Iterator[str]:
    if before is not None and before.desired != after.desired:
        yield f"{after.desired} worker{'s' * (after.desired != 1)} desired (was {before.desired})"
    if (before is None or before.phase != after.phase) and after.phase in ("Draining", "Suspended"):
        yield f"{after.phase.lower()}: workers stop at a step boundary"


def _workers(before: LocalStatus | None, after: LocalStatus) -> Iterator[str]:
    known = {w.name: w for w in before.workers} if before else {}
    for worker in after.workers:
        old = known.get(worker.name)
        if old is None:
            yield f"{worker.name} started (pid {worker.pid})"
        if worker.ended:
            if old is None or not old.ended:
                yield _ended(worker)
            continue
        if worker.leaving and not (old and old.leaving):
            yield f"{worker.name} was asked to leave"
        if old and worker.restarts > old.restarts:
            yield f"{worker.name}: a rank was killed; its ranks are started again"
        if worker.health and not (old and old.health == worker.health):
            yield f"{worker.name} is {HEALTH_WORDS.get(worker.health, worker.health)}: {worker.message}"
        if old and old.health and not worker.health:
            yield f"{worker.name} is healthy again"
        if worker.phase == "ready" and (old is None or old.phase in ("starting", "warming")):
            yield f"{worker.name} is ready"


def _ended(worker: WorkerStatus) -> str:
    text = f"{worker.name} {worker.phase} at step {worker.step}"
    return f"{text}: {worker.message}" if worker.message else text


def _generation(before: LocalStatus | None, after: LocalStatus) -> Iterator[str]:
    old, new = before.generation if before else None, after.generation
    if new is None or (old is not None and old.number == new.number):
        return
    members = ", ".join(m.worker for m in new.members) or "no members: all workers stop and wait"
    yield f"generation {new.number} ({new.reason}): {members}"


def _resumed(old: Progress | None, new: Progress | None) -> Iterator[str]:
    now, then = _checkpoint_of(new), _checkpoint_of(old)
    if now is not None and now.resumed is not None and now.resumed != (then.resumed if then else None):
        yield f"resumed from the checkpoint of step {now.resumed.step} ({now.resumed.path})"


def _checkpoint(old: Progress | None, new: Progress | None) -> Iterator[str]:
    now = _checkpoint_of(new)
    if now is not None and now != _checkpoint_of(old):
        yield f"checkpoint failed: {now.error}" if now.error else f"checkpoint of step {now.step}: {now.path}"


def _audit(old: Progress | None, new: Progress | None) -> Iterator[str]:
    if new is not None and new.audit_error and (old is None or not old.audit_error):
        yield new.audit_error


def _checkpoint_of(progress: Progress | None) -> CheckpointState | None:
    return progress.checkpoint if progress else None


def new_rescales(old: Progress | None, new: Progress | None) -> list[Rescale]:
    """The rescales of this run that ``old`` does not have, oldest first; the first of a run is its start.

    A checkpoint holds the rescales before it, which an earlier run has shown. Runs count generations anew.
    """
    checkpoint = _checkpoint_of(new)
    former = checkpoint.resumed.step if checkpoint and checkpoint.resumed else 0
    known = {(r.generation, r.step) for r in old.rescales} if old else set()
    return [r for r in new.rescales if r.step >= former and (r.generation, r.step) not in known] if new else []


def _rescaled(rescale: Rescale) -> str:
    if rescale.from_size == 0:
        return f"training starts on {rescale.to_size} rank{'s' * (rescale.to_size != 1)} at step {rescale.step}"
    return f"step {rescale.step}: {rescale_line(reported.rescale_status(rescale))}"


def finished_line(status: LocalStatus) -> tuple[str, str]:
    """How a job has finished, and the style of the line: a warning if nothing was trained together."""
    progress = status.progress
    if progress is None and status.generation is None:
        copies = f"{status.desired} independent copies" if status.desired != 1 else "one process"
        return (
            f"job {status.job} finished, but no rank called elastrain.join(): {copies} of the script ran. "
            "`elastrain convert SCRIPT` proposes the change of a script for DDP, torchrun or one GPU",
            "bold yellow",
        )
    if progress is None:
        return f"job {status.job} finished", "bold green"
    resumed = progress.checkpoint.resumed if progress.checkpoint else None
    if resumed is not None and resumed.step >= progress.step:
        return (
            f"job {status.job} was already finished at step {progress.step}: nothing to do "
            f"(its checkpoint is {resumed.path})",
            "bold green",
        )
    loss = f", loss {progress.loss:.4f}" if progress.loss is not None else ""
    return f"job {status.job} finished at step {progress.step}{loss}", "bold green"
