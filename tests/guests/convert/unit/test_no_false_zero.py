"""Exit 0 only if each call, value and option is known: small programs, most of them in the shape of public ones.

``programs.txt``: *known*: converted without a note; *named*: a line is (*alone*: without --processes), for this reason;
*refused*: the script stays as it is, since a half conversion is none.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastrain_convert.conversion import Options, convert

PROGRAM = re.compile(r"======== (.*)\n-------- (\w+): ?(.*)\n")
PARTS = PROGRAM.split((Path(__file__).parent / "programs.txt").read_text())[1:]
PROGRAMS = {what: (kind, why, text) for what, kind, why, text in zip(*[iter(PARTS)] * 4, strict=True)}


@pytest.mark.parametrize("what", PROGRAMS)
def test_line_is_named_if_it_is_not_known_to_be_right(what):
    kind, why, text = PROGRAMS[what]
    conversion = convert(text, Options(processes=None if kind == "alone" else 2))
    assert bool(conversion.notes) == (kind != "known"), conversion.notes
    assert not why or any(why in note.why for note in conversion.notes), conversion.notes
    assert all(note.line <= text.count("\n") and note.way for note in conversion.notes)
    assert (conversion.after == text) == (kind == "refused")


@pytest.mark.parametrize(
    "line", ["rank, size = dist.get_rank(), dist.get_world_size()", "rank = size = dist.get_rank()"]
)
def test_targets_are_no_read_only_names_of_the_job(line):
    start, loop, rest = PROGRAMS["DDP"][2].partition("for epoch")
    conversion = convert(f"{start}{line}\n{loop}{rest}    if rank == 0:\n        print(size)\n", Options(processes=2))
    assert not re.search(r"job\.\w+[^=\n(]* = ", conversion.after)


def test_batch_of_accelerate_is_of_all_processes():
    assert "batch_size=2 * 4, shuffle=True" in convert(PROGRAMS["accelerate"][2], Options(processes=2)).after
