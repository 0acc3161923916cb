"""Puts mutants that no hand has chosen into the decisions and shows which test finds each: ``mutate.py --help``."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mutation import Mutant, mutants
from run import ROOT, UNCUT, first_failure, in_copies, write

DECISIONS: dict[str, tuple[str, ...]] = {
    "trainer/elastrain/rendezvous/decide.py": ("tests/unit/rendezvous", "tests/sim"),
    "trainer/elastrain/rendezvous/view.py": ("tests/unit/rendezvous", "tests/sim"),
    "trainer/elastrain/rendezvous/election.py": ("tests/unit/rendezvous", "tests/sim"),
    "trainer/elastrain/agent/core": ("tests/unit/agent", "tests/sim", "tests/protocol/agent"),
    "trainer/elastrain/elastic/boundary.py": ("tests/training/elastic/test_boundary.py", "tests/training/elastic"),
    "trainer/elastrain/elastic/commit/decide.py": ("tests/training/elastic/test_decide.py", "tests/sim/test_commit.py"),
    "trainer/elastrain/elastic/commit/ledger.py": ("tests/sim", "tests/training/elastic"),
    "trainer/elastrain/elastic/group/machine/core.py": ("tests/training/elastic/test_group_core.py", "tests/sim"),
    "trainer/elastrain/elastic/group/machine/proposals.py": ("tests/training/elastic/test_group_core.py", "tests/sim"),
    "trainer/elastrain/elastic/group/entry.py": ("tests/training/elastic/test_entry.py", "tests/training/elastic"),
    "operator/elastrain_operator/policy": ("tests/unit/operator", "tests/sim"),
    "operator/elastrain_operator/job/plan.py": ("tests/unit/operator", "tests/sim"),
    "operator/elastrain_operator/allocation": ("tests/unit/operator",),
    "trainer/elastrain_resource/sizing": ("tests/unit/sizing", "tests/unit/operator"),
    "trainer/elastrain_batches/goodput.py": ("tests/unit/sizing",),
    "trainer/elastrain_batches/noise.py": ("tests/unit/sizing",),
}
"""Files or folders of pure decisions, and the tests that have to find a mutant there, from the cheapest on."""


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    found_by: str
    """A test; empty: none has failed."""
    seconds: float


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Only mutants below these paths. None: those of all decisions."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Mutants, drawn from all that there are.")] = 40,
    seed: Annotated[int, typer.Option(help="Of the draw: the same tree and seed give the same mutants.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="Mutants examined at a time, each in a copy of its own.")] = 1,
    dry: Annotated[bool, typer.Option("--dry", help="Only list the mutants.")] = False,
) -> None:
    """Change the decisions at random places, one place at a time, and show which test finds the change.

    A mutant that no test finds is a test that is missing, a line that decides nothing, or a change of no meaning: look
    at each. Exit code 1: some are not found.

    \b
    tests/seeded/mutate.py                                             40 mutants of all decisions
    tests/seeded/mutate.py --seed 7 --count 100 --processes 2          others, and more
    tests/seeded/mutate.py trainer/elastrain/rendezvous/decide.py      of one file
    """
    drawn = draw(everything(places or []), count, seed)
    console = Console(width=None if sys.stdout.isatty() else UNCUT)
    if not drawn:
        raise typer.BadParameter(f"no decision lies below {' '.join(places or [])}; they are in {', '.join(DECISIONS)}")
    if dry:
        console.print(*map(str, drawn), sep="\n", highlight=False, markup=False, soft_wrap=True)
        return

    def judge(mutant: Mutant, copy: Path) -> Verdict:
        verdict = examine(mutant, copy)
        said = f"{mutant}: {verdict.found_by or 'NOT FOUND'}"
        console.print(said, soft_wrap=True, highlight=False, markup=False, style="dim")
        return verdict

    verdicts = in_copies(ROOT, drawn, processes, judge)
    console.print(as_table(verdicts))
    found = sum(bool(v.found_by) for v in verdicts)
    console.print(f"{found} of {len(verdicts)} mutants are found")
    raise typer.Exit(0 if found == len(verdicts) else 1)


def everything(places: list[str]) -> list[Mutant]:
    """All mutants of the decisions below ``places`` (none: of all decisions), in the order of their places."""
    files = sorted(
        {f for name in DECISIONS for f in ((ROOT / name).rglob("*.py") if is_folder(name) else [ROOT / name])}
    )
    names = [str(f.relative_to(ROOT)) for f in files]
    wanted = [n for n in names if not places or any(n.startswith(p.rstrip("/")) for p in places)]
    return [m for name in wanted for m in mutants(name, (ROOT / name).read_text())]


def is_folder(name: str) -> bool:
    return not name.endswith(".py")


def draw(found: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """``count`` of them, or all."""
    return random.Random(seed).sample(found, min(count, len(found)))


def tests_of(file: str) -> tuple[str, ...]:
    return next(tests for name, tests in DECISIONS.items() if file.startswith(name))


def examine(mutant: Mutant, copy: Path) -> Verdict:
    """Run the tests with the mutant in ``copy``, from the cheapest on, then remove it."""
    began, sound = time.monotonic(), (copy / mutant.file).read_text()
    write(copy, {mutant.file: mutant.text})
    try:
        for tests in tests_of(mutant.file):
            caught, detail = first_failure(copy, tests)
            if caught:
                return Verdict(mutant, detail, time.monotonic() - began)
        return Verdict(mutant, "", time.monotonic() - began)
    finally:
        write(copy, {mutant.file: sound})


def as_table(verdicts: list[Verdict]) -> Table:
    table = Table("place", "mutant", "found by", "seconds")
    for v in verdicts:
        place, change = f"{v.mutant.file}:{v.mutant.line}", f"{v.mutant.before} -> {v.mutant.after}"
        table.add_row(place, change, v.found_by or "[red]no test", f"{v.seconds:.1f}")
    return table


if __name__ == "__main__":
    app()
