#!/usr/bin/env python3
"""Throughput of two ranks of unequal speed: measured shares, equal shares, plain DDP. ``--help`` explains its use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from bench_harness import played_ranks
from bench_shares.quota import Quotas
from bench_shares.train import BATCH, FAST
from elastrain.api.settings import RankSettings, ShareRule

TRAIN = Path(__file__).parent / "bench_shares" / "train.py"
SYSTEMS = ("measured", "equal", "ddp")
HELD = "cgroup-"
GOAL = 0.95
"""Of the sum of the speeds, with measured shares."""
HELP = """Measure the throughput of two ranks, one of which is slow, over the second half of the steps, in parts of the
sum of their speeds.

The speed is played: a sample takes a sleep, so the figure is that of the shares and the protocol, and other work on the
machine hardly matters. Scenarios: the slow rank's part of full speed (0.5, 0.25), changes (1, then 0.25 after 10 s),
flaps (1 and 0.5 in turns, each 5 s).

cgroup-0.5 and cgroup-0.25 play nothing: both ranks compute, each in a cgroup, which holds one to half a core and the
slow one to that part of it. The speed of each is measured alone, for 3 s before it trains. As root."""


def _job(folder: Path, rule: ShareRule, env: Mapping[str, dict[str, str]], steps: int) -> list[dict[str, float]]:
    world = played_ranks.World(folder, played_ranks.Fresh())
    played_ranks.PATIENCE = 300.0
    try:
        for name in "ab":
            command = [sys.executable, str(TRAIN), "job", str(folder / f"{name}.json"), str(steps)]
            world.ranks[name] = played_ranks.Rank(
                world.warm, name, folder, command, env[name], world.located, 0, RankSettings(shares=rule)
            )
        world.ready("a", "b")
        world.propose("a", "b")
        world.wait("both ranks end", lambda: all(r.process.poll() == 0 for r in world.ranks.values()))
    finally:
        for rank in world.ranks.values():
            rank.stop()
    return [json.loads((folder / f"{name}.json").read_text()) for name in "ab"]


def _ddp(folder: Path, env: Mapping[str, dict[str, str]], steps: int) -> list[dict[str, float]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    files = [folder / f"{rank}.json" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(TRAIN), "ddp", str(file), str(steps)],
            env={**os.environ, **address, "RANK": str(rank), **env["ab"[rank]]},
        )
        for rank, file in enumerate(files)
    ]
    try:
        for process in processes:
            if process.wait(300):
                raise RuntimeError(f"a DDP rank ended with {process.returncode}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads(file.read_text()) for file in files]


def measure(system: str, slow: str, steps: int) -> tuple[float, float]:
    """Samples per second, and the same in parts of the sum of the speeds."""
    env = {"a": {"SLOW": ""}, "b": {"SLOW": slow}}
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        if slow.startswith(HELD):
            quotas = stack.enter_context(Quotas({"a": 1.0, "b": float(slow.removeprefix(HELD))}))
            env = {name: {"GROUP": quotas.of(name)} for name in "ab"}
        rule = ShareRule.MEASURED if system == "measured" else ShareRule.EQUAL
        folder = Path(base) / "run"
        ranks = _ddp(folder, env, steps) if system == "ddp" else _job(folder, rule, env, steps)
    pace = ranks[0]["samples_per_second"]
    return pace, pace / (FAST * sum(rank["speed"] for rank in ranks))


def main(
    scenarios: Annotated[str, typer.Option(help="Separated by commas.")] = "0.5,0.25,changes,flaps",
    seconds: Annotated[int, typer.Option(help="Of each run, at the sum of the speeds.", min=4)] = 40,
) -> None:
    typer.echo(f"{'slow rank':12}{'system':12}{'samples/s':>12}{'of the sum':>12}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no rank and no cgroup is left behind
    missed = False
    if HELD in scenarios and (lacks := Quotas.missing()):
        typer.echo(lacks, err=True)
        raise typer.Exit(2)
    for slow in scenarios.split(","):
        for system in SYSTEMS:
            pace, part = measure(system, slow, round(seconds * 1.5 * FAST / BATCH))
            missed |= system == "measured" and part < GOAL
            typer.echo(f"{slow:12}{system:12}{pace:12.0f}{part:12.1%}")
    raise typer.Exit(1 if missed else 0)


if __name__ == "__main__":
    main.__doc__ = HELP
    typer.run(main)
