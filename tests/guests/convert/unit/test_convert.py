"""The command `elastrain convert`: what it prints where, what it writes, how it exits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from elastrain_convert.app import convert_script
from elastrain_convert.conversion import convert

ZOO = Path(__file__).parents[4] / "examples" / "zoo"


@pytest.fixture
def script(tmp_path):
    def copied(name: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text((ZOO / name / "ddp.py").read_text())
        return path

    return copied


def run(path: Path, *, write: bool = False, processes: int | None = None) -> int:
    return convert_script(path, processes=processes, micro_batches=None, write=write)


def test_diff_is_printed_and_the_file_stays_if_writing_was_not_asked_for(script, capsys):
    path = script("mnist")
    before = path.read_text()
    assert run(path) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"--- {path}\n+++ {path}\n@@ ")
    assert err == f"Next: apply the diff (--write), then elastrain verify {path}\n"
    assert path.read_text() == before


def test_file_is_changed_if_asked_for(script, capsys):
    path = script("mnist")
    assert run(path, write=True) == 0
    assert "with elastrain.join() as job:" in path.read_text()
    assert run(path) == 2
    assert "calls elastrain.join() already" in capsys.readouterr().err


def test_exit_code_and_lines_say_if_a_person_is_needed(script, capsys):
    path = script("dcgan")
    assert run(path) == 1
    assert f"{path}:66: each rank draws for its part of the batch" in capsys.readouterr().err


def test_file_stays_if_its_loop_is_not_understood_or_the_conversion_fails(script, capsys, monkeypatch):
    for name, why in (("word_lm", "not converted: no change"), ("mnist", "a fault of elastrain convert: TypeError")):
        path = script(name)
        before = path.read_text()
        assert run(path, write=True) == 2
        assert why in capsys.readouterr().err
        assert path.read_text() == before
        monkeypatch.setattr("elastrain_convert.conversion.Loops", None)


@pytest.mark.parametrize(("text", "message"), [("for x in:", "line 1: not Python"), (None, "No such file")])
def test_file_is_refused_by_name_if_it_cannot_be_read(tmp_path, capsys, text, message):
    path = tmp_path / "train.py"
    if text is not None:
        path.write_text(text)
    assert run(path) == 2
    assert message in capsys.readouterr().err
    assert str(path) not in capsys.readouterr().out


# ---- long and deep scripts -------------------------------------------------------------------------------------------
LINES = {
    "assignments of one name": "x = x + {i}\n",
    "assignments of names to each other": "x = y\ny = x\n",
    "functions that call each other": "def f{i}(a):\n    return f{j}(a)\n",
    "ranks": "x = x + dist.get_rank()\n",
    "removed lines": "dist.barrier()\n\nx{i} = 1\n",
}


@pytest.mark.parametrize("lines", LINES)
def test_the_time_of_a_conversion_is_linear_in_the_length_of_the_script(lines: str) -> None:
    start = (Path(__file__).parents[4] / "examples/zoo/mnist/ddp.py").read_text()

    def seconds(count: int) -> float:
        text = start + "".join(LINES[lines].format(i=i, j=i - 1) for i in range(count))
        began = time.process_time()
        convert(text)
        return time.process_time() - began

    short = seconds(60)
    assert seconds(240) < 8 * short


@pytest.mark.parametrize("deep", ["x = " + "-" * 20_000 + "1", "x = a" + ".b" * 5000, "f" + "()" * 5000])
def test_a_deep_expression_is_a_message(deep: str) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        convert(f"import torch\n{deep}\n")
