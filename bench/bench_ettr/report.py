"""The tables of a report. Pure."""

from __future__ import annotations

from collections import Counter

from bench_ettr.account import CAPACITY, CAUSE_WORDS, JOIN, REDONE, SCATTER
from bench_ettr.results import Report, RunResult
from bench_ettr.trace import PUBLISHED_RATE, Kind
from bench_harness.tables import Table

CAUSES = (*(kind.value for kind in Kind), JOIN, REDONE, CAPACITY, SCATTER)


def tables(report: Report) -> list[Table]:
    """Effective training time by cause, and what else was seen."""
    return [
        Table(
            "Effective training time and lost time, % of the wall clock",
            ("system", "trains", "of paid", *CAUSES),
            tuple(map(_split, report.runs)),
        ),
        Table(
            "Runs",
            ("system", "step ms", "longest gap s", "rolled back", "samples lost", "repeated", "nodes ended", "hangs",
             "start s", "load"),
            tuple(map(_seen, report.runs)),
        ),
    ]  # fmt: skip


def _split(run: RunResult) -> tuple[str, ...]:
    parts = (run.ettr, run.of_paid, *(run.lost.get(cause, 0.0) / run.wall for cause in CAUSES))
    return (run.system, *(f"{100 * part:.2f}" for part in parts))


def _seen(run: RunResult) -> tuple[str, ...]:
    lost, repeated = (str(run.samples.lost), str(run.samples.repeated)) if run.samples else ("–", "–")
    return (run.system, f"{1000 * run.step:.0f}", f"{run.longest:.1f}", str(run.rolled_back), lost, repeated,
            str(run.ended), str(run.hangs), f"{run.start:.1f}", f"{run.load:g}")  # fmt: skip


def notes(report: Report) -> list[str]:
    """What a reader needs to judge the figures."""
    kinds = Counter(fired.kind for fired in report.runs[0].fired) if report.runs else Counter[str]()
    return [
        *report.machine.lines,
        f"{report.ranks} ranks (elastrain: {report.spares} spares), {report.minutes:g} minutes a system, "
        f"{report.rate:g} failures an hour ({report.rate / PUBLISHED_RATE:.0f} times as often as published), "
        f"seed {report.seed}; in the first run: "
        + ", ".join(f"{count} {kind}" for kind, count in kinds.items()) + ".",
        f"A lost node is replaced after {report.repair:g} s. A checkpoint every {report.checkpoint_every} steps. A "
        f"sample takes {1000 * report.pace:g} ms of a played accelerator.",
        *(f"{cause}: {words}." for cause, words in CAUSE_WORDS.items()),
        *(f"{r.system}: {r.about}." for r in report.runs),
        *(f"{r.system}: {p}" for r in report.runs if r.samples for p in r.samples.problems),
    ]  # fmt: skip
