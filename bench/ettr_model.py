"""Effective training time by a model: losses drawn at random on 64 to 100,000 ranks, beside `elastrain plan`.

    .venv/bin/python bench/ettr_model.py
    .venv/bin/python bench/ettr_model.py --cards 16384 --losses 20000 --set per_rank=0.0003
    .venv/bin/python bench/ettr_model.py --runs figures.json      # beside what bench/ettr.py has measured
    .venv/bin/python bench/ettr_model.py --picture docs/images/ettr.png

A model, not a measurement: it has the constants of `elastrain_plan.model` (docs/sizing.md), of which phases are spread
log-normally by --spread. Where the formula has means, it draws each loss and repair, cuts a rescale that the next loss
hits, and slows training while replicas are missing. So it shows how far the formula holds. With --runs it is held
against real processes: phases and rates are those of the run (bench_ettr/predict.py).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import random
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from bench_ettr import pictures, predict
from bench_ettr.results import Report
from elastrain_plan import model
from elastrain_plan.app import constants
from elastrain_plan.choose import Plan, choose
from elastrain_plan.model import GB, Cluster, Settings, Split

CARDS = "64,512,1024,4096,16384,98304"
STATE = 7.2e6
"""Bytes of model and optimizer in bench/ettr.py."""
CAUSES = tuple(f.name for f in fields(Split))


@dataclass(slots=True)
class Run:
    """One job, loss by loss. Times are seconds of the wall clock; ``spent`` is in seconds of the whole job."""

    cluster: Cluster
    settings: Settings
    rng: random.Random
    spread: float
    """Sigma of the log-normal phases."""
    now: float = 0.0
    loss: float = 0.0
    """Time of the next loss."""
    repairs: list[float] = field(default_factory=list)
    """Ends of the repairs under way."""
    since: float = 0.0
    """Training since the last rescale."""
    unsaved: float = 0.0
    """Training since the last durable checkpoint."""
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))

    def go(self, losses: int) -> Split:
        """The split of the paid time after so many losses."""
        self.loss = self._until_next()
        for _ in range(losses):
            self._train()
            self._rescale()
        size = model.unit(self.cluster, self.settings.group) / self.cluster.cards
        self.spent["spare"] = self.now * self.settings.spares * size
        whole = sum(self.spent.values())
        return Split(**{cause: seconds / whole for cause, seconds in self.spent.items()})

    def _until_next(self) -> float:
        return self.now + self.rng.expovariate(self.cluster.rate)

    def _speed(self) -> float:
        missing = max(0, len(self.repairs) - self.settings.spares)
        return max(0.0, 1 - missing * model.unit(self.cluster, self.settings.group) / self.cluster.cards)

    def _train(self) -> None:
        """Until the next loss, at the speed of those who are there; a save stops all for its stall."""
        every = self.settings.interval * self.cluster.step
        stall = model.stall(self.cluster, self.settings.group)
        while self.now < self.loss:
            while self.repairs and self.repairs[0] <= self.now:
                heapq.heappop(self.repairs)
            end = min(self.loss, self.repairs[0] if self.repairs else math.inf)
            speed = self._speed()
            able = (end - self.now) * every / (every + stall * speed)  # of which saves take the rest
            self.spent["training"] += able * speed
            self.spent["waiting"] += able * (1 - speed)
            self.spent["checkpoint"] += end - self.now - able
            self.unsaved = (self.unsaved + able * speed) % every
            self.since += able * speed
            self.now = end

    def _rescale(self) -> None:
        """From a loss to the first step after it; a loss meanwhile begins it anew."""
        while True:
            heapq.heappush(self.repairs, self.now + self.cluster.constants.repair)
            self.loss = self._until_next()
            if all(self._pause(cause, seconds) for cause, seconds in self._phases()):
                return

    def _pause(self, cause: str, mean: float) -> bool:
        """Whether the phase ends before the next loss."""
        took = mean * math.exp(self.rng.gauss(-(self.spread**2) / 2, self.spread))
        end = min(self.now + took, self.loss)
        self.spent[cause] += end - self.now
        self.now = end
        return end < self.loss

    def _phases(self) -> list[tuple[str, float]]:
        """Of this loss, in order; what it repeats moves from training to ``redone``."""
        c, cluster = self.cluster.constants, self.cluster
        fatal, silent = self.rng.random() < cluster.fatal, self.rng.random() < c.silent
        self._repeat(fatal)
        state = cluster.state / self.settings.group / GB / c.bandwidth
        return [
            ("detection", max(c.lease, c.detect) if silent else c.detect),
            ("rendezvous", model.rendezvous(cluster)),
            ("state", state + (cluster.state / GB / c.store if fatal else 0.0)),
            ("start", c.first_step + (c.start if fatal else 0.0)),
        ]

    def _repeat(self, fatal: bool) -> None:
        again = min(self.since, self.rng.uniform(0, self.cluster.step))
        self.since = 0.0
        if fatal:
            again += self.unsaved
            self.unsaved = 0.0
        elif self.cluster.cards // self.settings.group < 2:
            again += min(self.unsaved, self.rng.uniform(0, self.settings.redone) * self.cluster.step)
        again = min(again, self.spent["training"])
        self.spent["training"] -= again
        self.spent["redone"] += again


def row(name: str, split: Split) -> str:
    """A line of the table, in % of the paid time."""
    return f"{name:<20}" + "".join(f"{100 * part:>11.3f}" for part in astuple(split))


def against(file: Path, given: argparse.Namespace) -> None:
    """Print formula and drawn losses beside elastrain's runs in ``file``."""
    report = Report.model_validate_json(file.read_text())
    for run in (run for run in report.runs if run.system == "elastrain"):
        cluster, settings = predict.cluster_of(report, run, STATE)
        drawn = Run(cluster, settings, random.Random(given.seed), given.spread).go(given.losses)
        print(f"{report.ranks} ranks, {len(run.fired)} events in {run.wall:.0f} s; % of the wall clock")
        print(f"{'':<20}{'measured':>11}{'formula':>11}{'drawn':>11}{'points':>11}")
        formula = predict.beside(run, model.split(cluster, settings))
        for one, other in zip(formula, predict.beside(run, drawn), strict=True):
            points = one.model - one.measured
            print(f"{one.name:<20}{one.measured:>11.2f}{one.model:>11.2f}{other.model:>11.2f}{points:>+11.2f}")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cards", default=CARDS, help=f"comma-separated (default {CARDS})")
    parser.add_argument("--state", type=float, default=6480, help="GB of one copy (default 6480)")
    parser.add_argument("--card-memory", type=float, default=192, help="GB of a card (default 192)")
    parser.add_argument("--step", type=float, default=8, help="seconds of a step (default 8)")
    parser.add_argument("--mttf", type=float, default=50_000, help="hours between losses of a card (default 50000)")
    parser.add_argument("--losses", type=int, default=5_000, help="losses to draw for each size (default 5000)")
    parser.add_argument("--spread", type=float, default=0.5, help="sigma of the log-normal phases (default 0.5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a constant of the model")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--runs", type=Path, help="figures of bench/ettr.py: hold the model against these runs")
    parser.add_argument("--picture", type=Path, help="draw the formula by scale and cause into this file instead")
    given = parser.parse_args()
    if given.runs:
        against(given.runs, given)
    elif given.picture:
        sizes = [64 * 2**doubled for doubled in range(11)] + [98_304]
        pictures.draw({cards: planned(cards, given)[1].split for cards in sizes}, given.picture)
    else:
        by_scale(given)


def planned(cards: int, given: argparse.Namespace) -> tuple[Cluster, Plan]:
    """The cluster of a size, and the settings that lose least."""
    cluster = Cluster(cards, 8, given.state * GB, given.step, given.mttf, constants(given.set, None))
    return cluster, choose(cluster, 0.6 * given.card_memory * GB)


def by_scale(given: argparse.Namespace) -> None:
    """Print the table of all sizes."""
    print(f"A model, not a measurement. {given.losses} losses each, seed {given.seed}; % of the paid time.")
    print(" " * 20 + "".join(f"{cause:>11}" for cause in CAUSES))
    found = {}
    for cards in (int(word) for word in given.cards.split(",")):
        cluster, plan = planned(cards, given)
        drawn = Run(cluster, plan.settings, random.Random(given.seed), given.spread).go(given.losses)
        print(row(f"{cards} drawn", drawn))
        print(row(f"{cards} formula", plan.split))
        found[cards] = {"drawn": drawn, "formula": plan.split}
    if given.json:
        given.json.write_text(json.dumps({n: {k: dict(zip(CAUSES, astuple(s), strict=True)) for k, s in both.items()}
                                          for n, both in found.items()}, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
