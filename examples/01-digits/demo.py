"""The whole idea in little more than a minute: a job on this machine that grows, loses a rank to ``kill -9``, shrinks,
and finishes; and a picture of it beside the same training without any of that. It trains until the last of these has
happened, however long the machine takes for them.

Everything it prints at the end is computed from what happened: the pauses from the job's own reports, the pids from the
process table, the verdict on the samples from the audit log, the accuracy from the script's last line.
Run it by ``make demo``, or ``python examples/01-digits/demo.py`` with etcd on PATH; ``--picture FILE`` draws it
into a PNG or SVG, too. Exit code 1 if a promise was broken.
"""

import argparse
import re
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import tour
from rich.console import Console
from tour import Tour, curves

from elastrain import guests
from elastrain.api.records import Progress, Rescale
from elastrain_audit import judge
from elastrain_cli.local.changes import changes
from elastrain_cli.local.runner import LocalJob
from elastrain_cli.local.status import LocalStatus

HERE = Path(__file__).parent
FEWEST_STEPS = 700  # the digits are learned by then
MOST_EPOCHS = 2000  # of 23 steps: a bound, should the end never be asked for
STEP_SECONDS = 0.03
PATIENCE = 120  # seconds that one act may take, on a slow machine
ROUNDING = 1e-4  # most that a step's loss may differ from the undisturbed run: sums are made in another order

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Recorder:
    """What the job reports, with the time."""

    start: float = field(default_factory=time.monotonic)
    finished: bool = False
    rescales: dict[int, Rescale] = field(default_factory=dict)
    """By generation, as first reported: by its own rank 0, a survivor if there is one."""
    accuracy: float | None = None

    def progress(self, progress: Progress) -> None:
        self.finished = progress.finished
        for rescale in progress.rescales:
            self.rescales.setdefault(rescale.generation, rescale)

    def line(self, worker: str, text: str) -> None:
        if found := re.search(r"accuracy on .*: ([0-9.]+)", text):
            self.accuracy = float(found[1])
        elif "Error" in text or "Traceback" in text:
            console.print(f"{worker} │ {text}", style="red")

    def now(self) -> str:
        return f"{time.monotonic() - self.start:5.1f} s"


def narrate(job: LocalJob, recorder: Recorder, over: threading.Event) -> None:
    """Print what happens as it happens."""
    before: LocalStatus | None = None
    while not over.is_set():
        job.await_change(0.5)
        status = job.status()
        for _, sentence in changes(before, status):
            if "checkpoint" not in sentence:
                console.print(f"[dim]{recorder.now()}  {sentence}[/dim]")
        before = status


def act(job: LocalJob, recorder: Recorder, over: Path) -> dict[str, tuple[list[int], list[int]]]:
    """Grow, kill, shrink, finish by making the file ``over``. Returns the rank pids of the workers that nothing was
    done to: at first and at last."""

    def say(text: str) -> None:
        console.print(f"[bold]{recorder.now()}  {text}[/bold]")

    def trained(workers: int, steps: int) -> int:
        """Wait until ``workers`` train together and have done ``steps`` more steps; returns the step."""
        together = job.wait(
            lambda s: s.in_force == workers and s.generation and len(s.generation.members) == workers,
            timeout=PATIENCE,
            what=f"{workers} workers to train together",
        )
        goal = (together.progress.step if together.progress else 0) + steps
        status = job.wait(lambda s: s.progress and s.progress.step >= goal, timeout=PATIENCE, what=f"step {goal}")
        return status.progress.step if status.progress else 0

    trained(1, 30)
    first = job.worker("digits-0").rank_pids()
    say("▶ scale to 2 workers; digits-0 trains on while another starts")
    job.scale(2)
    trained(2, 60)
    say("▶ scale to 4 workers")
    job.scale(4)
    trained(4, 120)
    pids = {w.name: job.worker(w.name).rank_pids() for w in job.status().running}
    grown = {"digits-0 (1 → 2 → 4)": (first, pids["digits-0"])}
    say(f"▶ kill -9 {pids['digits-0'][0]}: the process of rank 0, in digits-0")
    job.kill_worker("digits-0", "rank")
    job.wait(lambda s: any(w.restarts for w in s.workers), timeout=PATIENCE, what="the killed rank to start again")
    trained(4, 120)
    after = {name: job.worker(name).rank_pids() for name in pids}
    survived = {f"{n} (kill of digits-0)": (pids[n], after[n]) for n in pids if n != "digits-0"}
    say("▶ scale to 2 workers; the two others leave at a step boundary")
    job.scale(2)
    reached = trained(2, 60)
    staying = [w.name for w in job.status().running if not w.leaving]
    shrunk = {f"{n} (4 → 2)": (after[n], job.worker(n).rank_pids()) for n in staying}
    trained(2, max(0, FEWEST_STEPS - reached))
    over.touch()
    job.wait(timeout=PATIENCE, what="the job to finish")
    return {**grown, **survived, **shrunk}


def report(
    recorder: Recorder, shown: Tour, pids: dict[str, tuple[list[int], list[int]]], verdict: judge.Verdict
) -> bool:
    """Print what happened; True if every promise was kept."""
    console.print()
    tour.show(shown, console)
    console.print()
    for name, (before, after) in pids.items():
        same = "the same process" if before == after else "[red]another process[/red]"
        console.print(f"  {name}: pid {before} then {after}: {same}")
    accuracy = "none was printed" if recorder.accuracy is None else f"{recorder.accuracy:.4f}"
    console.print(f"\n  accuracy on held-out digits: {accuracy}")
    console.print(
        f"  audit of {verdict.samples} samples in {verdict.steps} steps, {verdict.epochs} epochs: "
        f"{verdict.lost} lost, {verdict.repeated} repeated, {verdict.redone} steps repeated"
    )
    console.print(f"  greatest difference of a step's loss from the undisturbed run: {shown.apart:.1e}")
    for problem in verdict.problems:
        console.print(f"  [red]{problem}[/red]")
    kept = verdict.ok and all(before == after for before, after in pids.values()) and recorder.finished
    kept = kept and shown.apart < ROUNDING and verdict.steps >= FEWEST_STEPS and (recorder.accuracy or 0) > 0.95
    console.print(
        "[bold green]no sample lost or repeated[/bold green]" if verdict.ok else "[red]samples lost or repeated[/red]"
    )
    if not kept:
        console.print("[bold red]not every promise was kept: see above[/bold red]")
    return kept


def train_undisturbed(folder: Path, epochs: int) -> None:
    """The same steps on one worker that nothing happens to, as fast as it can: what the picture compares with."""
    environment = {"EPOCHS": str(epochs), "STEP_SECONDS": "0", "LOSSES": str(folder / "losses")}
    began = time.monotonic()
    with LocalJob(HERE / "job.yaml", state_dir=folder / "state", replicas=1, environment=environment) as job:
        status = job.wait(timeout=PATIENCE, what="the undisturbed training to finish")
    steps = status.progress.step if status.progress else 0
    console.print(
        f"[dim]for comparison: {steps} steps on one worker that nothing happens to, "
        f"{time.monotonic() - began:.0f} s[/dim]"
    )


def train_disturbed(folder: Path, recorder: Recorder) -> tuple[dict[str, tuple[list[int], list[int]]], judge.Verdict]:
    """The demo itself. Returns what :func:`act` does, and the verdict on the samples."""
    with LocalJob(
        HERE / "job.yaml",
        state_dir=folder / "state",
        replicas=1,
        environment={
            "EPOCHS": str(MOST_EPOCHS), "STEP_SECONDS": str(STEP_SECONDS), "LOSSES": str(folder / "losses"),
            "UNTIL": str(folder / "over"),
        },
        on_line=recorder.line,
        on_progress=recorder.progress,
    ) as job:  # fmt: skip
        over = threading.Event()
        narrator = threading.Thread(target=narrate, args=(job, recorder, over))
        narrator.start()
        try:
            pids = act(job, recorder, folder / "over")
        finally:
            over.set()
            narrator.join()
    return pids, judge.verify(job.audit_dir)


def draw(shown: Tour, path: Path) -> None:
    """The picture as a file, where there is something to draw it with."""
    try:
        tour.draw(shown, path, "1 → 2 → 4 workers, kill -9, 4 → 2: the loss is that of the undisturbed run")
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        console.print(f"  no picture was drawn: {guests.way_out(error.name)}", style="yellow", markup=False)
    else:
        console.print(f"  drawn: {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description="An elastic job on this machine, and what became of it.")
    parser.add_argument("--picture", type=Path, help="where to draw it, too (PNG or SVG); needs matplotlib")
    picture = parser.parse_args().picture
    with tempfile.TemporaryDirectory(prefix="elastrain-demo-") as state:
        calm, storm = Path(state, "calm"), Path(state, "storm")
        recorder = Recorder()
        pids, verdict = train_disturbed(storm, recorder)
        train_undisturbed(calm, verdict.epochs + 1)  # it may have ended within an epoch
        changes = [r for r in recorder.rescales.values() if r.from_size]
        shown = Tour(curves.read(calm / "losses"), curves.read(storm / "losses"), changes)
    kept = report(recorder, shown, pids, verdict)
    if picture is not None:
        draw(shown, picture)
    return 0 if kept else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
