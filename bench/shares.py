#!/usr/bin/env python3
"""Throughput of two ranks of unequal speed: measured shares, equal shares, torchrun. ``--help`` explains its use."""

from __future__ import annotations

import itertools
import json as jsonlib
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench_harness import played_ranks, program
from bench_harness.machine import Machine, machine
from bench_harness.processes import Processes
from bench_harness.stats import Model, Spread, text
from bench_harness.tables import Table
from bench_shares import pictures
from bench_shares.quota import Quotas
from bench_shares.speeds import BATCH, FAST
from elastrain.api.settings import RankSettings, ShareRule

BENCH = Path(__file__).parent
TRAIN = BENCH / "bench_shares" / "train.py"
RULES = {"measured": ShareRule.MEASURED, "equal": ShareRule.EQUAL}
SYSTEMS = (*RULES, "torchrun")
SCENARIOS = ("0.5", "0.25", "changes", "flaps")
HELD = "cgroup-"
GOAL = 0.95
"""Of the sum of the speeds, with measured shares."""
LIMIT = 300.0
"""Seconds that one run may take."""
POLL_SECONDS = 0.1
HELP = """Measure the throughput of two ranks, one of which is slow, over the second half of the steps, in % of the sum
of their speeds.

The speed is played: a sample takes a sleep, so the figure is that of the shares and the protocol, and other work on the
machine hardly matters. Scenarios: the slow rank's part of full speed (0.5, 0.25), changes (1, then 0.25 after 10 s),
flaps (1 and 0.5 in turns, each 5 s).

cgroup-0.5 and cgroup-0.25 play nothing: both ranks compute, each in a cgroup, which holds one to half a core and the
slow one to that part of it. The speed of each is measured alone, for 3 s before it trains. As root.

Systems and scenarios take turns, run by run. Figures are minimum / median / maximum over the runs.

\b
Examples:
  bench/shares.py                                                            40 minutes
  bench/shares.py --scenarios changes,flaps --runs 1 --picture shares.png    throughput over time"""


class Figures(Model):
    """One system in one scenario, by run."""

    scenario: str
    system: str
    samples_per_second: tuple[float, ...]
    of_the_sum: tuple[float, ...]
    """The same in parts of the sum of the speeds."""
    ends: tuple[float, ...]
    """Of each step of the last run, in seconds since the first began."""


class Report(Model):
    """Everything."""

    machine: Machine
    runs: int
    seconds: int
    figures: tuple[Figures, ...]


def _job(folder: Path, rule: ShareRule, env: Mapping[str, str], steps: int) -> None:
    world = played_ranks.World(folder, played_ranks.Fresh())
    played_ranks.PATIENCE = LIMIT
    command = [sys.executable, str(TRAIN), "elastrain", str(folder), str(steps)]
    try:
        for number, name in enumerate("ab"):
            own, settings = {**env, "RANK": str(number)}, RankSettings(shares=rule)
            world.ranks[name] = played_ranks.Rank(world.warm, name, folder, command, own, world.located, 0, settings)
        world.ready("a", "b")
        world.propose("a", "b")
        world.wait("both ranks end", lambda: all(r.process.poll() == 0 for r in world.ranks.values()))
    finally:
        for rank in world.ranks.values():
            rank.stop()


def _torchrun(folder: Path, env: Mapping[str, str], steps: int) -> None:
    folder.mkdir()
    processes = Processes(folder, {**os.environ, **env, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    end = time.monotonic() + LIMIT
    try:
        processes.start("torchrun", [*launcher, str(TRAIN), "torchrun", str(folder), str(steps)], {})
        while processes.runs("torchrun") and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
    finally:
        processes.end()
    if not all((folder / f"{rank}.json").exists() for rank in range(2)):
        raise program.Failed(f"torchrun has not trained: {(folder / 'torchrun.log').read_text()[-3000:]}")


def measure(system: str, scenario: str, steps: int) -> tuple[float, float, tuple[float, ...]]:
    """Samples per second, the same in parts of the sum of the speeds, and the end of each step. Raises ``Failed``."""
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        env = {"PYTHONPATH": f"{BENCH}:{os.environ.get('PYTHONPATH', '')}"}
        if scenario.startswith(HELD):
            quotas = stack.enter_context(Quotas({"0": 1.0, "1": float(scenario.removeprefix(HELD))}))
            env |= {f"GROUP_{rank}": quotas.of(str(rank)) for rank in range(2)}
        else:
            env |= {"SLOW_1": scenario}
        folder = Path(base) / "run"
        if system == "torchrun":
            _torchrun(folder, env, steps)
        else:
            _job(folder, RULES[system], env, steps)
        ranks = [jsonlib.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    pace = ranks[0]["samples_per_second"]
    return pace, pace / (FAST * sum(rank["speed"] for rank in ranks)), tuple(ranks[0]["ends"])


def table(report: Report) -> Table:
    """One row for each scenario."""
    systems = dict.fromkeys(f.system for f in report.figures)
    parts = {(f.scenario, f.system): f.of_the_sum for f in report.figures}
    rows = []
    for scenario in dict.fromkeys(f.scenario for f in report.figures):
        measured = Spread.of(parts.get((scenario, "measured"), ()))
        goal = "–" if measured is None else "met" if measured.median >= GOAL else "missed"
        rows.append((scenario, *(text(parts.get((scenario, s), ()), ".1f", 100) for s in systems), goal))
    header = ("the slow rank", *systems, f"goal, {GOAL:.0%}")
    return Table("Throughput in % of the sum of the speeds", header, tuple(rows))


def main(
    *,
    scenarios: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(SCENARIOS),
    systems: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(SYSTEMS),
    runs: Annotated[int, typer.Option(min=1, help="Of each system in each scenario.")] = 3,
    seconds: Annotated[int, typer.Option(help="Of each run, at the sum of the speeds.", min=4)] = 40,
    picture: Annotated[Path | None, typer.Option(help="File for throughput over time; needs matplotlib.")] = None,
    json: program.Json = None,
    logs: program.Logs = None,
    markdown: program.Markdown = False,
) -> None:
    known = (*SCENARIOS, *(f"{HELD}{part}" for part in SCENARIOS[:2]))
    scenarios_given, chosen = (
        program.choose("--scenarios", scenarios, known), program.choose("--systems", systems, SYSTEMS),
    )  # fmt: skip
    if HELD in scenarios and (lacks := Quotas.missing()):
        program.refuse(lacks)
    cases = list(itertools.product(scenarios_given, chosen))
    facts, output = machine(), program.Output("shares", json, logs, markdown)
    found: dict[tuple[str, str], list[tuple[float, float, tuple[float, ...]]]] = {case: [] for case in cases}

    def report() -> Report:
        figures = [
            Figures(scenario=case[0], system=case[1], samples_per_second=p, of_the_sum=parts, ends=ends[-1])
            for case, values in found.items() if values
            for p, parts, ends in [zip(*values, strict=True)]
        ]  # fmt: skip
        return Report(machine=facts, runs=runs, seconds=seconds, figures=tuple(figures))

    with output.measuring():
        for run in range(1, runs + 1):
            for scenario, system in cases:
                output.begins(f"run {run} of {runs}: {scenario}, {system}")
                found[scenario, system].append(measure(system, scenario, round(seconds * 1.5 * FAST / BATCH)))
                output.keep(report())
    counted = f"Minimum / median / maximum over the second half of the steps, runs: {runs}; {seconds} s each."
    if picture is not None:
        drawn = {
            s: {f.system: f.ends for f in report().figures if f.scenario == s}
            for s in scenarios_given
            if not s.startswith(HELD)
        }
        pictures.draw(drawn, seconds, picture)
    output.show([table(report())], [counted, *facts.lines])


if __name__ == "__main__":
    program.run(main, HELP)
