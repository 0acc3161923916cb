"""The formatting of log lines by ``elastrain logs``."""

from __future__ import annotations

import json

import pytest

from elastrain_cli.cluster.logline import readable

TOLD = {"level": "info", "logger": "elastrain.agent.presence", "timestamp": "2026-11-22T01:56:49.840741Z"}


def test_an_agents_log_line_reads_as_a_sentence():
    said = {"number": 2, "reason": "Grow", "workers": ["shown-0", "shown-1"], "event": "generation", **TOLD}
    line = readable(json.dumps(said))
    assert line.plain == "agent 01:56:49 generation  number=2 reason=Grow workers=shown-0,shown-1"
    assert line.style == "dim"


def test_a_value_of_several_words_is_quoted():
    said = {"event": "member", "why": "no answer", "pids": {"0": 27}, **TOLD}
    assert readable(json.dumps(said)).plain == 'agent 01:56:49 member  why="no answer" pids={"0":27}'


@pytest.mark.parametrize(("level", "style"), [("warning", "yellow"), ("error", "bold red")])
def test_warnings_and_errors_stand_out(level, style):
    assert readable(json.dumps(TOLD | {"event": "rank ended", "level": level})).style == style


def test_a_trace_follows_on_lines_of_its_own():
    said = TOLD | {"event": "membership step failed", "level": "error", "exception": "Traceback:\n  boom"}
    assert readable(json.dumps(said)).plain.splitlines()[1:] == ["Traceback:", "  boom"]


@pytest.mark.parametrize(
    "printed",
    [
        "step 12 loss 0.31",
        "{not json",
        '["a", "list"]',
        '{"event": "epoch", "loss": 0.3}',
        '{"event": "epoch", "level": "info", "logger": "my.script", "timestamp": "2026-11-22T01:56:49Z"}',
        '{"event": 1, "level": "info", "logger": "elastrain.agent", "timestamp": "2026-11-22T01:56:49Z"}',
        "",
    ],
)
def test_a_scripts_output_is_unchanged(printed):
    assert readable(printed).plain == printed


def test_a_scripts_colours_stay():
    line = readable("\x1b[31mred\x1b[0m")
    assert (line.plain, str(line.spans[0].style)) == ("red", "color(1)")
