"""``--help``: in the width of the terminal, one sentence for each command, without Python types."""

from __future__ import annotations

import re
import sys

import pytest
import typer
from typer.testing import CliRunner

from elastrain_cli.cluster import app as plugin
from elastrain_cli.main import PANELS, app
from elastrain_cli.shell.guests import GuestCommand, actual
from elastrain_cli.shell.manual import first_sentence, flowing

WIDE = {"COLUMNS": "120", "TERMINAL_WIDTH": "120", "NO_COLOR": "1"}
COMMANDS = dict(sorted(typer.main.get_command(app).commands.items()))  # type: ignore[attr-defined]


def shown(*words: str, program: typer.Typer = app) -> str:
    result = CliRunner().invoke(program, [*words, "--help"], env=WIDE)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_no_help_mentions_python_types(command: str) -> None:
    assert not re.search(r"<(bool|str|int|path|list|float)|\{\w+\}", shown(command))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_panel_and_one_sentence_that_fits_two_lines(command: str) -> None:
    found = COMMANDS[command]
    assert found.rich_help_panel in PANELS
    assert found.short_help[-1] in ".?"
    assert len(found.short_help) < 120
    assert "\n" not in found.short_help


@pytest.mark.parametrize("command", ["", *(name for name in COMMANDS if name != "completion")])  # it names paths
def test_no_example_wraps_in_a_terminal_of_80_columns(command: str) -> None:
    text = actual(COMMANDS[command]).help if command else app.info.help
    examples = [line for line in flowing(text).splitlines() if line.startswith("    ")]
    assert [line for line in examples if len(line) > 78] == []


@pytest.mark.parametrize("command", [name for name, found in COMMANDS.items() if isinstance(found, GuestCommand)])
def test_a_guest_is_listed_with_the_first_sentence_of_its_own_help(command: str) -> None:
    assert COMMANDS[command].short_help == actual(COMMANDS[command]).short_help


def test_a_guest_s_extra_is_named_if_a_package_of_it_is_missing(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "elastrain_convert.app", None)
    monkeypatch.setattr(sys, "argv", ["elastrain", "convert", "train.py"])
    with pytest.raises(SystemExit) as leaving:
        plugin.start(app, "elastrain")
    assert leaving.value.code == 2
    assert f"{sys.executable} -m pip install 'libcst>=" in capsys.readouterr().err


def test_commands_for_this_machine_come_first_and_those_of_the_operator_last() -> None:
    top = shown()
    assert sorted(PANELS, key=lambda panel: top.index(f"─ {panel} ─")) == list(PANELS)


def test_the_plugin_lists_the_same_commands_without_panels() -> None:
    top = shown(program=plugin.app)
    assert "submit" in top
    assert not any(f"─ {panel} ─" in top for panel in PANELS)


def test_the_usage_line_can_be_typed() -> None:
    assert "elastrain scale [OPTIONS] JOB REPLICAS" in shown("scale")
    assert "elastrain status [OPTIONS] [JOB]" in shown("status")
    assert "elastrain submit [OPTIONS] FILE [-- ARG...]" in shown("submit")


def test_a_paragraph_loses_its_line_breaks_and_examples_keep_theirs() -> None:
    assert flowing("One\n    two.\n\n    For\n    example:\n\n        a b\n        c") == (
        "One two.\n\nFor example:\n\n    a b\n    c"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Do it.", "Do it."),
        ("Is it so? Exit code 1 if not.", "Is it so?"),
        ("Look at /dev/shm, v1.2 too. More.\n\nAnd more.", "Look at /dev/shm, v1.2 too."),
    ],
)
def test_of_a_docstring_the_first_sentence_is_listed(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scale", "digits", "four"], "Invalid value for 'REPLICAS': four: must be a whole number"),
        (["logs", "digits", "--tail", "x"], "Invalid value for '--tail': x: must be a whole number"),
        (["preflight", "--timeout", "x"], "Invalid value for '--timeout': x: must be a number"),
        (["list", "-o", "xml"], "Invalid value for '--output' / '-o': 'xml' is not one of 'table'"),
    ],
)
def test_a_refused_value_is_named_with_its_rule(words: list[str], told: str) -> None:
    result = CliRunner().invoke(app, words, env=WIDE)
    assert result.exit_code == 2
    assert told in result.stderr
