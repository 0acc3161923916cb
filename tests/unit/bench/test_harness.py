"""Statistics, tables, options, the workload and footprints that benchmarks share."""

from __future__ import annotations

import os

import pytest
import typer

from bench_harness import program
from bench_harness.machine import machine
from bench_harness.stats import percentile, slope, text
from bench_harness.tables import Table, markdown
from bench_rescale.growth import footprint, leaks, per_cycle
from bench_rescale.results import Footprint


@pytest.mark.parametrize(
    ("values", "words"),
    [([2.0], "2.0"), ([3.0, 1.0, 2.0], "1.0 / 2.0 / 3.0"), ([2.01, 2.02, None], "2.0"), ([None], "–"), ([], "–")],
)
def test_a_figure_is_written_once_if_all_runs_agree(values: list[float | None], words: str) -> None:
    assert text(values, ".1f") == words


def test_a_percentile_is_one_of_the_values() -> None:
    assert [percentile([3, 1, 2, 4], part) for part in (0, 0.5, 0.95)] == [1, 2, 4]


def test_a_slope_ignores_a_jump() -> None:
    assert slope(range(10), [2 * x + (100 if x == 4 else 0) for x in range(10)]) == 2


def test_markdown_has_the_tables_with_rows_and_the_notes() -> None:
    tables = [Table("Cost", ("event", "s"), (("grow", "1"),)), Table("Nothing", ("event",), ())]
    assert markdown(tables, ["a note"]) == "**Cost**\n\n| event | s |\n| --- | ---: |\n| grow | 1 |\n\n- a note"


def test_a_report_names_command_commit_and_machine(monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bench/rescale.py", "--events", "grow,term"])
    facts = machine().model_copy(update={"commit": "abc", "load": 99.0})
    first, second, noise = facts.lines
    assert first.startswith("Command: `bench/rescale.py --events grow,term`; ") and first.endswith("commit abc.")
    assert f"{facts.cores} cores" in second and f"torch {facts.torch}" in second and facts.kernel in second
    assert "not quiet" in noise


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (lambda: program.choose("--systems", "a,b", ["a", "c"]), "--systems: 'b' must be one of a, c"),
        (lambda: program.numbers("--jobs", "1,many"), "--jobs '1,many': must be numbers"),
        (lambda: program.numbers("--members", "8,2", 3), "--members '8,2': each must be at least 3"),
    ],
)
def test_a_wrong_option_ends_the_program_with_code_2(refused, words: str, capsys) -> None:
    with pytest.raises(typer.Exit) as ended:
        refused()
    assert ended.value.exit_code == program.EXIT_REFUSED
    assert words in capsys.readouterr().err


# ---- what rescales leave behind --------------------------------------------------------------------------------------
CYCLES = 50


def series(threads: float = 0, fds: float = 0, kib: float = 0, at_start: int = 0) -> list[Footprint]:
    """Growth per cycle; ``at_start``: growth of everything, once, in the first cycles."""
    return [
        Footprint(
            threads=9 + int(threads * c) + (at_start if c else 0),
            fds=20 + int(fds * c) + (at_start if c else 0),
            private_kib=90_000 + int(kib * c) + (1000 * at_start if c else 0),
        )
        for c in range(0, CYCLES + 1, 5)
    ]


@pytest.mark.parametrize(
    ("samples", "names"),
    [
        (series(), []),
        (series(at_start=30), []),
        (series(threads=1), ["threads"]),
        (series(fds=0.2), ["fds"]),
        (series(kib=6), []),
        (series(kib=1200), ["private_kib"]),
    ],
    ids=["nothing", "pools", "a thread a cycle", "a descriptor every five", "torch's own growth", "a communicator"],
)
def test_growth_in_every_cycle_is_a_leak(samples: list[Footprint], names: list[str]) -> None:
    assert leaks(samples, CYCLES) == names


def test_a_single_jump_is_no_leak() -> None:
    calm = series()
    jump = [s.model_copy(update={"private_kib": 120_000}) if i == 6 else s for i, s in enumerate(calm)]
    assert leaks(jump, CYCLES) == []


def test_too_few_footprints_are_refused() -> None:
    with pytest.raises(ValueError, match="4 footprints, at least 5 are needed"):
        per_cycle(series()[:4], CYCLES)


def test_a_footprint_counts_descriptors_and_memory_of_a_process() -> None:
    before = footprint(os.getpid())
    with open("/dev/null"):  # noqa: PTH123
        assert footprint(os.getpid()).fds == before.fds + 1
    assert before.threads >= 1 and before.private_kib > 1000


def test_memory_is_not_judged_if_the_cycles_are_too_few_to_resolve_it() -> None:
    assert leaks(series(kib=1200), 10) == []
