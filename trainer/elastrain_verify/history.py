"""What the processes of one run have recorded, read back. Pure, except that it reads the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

OWN_LOOP = "own loop"
"""The entry of a reference that a framework's own loop has trained."""
BATCH = "batch"
"""The entry of a step's data."""
Entries = Mapping[str, Any]
"""By name, as :func:`elastrain_verify.rank.record.entries` returns them."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The state of one process after a committed step, or at its end."""

    step: int
    worker: str
    entries: Entries
    rank: int = 0
    world: int = 1
    """Ranks of the generation that computed the step."""
    share: tuple[int, int] = (0, 1)
    generation: int = 0
    ended: bool = False
    """The state with which the script left the job, after ``step``."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The state of one process at the beginning of a loop body."""

    step: int
    """Committed steps before."""
    warm_up: bool
    entries: Entries
    variables: Entries = field(default_factory=dict)
    """Of the script."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run."""

    worker: str
    pid: int
    committed: Sequence[Committed] = ()
    waits: Sequence[int] = ()
    """Positions at which it was held."""
    receives: int = 0
    """How often it was held before it received state."""
    begun: Sequence[Begun] = ()
    """Executions of loop bodies."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of a reference: how the script trains."""


@dataclass(frozen=True, slots=True)
class History:
    """All processes of a run."""

    processes: Sequence[Process] = field(default=())

    @property
    def last_step(self) -> int:
        """The last step that a process has committed; 0: none."""
        return max((c.step for p in self.processes for c in p.committed), default=0)

    @property
    def facts(self) -> Mapping[str, Any]:
        """Of a reference: as of its process."""
        return next((p.facts for p in self.processes), {})

    @property
    def depends_on_parts(self) -> Sequence[str]:
        """Of a reference: what makes the model depend on how a batch is cut."""
        return tuple(self.facts.get("depends_on_parts", ()))

    @property
    def several_backwards(self) -> bool:
        """Of a reference: whether its last loop body had several."""
        return bool(self.facts.get("backwards", 0) > 1)

    @property
    def own_loop(self) -> bool:
        """Of a reference: whether a framework's own loop has trained."""
        return any(OWN_LOOP in c.entries for p in self.processes for c in p.committed)

    def of(self, worker: str) -> Sequence[Process]:
        """The processes of one worker, oldest first."""
        return [p for p in self.processes if p.worker == worker]


def read(folder: Path) -> History:
    """The records in ``folder``; lines that a kill has cut off are left out."""
    files = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_ctime_ns)
    return History([process(path.read_text().splitlines()) for path in files])


def process(lines: Iterable[str]) -> Process:
    """One process by the lines of its record."""
    worker, pid, receives = "", 0, 0
    facts: Mapping[str, Any] = {}
    committed: list[Committed] = []
    begun: list[Begun] = []
    waits: list[int] = []
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        match found["kind"]:
            case "start":
                worker, pid = found["worker"], found["pid"]
            case "waits":
                waits.append(found["at"])
            case "receives":
                receives += 1
            case "begin":
                begun.append(Begun(found["step"], found["warm_up"], found["entries"], found["variables"]))
            case "step":
                rank, world, share = found["rank"], found["world"], tuple(found["share"])
                number = found.get("generation", 0)
                committed.append(Committed(found["step"], worker, found["entries"], rank, world, share, number))
                facts = found.get("facts", {})
            case "end":
                last = committed[-1] if committed else Committed(0, worker, {})
                committed.append(replace(last, step=found["step"], entries=found["entries"], ended=True))
    return Process(worker, pid, tuple(committed), tuple(waits), receives, tuple(begun), facts)
