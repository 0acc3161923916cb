"""Puts each seeded bug into a copy of the tree and shows which test finds it: ``tests/seeded/run.py --help``."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from bugs import FOLDER, TIERS, Bug, PatchError, applied, read_all

Change, Judged = TypeVar("Change"), TypeVar("Judged")
ROOT = FOLDER.parents[1]
SEARCHED = TIERS[:-1]
"""Tiers that ``--full`` searches: those that need no cluster."""
BUG_SECONDS = 1800
"""Limit for one run of pytest."""
UNCUT = 240
"""Columns of the table where standard output is no terminal."""
FAILED = 1
"""pytest's exit code if tests failed; others say that they could not be run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    bug: Bug
    tier: str
    """Of the test that failed; empty: the bug is not caught."""
    detail: str
    """That test, or why there is none."""
    seconds: float


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="BUG", help="Bugs by number (07), name or pattern ('*lease*'). None: all."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Search all tests, not only the recorded one.")] = False,
    processes: Annotated[int, typer.Option(min=1, help="Bugs examined at a time, each in a copy of its own.")] = 1,
    tree: Annotated[
        Path, typer.Option(help="Checkout whose code and tests are copied and run.", show_default="this one")
    ] = ROOT,
) -> None:
    """Put each seeded bug into a copy of the tree and show which test finds it. The checkout itself is never changed.

    A bug is caught if the test that its patch names fails. With --full, the tests of one tier after the other run, from
    the cheapest to the most expensive, until one fails. Exit code 1: a bug is not caught, or its patch does not apply.

    \b
    tests/seeded/run.py                          the recorded test of each bug
    tests/seeded/run.py '*lease*' 07             some bugs, by pattern or number
    tests/seeded/run.py --full --processes 2     all tests, tier by tier, until one fails
    tests/seeded/run.py --full --tree ../old     the same with the code and the tests of another checkout
    """
    bugs = select(read_all(), names or ["*"])
    if not bugs:
        raise typer.BadParameter(f"no patch in {FOLDER} matches {' '.join(names or [])}")
    console = Console(width=None if sys.stdout.isatty() else UNCUT)

    def judge(bug: Bug, copy: Path) -> Verdict:
        verdict = examine(bug, copy, full=full)
        console.print(f"{bug.name}: {verdict.detail}", soft_wrap=True, highlight=False, style="dim")
        return verdict

    verdicts = in_copies(tree.resolve(), bugs, processes, judge)
    console.print(as_table(verdicts))
    missed = [verdict.bug.name for verdict in verdicts if not verdict.tier]
    console.print(f"{len(verdicts) - len(missed)} of {len(verdicts)} bugs are caught")
    for name in missed:
        console.print(f"  missed: {name}")
    raise typer.Exit(1 if missed else 0)


def select(bugs: Iterable[Bug], patterns: list[str]) -> list[Bug]:
    """The bugs whose name or number matches one of ``patterns``."""
    return [b for b in bugs if any(fnmatch(b.name, p) or b.name.partition("-")[0] == p for p in patterns)]


def in_copies(
    tree: Path, changes: Sequence[Change], processes: int, judge: Callable[[Change, Path], Judged]
) -> list[Judged]:
    """``judge(change, copy)`` of each of the ``changes``, in their order: ``processes`` at a time, each with a copy of
    ``tree`` to itself, which it leaves as it was."""
    with tempfile.TemporaryDirectory(prefix="seeded-") as scratch:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(min(processes, len(changes))):
            copies.put(copy_of(tree, Path(scratch) / str(number)))

        def alone(change: Change) -> Judged:
            copy = copies.get()
            try:
                return judge(change, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(processes) as pool:
            return list(pool.map(alone, changes))


def copy_of(tree: Path, into: Path) -> Path:
    """The tracked files of a checkout, as they are on the disk."""
    listing = subprocess.run(["git", "-C", tree, "ls-files", "-z"], capture_output=True, check=True, text=True).stdout
    for name in filter(None, listing.split("\0")):
        if (tree / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, into / name)
    return into


def examine(bug: Bug, copy: Path, *, full: bool) -> Verdict:
    """Run the tests with the bug in ``copy``, then remove it."""
    began = time.monotonic()
    try:
        sound = {file: (copy / file).read_text() for file in bug.files}
        write(copy, applied(bug, sound))
    except (OSError, PatchError) as error:
        return Verdict(bug, "", f"does not apply: {error}", 0.0)
    try:
        detail = ""
        for tier, tests in tiers_of(copy) if full else [(bug.tier, bug.test)]:
            caught, detail = first_failure(copy, tests)
            if caught:
                return Verdict(bug, tier, detail, time.monotonic() - began)
        return Verdict(bug, "", detail, time.monotonic() - began)
    finally:
        write(copy, sound)


def tiers_of(copy: Path) -> list[tuple[str, str]]:
    """Names and folders of the tiers to search; an older tree without tiers has one."""
    return [(t, f"tests/{t}") for t in SEARCHED if (copy / "tests" / t).is_dir()] or [("tests", "tests")]


def first_failure(copy: Path, tests: str) -> tuple[bool, str]:
    """Whether a test fails, and which one; else why none failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", tests]
    command += ["-m", ""] if "::" in tests else []  # a named test runs even if it is nightly
    path = os.pathsep.join([str(copy / "operator"), str(copy / "trainer")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}  # a bug may be of the same length
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=BUG_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"the tests did not end within {BUG_SECONDS} s"
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == FAILED and found:
        return True, found[1]
    last = done.stdout.strip().rpartition("\n")[2] or done.stderr.strip().rpartition("\n")[2]
    return False, f"no test fails: {last}" if done.returncode == 0 else f"pytest exit code {done.returncode}: {last}"


def write(copy: Path, texts: dict[str, str]) -> None:
    """Write files, and make Python recompile them even if size and time are unchanged."""
    for name, text in texts.items():
        (copy / name).write_text(text)
        Path(importlib.util.cache_from_source(str(copy / name))).unlink(missing_ok=True)


def as_table(verdicts: list[Verdict]) -> Table:
    table = Table("bug", "tier that catches it", "test", "seconds")
    for v in verdicts:
        table.add_row(v.bug.name, v.tier or "[red]none", v.detail, f"{v.seconds:.1f}")
    return table


if __name__ == "__main__":
    app()
