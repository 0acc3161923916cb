"""What a record costs that cannot be read: a bounded number of errors and of characters, whatever it holds."""

from __future__ import annotations

import inspect
import json
import logging
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from budgets import examples
from elastrain.api import records
from elastrain.api.base import MOST_ERRORS, Record, Unreadable
from elastrain.api.keys import JobKeys
from elastrain.api.records import Progress, roster
from elastrain.etcd import KeyValue
from elastrain.jobstate import JobState, decode_record

JOB = JobKeys("ns", "job", "uid")
KINDS = [k for k in vars(records).values() if inspect.isclass(k) and issubclass(k, Record)] + [roster.Part]
MANY = 500
MEMBER = {"id": "a", "worker": "a", "address": "", "store_port": 1, "rank_offset": 0}
BOMBS = {
    "numbers": [0] * MANY, "lists": [[]] * MANY, "objects": [{}] * MANY, "texts": ["x"] * MANY,
    "fields": {str(n): "x" for n in range(MANY)}, "text": "x" * MANY * 20, "name of a field": {"x" * MANY * 20: {}},
    "number": 10**4000, "nothing": None,
}  # fmt: skip


def models_in(annotation: object) -> list[type[Record]]:
    found = [annotation] if inspect.isclass(annotation) and issubclass(annotation, Record) else []
    return [*found, *(model for part in get_args(annotation) for model in models_in(part))]


def placed(kind: type[Record], bomb: object) -> list[dict]:
    """The bomb in each field of a record, and in each field of the records in it."""
    made = []
    for name, info in kind.model_fields.items():
        made.append({name: bomb})
        for inner in models_in(info.annotation):
            listed = get_origin(info.annotation) is tuple
            made += [{name: [deep] * 3 if listed else deep} for deep in placed(inner, bomb)]
    return made


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_and_words_about_a_record_are_bounded_wherever_its_content_is_wrong(kind, bomb, caplog):
    for fields in placed(kind, BOMBS[bomb]):
        raw = json.dumps(fields).encode()
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            decode_record(kind, KeyValue(JOB.target, raw, 1, 1))
        assert sum(len(line.getMessage()) for line in caplog.records) < 500
        if (error := error_of(kind, raw)) is not None:
            assert error.error_count() <= MOST_ERRORS


def error_of(kind: type[Record], raw: bytes) -> ValidationError | None:
    try:
        kind.model_validate_json(raw)
    except ValidationError as error:
        return error
    return None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def fields_of(kind: type[Record]) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(kind.model_fields, JSON))


@given(st.sampled_from(KINDS).flatmap(lambda k: st.tuples(st.just(k), fields_of(k))))
@examples(200)
def test_a_record_of_any_content_is_read_or_refused_in_bounded_words(case):
    kind, fields = case
    try:
        kind.decode(json.dumps(fields))
    except Unreadable as error:
        assert len(str(error)) <= 300


def test_the_first_error_is_named_with_its_field_and_the_number_of_errors():
    with pytest.raises(Unreadable, match=r"^generation: Field required \(4 errors\)$"):
        Progress.decode("{}")
    with pytest.raises(Unreadable, match=r"^members\.3: Input should be an object$"):
        roster.Part.decode(json.dumps({"members": [MEMBER, MEMBER, MEMBER, 0, 0]}))


def test_words_are_cut_and_names_are_refused_if_they_are_too_long():
    saved = '{"generation":1,"world_size":1,"members":1,"step":1,"checkpoint":{"error":"%s","path":"%s"}}'
    assert len(Progress.decode(saved % ("e" * 100_000, "p")).checkpoint.error) == 4096
    with pytest.raises(Unreadable, match="at most 4096 characters"):
        Progress.decode(saved % ("e", "p" * 5000))


def test_names_of_stragglers_are_bounded_since_the_status_shows_them():
    read = Progress.decode(
        json.dumps({"generation": 1, "world_size": 1, "members": 1, "step": 1, "stragglers": ["x" * 490_000]})
    )
    assert read.stragglers == ()


def test_the_records_of_a_job_name_an_unreadable_one_and_go_on():
    state = JobState(JOB)
    state.put(JOB.progress, KeyValue(JOB.progress, json.dumps({"step": [0] * MANY}).encode(), 1, 1))
    state.put(JOB.owner, KeyValue(JOB.owner, b"here", 1, 1))
    assert (state.unreadable, state.owner) == ({JOB.progress}, b"here")
