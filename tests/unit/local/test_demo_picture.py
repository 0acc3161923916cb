"""The picture at the end of the demo shows the run, in the terminal and in a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

from elastrain.api.records import Rescale

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def tour() -> Iterator[ModuleType]:
    """The demo's modules, importable as when ``demo.py`` runs."""
    sys.path.insert(0, str(EXAMPLES / "01-digits"))
    import tour

    yield tour
    sys.path.remove(str(EXAMPLES / "01-digits"))


def losses(folder: Path, name: str, lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"losses.{name}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def shown(tour: ModuleType, tmp_path: Path) -> object:
    """40 steps, one a second: one rank, three from step 11 on, two from step 31 on."""
    worlds = [1 if s <= 10 else 3 if s <= 30 else 2 for s in range(1, 41)]
    lines = [f"[{s}, {w}, {2.0 / s}, {1000 + s}]" for s, w in enumerate(worlds, 1)]
    storm = losses(tmp_path / "storm", "h.1", "\n".join(lines) + "\n[41, 2, 0.0")
    calm = losses(tmp_path / "calm", "h.2", "\n".join(f"[{s}, 1, {2.0 / s}]" for s in range(1, 41)) + "\n")

    def rescale(generation: int, before: int, after: int, reason: str, step: int, pause: float) -> Rescale:
        return Rescale(
            generation=generation, from_size=before, to_size=after, reason=reason, step=step, pause_seconds=pause
        )

    changes = [rescale(2, 1, 3, "Grow", 10, 0.061), rescale(3, 3, 2, "Drain", 30, 0.028)]
    return tour.Tour(tour.curves.read(calm), tour.curves.read(storm), changes)


@pytest.mark.parametrize("width", [60, 120])
def test_the_terminal_shows_sizes_and_pauses(tour: ModuleType, shown, width: int) -> None:
    console = Console(width=width, file=io.StringIO(), record=True, highlight=False)
    tour.show(shown, console)
    text = console.export_text()
    assert all(len(line) <= width for line in text.splitlines())
    ranks = next(line.split()[1] for line in text.splitlines() if line.strip().startswith("ranks"))
    assert "".join(dict.fromkeys(ranks)) == "132"
    assert "1 ▲   9.0 s  1 → 3 ranks (Grow): pause 61 ms" in text
    assert "2 ▼  29.0 s  3 → 2 ranks (Drain): pause 28 ms" in text


def test_two_runs_are_compared_step_by_step(shown) -> None:
    assert shown.apart == 0.0
    shown.calm.losses[7] += 0.25
    assert shown.apart == 0.25


def test_the_file_shows_them_too(tour: ModuleType, shown, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.svg"
    tour.draw(shown, picture, "a title")
    text = picture.read_text()
    assert all(f"<!-- {words} -->" in text for words in ("61 ms", "28 ms", "ranks that train", "a title"))
