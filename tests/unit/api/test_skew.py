"""Models that cross versions: what a newer version writes is decoded, and written back without loss.

The models are found by their base classes, and their values made from their fields: a new model is tested, too.
"""

from __future__ import annotations

import enum
import json
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import pytest
from pydantic import BaseModel, ValidationError

import builders
from elastrain.api import messages
from elastrain.api.base import Record, StatusModel, Unreadable
from elastrain.api.keys import JobKeys
from elastrain.api.records import UNREADABLE, Generation, Member, Outcome, Phase, Progress, Target, Termination, roster
from elastrain.etcd import KeyValue
from elastrain.jobstate import JobState
from elastrain_pairs import records as nodecheck
from elastrain_resource.job import status as statuses
from elastrain_resource.job.status import JobStatus

KEYS = JobKeys("ns", "job", "uid")
WORD = "WrittenByANewerVersion"
PLAIN = {"phases", "settings", "rescalingPhases"}
"""Fields that hold no model of this kind: numbers by name; settings, of which an agent refuses what it does not know
(decision 109)."""
MODULES = (messages, nodecheck, roster, statuses)
"""Their models are found by their base classes."""


def below(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for kind in base.__subclasses__():
        yield kind
        yield from below(kind)


def found_below(base: type[BaseModel]) -> list[type[BaseModel]]:
    found = {kind for kind in below(base) if kind.__module__.startswith(("elastrain.", "elastrain_resource."))}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


RECORDS, STATUS = found_below(Record), found_below(StatusModel)


def sample(hint: Any, metadata: tuple[Any, ...] = ()) -> Any:
    """A value of a type, as JSON."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return sample(args[0], args[1:])
    if origin in (Union, types.UnionType):
        return sample(next(a for a in args if a is not type(None)), metadata)
    if origin is Literal:
        return args[0]
    if origin is tuple and args[-1] is not ...:
        return [sample(a) for a in args]
    if origin in (tuple, list):
        return [sample(args[0])]
    if origin is dict:
        return {"connect": sample(args[1])}
    if issubclass(hint, BaseModel):
        return document(hint)
    if issubclass(hint, enum.Enum):
        return next(iter(hint)).value
    if hint is str:
        return "2030-01-01T00:00:00+00:00"  # also a name, and a path
    return hint(next((m.ge for m in metadata if isinstance(m, annotated_types.Ge)), 1))


def document(kind: type[BaseModel]) -> dict[str, Any]:
    """All fields of a model, as JSON."""
    found = {f.alias or name: sample(f.annotation, tuple(f.metadata)) for name, f in kind.model_fields.items()}
    if kind.__name__ in {"ArchiveSpec", "CheckpointSpec", "RankSettings"}:
        found |= {name: "/x" for name in ("path", "auditDir") if name in found}
    if kind.__name__ == "MeshDimension":
        found["name"] = "tp"
    return found


def words_of(hint: Any) -> bool:
    """Whether a type has a fixed set of words."""
    if get_origin(hint) is Literal:
        return len(get_args(hint)) > 1
    return (isinstance(hint, type) and issubclass(hint, enum.Enum)) or any(map(words_of, get_args(hint)))


def mappings(value: Any) -> list[dict[str, Any]]:
    """All mappings in a JSON value that are models."""
    if isinstance(value, dict):
        return [value, *(m for name, v in value.items() if name not in PLAIN for m in mappings(v))]
    return [m for v in value for m in mappings(v)] if isinstance(value, list) else []


def newer(kind: type[BaseModel], *, whole: bool) -> dict[str, Any]:
    """What a newer version writes: unknown fields in every model, unknown words; ``whole`` or without all that may be
    absent."""
    found = document(kind)
    for name, field in kind.model_fields.items():
        if not whole and not field.is_required():
            del found[field.alias or name]
        elif words_of(field.annotation):
            found[field.alias or name] = WORD
    for known in mappings(found):
        known |= {WORD: [{"a": 1}], "another": "text"}
    return found


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", RECORDS, ids=lambda k: f"{k.__module__.rsplit('.', 1)[-1]}.{k.__name__}")
def test_a_record_of_a_newer_version_is_decoded(kind, whole):
    assert kind.decode(json.dumps(newer(kind, whole=whole))).encode()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", STATUS, ids=lambda k: k.__name__)
def test_a_status_of_a_newer_version_is_decoded_and_written_back_without_loss(kind, whole):
    found = newer(kind, whole=whole)
    written = kind.model_validate(found).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written | found == written


def test_words_of_a_newer_version_are_kept():
    member = Member.decode(json.dumps({**document(Member), "phase": WORD}))
    assert (member.phase, Member.decode(member.encode())) == (WORD, member)
    ended = Termination.decode(json.dumps({**document(Termination), "outcome": WORD}))
    assert (ended.outcome, Termination.decode(ended.encode())) == (WORD, ended)
    assert Member.decode(json.dumps({**document(Member), "phase": "ready"})).phase is Phase.READY
    assert Termination.decode(json.dumps({**document(Termination), "outcome": "drained"})).outcome is Outcome.DRAINED


def test_a_generation_of_a_newer_leader_is_written_again_without_loss():
    """After a loss of etcd's data members write it."""
    raw = json.loads(builders.generation(1, *(f"job-{n}" for n in range(100))).encode())
    raw["topology"] = {"rings": 2}
    raw["members"][3]["rail"] = 7
    generation = Generation.decode(json.dumps(raw))
    assert json.loads(generation.encode()) == raw
    parts = [roster.Part.decode(part.encode()) for part in roster.split(generation)]
    again = roster.whole(Generation.decode(roster.header(generation).encode()), roster.join(parts))
    assert json.loads(again.encode()) == raw


@pytest.mark.parametrize("field", sorted(Progress.shown))
def test_a_field_that_is_only_shown_counts_as_absent_if_it_cannot_be_read(field):
    found = Progress.decode(json.dumps({**document(Progress), field: {"of": "another type"}}))
    assert getattr(found, field) == Progress.model_fields[field].get_default()
    assert found.finished is True


@pytest.mark.parametrize("field", ["finished", "step", "generation", "checkpoint"])
def test_a_record_is_unreadable_if_a_field_that_decides_cannot_be_read(field):
    with pytest.raises(Unreadable):
        Progress.decode(json.dumps({**document(Progress), field: ["of another type"]}))


@pytest.mark.parametrize("field", sorted(JobStatus.shown))
def test_a_part_of_the_status_that_is_only_shown_counts_as_absent_if_it_cannot_be_read(field):
    whole = document(JobStatus)
    assert JobStatus.read({**whole, field: "of another type"}).restarts == JobStatus.read(whole).restarts


@pytest.mark.parametrize(
    "status", [{"restarts": 3}, {"conditions": [{"type": "Failed"}]}, {"nextOrdinal": "x"}, ["x"], "x"]
)
def test_a_status_is_unreadable_if_a_part_that_decides_cannot_be_read(status):
    with pytest.raises(ValidationError):
        JobStatus.read(status)


# ---- the mirror of a job ---------------------------------------------------------------------------------------------
def put(state: JobState, key: str, value: bytes, revision: int = 5) -> None:
    state.put(key, KeyValue(key, value, revision, revision))


@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"id": 7}', b"\xff"])
def test_a_member_exists_although_its_record_cannot_be_read(damaged):
    state = JobState(KEYS)
    key = KEYS.member("job-0.abc")
    put(state, key, damaged)
    found = state.members["job-0.abc"].record
    assert (found.id, found.worker, found.phase, state.unreadable) == ("job-0.abc", "job-0", UNREADABLE, {key})
    state.put(key, None)
    assert (state.members, state.unreadable, state.is_empty) == ({}, set(), True)


def test_a_member_keeps_what_was_read_before_but_not_its_phase():
    state = JobState(KEYS)
    key, member = KEYS.member("job-0.a"), Member(id="job-0.a", worker="job-0", address="10.0.0.1", step=7, generation=3)
    put(state, key, member.model_copy(update={"phase": Phase.READY}).encode())
    put(state, key, b"{")
    assert state.members["job-0.a"].record == member.model_copy(update={"phase": UNREADABLE})
    put(state, key, member.encode())
    assert (state.members["job-0.a"].record, state.unreadable) == (member, set())


def test_other_records_are_readable_beside_a_member_of_a_newer_version():
    state = JobState(KEYS)
    put(state, KEYS.target, Target(min=1, max=2, desired=2).encode())
    put(state, KEYS.member("job-0.a"), json.dumps({**document(Member), "phase": WORD}).encode())
    assert (state.target.desired, state.unreadable) == (2, set())


# ---- messages between an agent and its ranks -------------------------------------------------------------------------
@pytest.mark.parametrize(("adapter", "known"), [(messages.RANK_MESSAGE, "adopted"), (messages.AGENT_MESSAGE, "abort")])
def test_a_message_of_an_unknown_type_is_none_and_a_damaged_one_an_error(adapter, known):
    assert messages.decode(adapter, json.dumps({"type": WORD, "generation": 1})) is None
    for damaged in (json.dumps({"type": known}), '{"generation": 1}', "{", "[]"):
        with pytest.raises(Unreadable):
            messages.decode(adapter, damaged)
