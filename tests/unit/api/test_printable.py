"""Text of workers and of API objects cannot act on the terminal that shows it."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api.base import Unreadable
from elastrain.api.printable import printable, printable_json, printable_tree
from elastrain.api.records import Outcome, Termination

ATTACKS = {
    "title": "\x1b]0;root@prod\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "clear the screen": "\x1b[2J\x1b[H",
    "8-bit sequence": "\x9b2J",
    "overwritten line": "ok\rfailed",
    "backspaces": "rm\x08\x08ls",
    "reversed text": "\u202egnp.exe",
    "isolate": "\u2066a\u2069",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("colours", [False, True])
def test_nothing_that_acts_remains(attack: str, colours: bool):
    shown = printable(f"before {attack} after", colours=colours)
    assert not any(unicodedata.category(c) == "Cc" or unicodedata.bidirectional(c) in _MARKS for c in shown)
    assert shown.startswith("before ")
    assert shown.endswith(" after")


_MARKS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_what_was_removed_is_visible():
    assert printable("\x1b[2Ja\x7f\x9b") == "␛[2Ja␡\ufffd"


def test_colours_are_dropped_or_kept():
    assert printable("\x1b[1;31mred\x1b[0m \x1b[2J") == "red ␛[2J"
    assert printable("\x1b[1;31mred\x1b[0m \x1b[2J", colours=True) == "\x1b[1;31mred\x1b[0m ␛[2J"


@given(st.text())
def test_cleaning_again_changes_nothing(text: str):
    assert printable(printable(text)) == printable(text)


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_text_of_any_language_stays_as_it_is(text: str):
    assert printable(f"{text}\n\t") == f"{text}\n\t"


@given(st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_json_is_cleaned_as_its_tree_is(value):
    assert json.loads(printable_json(json.dumps(value))) == printable_tree(value)
    assert json.loads(printable_json(json.dumps(value, ensure_ascii=False).encode())) == printable_tree(value)


def test_a_record_of_a_worker_cannot_act():
    raw = Termination(outcome=Outcome.FAILED, message="\x1b]0;x\x07", log_tail="a\nb\x1b[2J").encode()
    read = Termination.decode(raw)
    assert (read.message, read.log_tail) == ("␛]0;x␇", "a\nb␛[2J")


@pytest.mark.parametrize("raw", [b"\xff\x1b", b'{"outcome": "\\ud800"}', b"{\x1b"])
def test_what_is_no_json_is_refused_by_its_reader(raw: bytes):
    with pytest.raises(Unreadable):
        Termination.decode(raw)
