"""The answer of a verification, on the terminal and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from elastrain_verify.command.execute import RunFailed
from elastrain_verify.compare import Parting
from elastrain_verify.kinds import Fault, advice
from elastrain_verify.runs import Run
from elastrain_verify.variables import Variable

NOT_RUN = "not run: "
"""Notes of runs that did not take place begin so."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a verification has found."""

    exit_code: int
    script: str
    steps: int
    workers: int
    dtype: str
    seconds: float
    done: tuple[Run, ...]
    """Runs that are equal to the reference."""
    notes: tuple[str, ...] = ()
    """What was not run, and the like."""
    run: Run | None = None
    """The run that parts, or fails."""
    fault: Fault | None = None
    parting: Parting | None = None
    error: RunFailed | None = None
    variables: tuple[tuple[str, Variable], ...] = ()
    """Of the script, with their lines, that differ as the body of the step begins."""

    @property
    def is_whole(self) -> bool:
        """Whether the script is safe, through all runs."""
        return self.exit_code == 0 and not any(note.startswith(NOT_RUN) for note in self.notes)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "verdict": {0: "safe", 1: "parts", 2: "not judged"}[self.exit_code],
            "script": self.script, "steps": self.steps, "workers": self.workers, "dtype": self.dtype,
            "seconds": round(self.seconds, 1), "runs": [run.name for run in self.done], "notes": [*self.notes],
        }  # fmt: skip
        if self.run is not None and self.fault is not None:
            found |= {"run": self.run.name, "kind": self.fault.name, "docs": self.fault.paragraph}
        if (p := self.parting) is not None:
            found |= {
                "step": p.step, "entry": p.entry, "rank": p.rank, "ranks": [*p.ranks], "worker": p.worker,
                "expected": p.expected, "found": p.found, "variables": [name for name, _ in self.variables],
            }  # fmt: skip
        if self.error is not None:
            found |= {"error": str(self.error), "output": self.error.tail}
        return found


class Report:
    """Prints what happens, and the answer. With ``as_json`` only the answer goes to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, highlight=False, soft_wrap=True)
        self._running: set[str] = set()
        self._status = self._console.status("")

    @contextmanager
    def running(self, run: Run) -> Iterator[None]:
        """Around the execution of ``run``; several may be under way."""
        began = time.monotonic()
        self._show({*self._running, run.title})
        try:
            yield
        finally:
            self._show(self._running - {run.title})
        self._console.print(f"  {run.title}: {time.monotonic() - began:.1f} s", style="dim")

    def _show(self, running: set[str]) -> None:
        self._running = running
        if self._console.is_terminal:
            self._status.update(" · ".join(sorted(running)))
            self._status.start() if running else self._status.stop()

    def conclude(self, answer: Answer, kept: Path | None) -> None:
        """Print the answer. ``kept``: where the output of the runs is."""
        if self._as_json:
            place = {} if kept is None else {"kept": str(kept)}
            Console(soft_wrap=True).print_json(json.dumps(answer.to_json() | place))
            return
        for line, style in lines(answer, kept):
            self._console.print(line, style=style, markup=False)


def lines(answer: Answer, kept: Path | None = None) -> Iterator[tuple[str, str]]:
    """The answer as lines, each with its style. Pure."""
    if answer.exit_code == 0:
        types = "float64" if answer.dtype == "float64" else "the script's own types"
        events = [run.title for run in answer.done if run.at]
        most = max((max(run.workers, run.then) for run in answer.done), default=1)
        disturbed = f"{len(events)} disturbances, " if events else ""
        yield (
            f"{answer.script} is safe: {answer.steps} steps on up to {most} worker{'s' * (most != 1)}, {disturbed}all "
            f"equal to plain torch in {types} ({answer.seconds:.0f} s)",
            "bold green",
        )
    elif answer.run is not None and answer.fault is not None:
        yield from _fault(answer)
    for note in answer.notes:
        yield note, "yellow"
    if kept is not None:
        yield f"output of the runs: {kept}", ""


def _fault(answer: Answer) -> Iterator[tuple[str, str]]:
    run, fault = answer.run, answer.fault
    assert run is not None and fault is not None
    yield f"{answer.script}: {fault.title}", "bold red"
    if (p := answer.parting) is not None:
        where = "in the code after the loop, " * p.ended
        who = f"all {p.world} ranks" if p.all_ranks and p.world > 1 else f"rank {p.rank} of {p.world}"
        who = who if p.ranks or p.ended else f"worker {p.worker}"
        yield f"  run       {run.title}", ""
        yield f"  step      {p.step}, {where}{who}", ""
        yield f"  entry     {p.entry}" + (f"  (and {p.others} more)" if p.others else ""), ""
        yield f"  reference {shown(p.expected)}", ""
        yield f"  this run  {shown(p.found)}", ""
        for name, v in answer.variables:
            yield f"  script    {name}: {shown(v.expected)}, on {v.worker} {shown(v.found)}", ""
        if text := advice(p):
            yield text, ""
    if answer.error is not None:
        yield f"  run       {run.title}", ""
        yield f"  {answer.error}", ""
        for line in answer.error.tail.splitlines():
            yield f"    {line}", "dim"
    if fault.about:
        yield fault.about, ""
    yield f"See {fault.paragraph}", "bold"


def shown(value: Any) -> str:
    """A value of an entry, for the terminal."""
    if isinstance(value, dict) and "sample" not in value:  # the data of a step, by the place in the global batch
        return ", ".join(f"samples {place} digest {digest}" for place, digest in value.items())
    if isinstance(value, dict):
        sample = ", ".join(f"{x:.12g}" for x in value["sample"][:4])
        more = ", …" if value["size"] > 4 else ""
        return f"{value['type']}  norm {value['norm']:.12g}  [{sample}{more}]"
    return f"{value:.12g}" if isinstance(value, float) else str(value)
