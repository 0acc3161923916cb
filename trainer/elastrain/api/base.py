"""Shared bases: of the models of the resource and of the settings made from it, and of the records in etcd."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, from_json, to_json

from elastrain.api.printable import printable_json


class ApiModel(BaseModel):
    """Base: camelCase on the wire, snake_case in code, unknown fields refused, immutable.

    ``model_validate(..., extra="allow")`` reads what a newer version has written: unknown fields are kept and dumped.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    @model_serializer(mode="wrap")
    def _with_unknown_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**dump(self), **(self.__pydantic_extra__ or {})}


class StatusModel(ApiModel):
    """Base of the status. Unknown fields and words are those of a newer operator: they are kept, and written back."""

    model_config = ConfigDict(extra="allow")


MOST_ERRORS = 100
"""With more errors none is looked at: each costs time and memory, and a value can have one for each 2 bytes."""

T = TypeVar("T")
Many = Annotated[tuple[T, ...], FailFast(), Field(max_length=1 << 16)]
"""The items of a record. Its first wrong item is the only error."""
Few = Annotated[tuple[T, ...], FailFast(), Field(max_length=64)]
"""A bounded number of them, for what is shown."""
Text = Annotated[str, BeforeValidator(lambda value: value[:4096] if isinstance(value, str) else value)]
"""Words of a record: a longer text is cut. Any other string of a record is a name or a path, and too long is wrong."""


class Unreadable(ValueError):
    """A record cannot be read. The text is bounded, whatever the record holds."""


def first_error(error: ValidationError) -> str:
    """The first error with its field, without the value, and the number of errors: at most 300 characters."""
    count = error.error_count()
    if count > MOST_ERRORS:
        return f"{count} errors"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:40] for part in first["loc"])
    return f"{place}: {first['msg']}"[:280] + (f" ({count} errors)" if count > 1 else "")


class Record(BaseModel):
    """Base of all records: immutable, snake_case, tolerant of unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", str_max_length=4096)

    shown: ClassVar[frozenset[str]] = frozenset()
    """Fields from which no decision follows: one that cannot be read counts as absent."""

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def decode(cls, raw: bytes | str) -> Self:
        """Texts are :func:`printable`. Raises :class:`Unreadable` if a field cannot be read that is not only shown."""
        raw = printable_json(raw)
        try:
            return cls.model_validate_json(raw)
        except ValidationError as error:
            wrong = wrong_fields(error)
            if not wrong <= cls.shown:
                raise Unreadable(first_error(error)) from None
            fields = from_json(raw)
            return cls.decode(to_json({name: fields[name] for name in fields.keys() - wrong}))


def wrong_fields(error: ValidationError) -> set[int | str]:
    """The fields with errors; empty words: the whole, or too many to tell."""
    if error.error_count() > MOST_ERRORS:
        return {""}
    return {e["loc"][0] if e["loc"] else "" for e in error.errors(include_url=False, include_input=False)}


def rule_broken(words: str, value: Any) -> PydanticCustomError:
    """A validator's error for a broken rule: the rule's text, and the value to show for the field."""
    return PydanticCustomError("rule", "{words}", {"words": words, "value": value})


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]


def aware(text: str) -> str:
    """``text``, a point in time. Raises ``ValueError`` if it lacks a time zone."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("must name its time zone")
    return text


AwareTime = Annotated[str, AfterValidator(aware)]
"""A point in time, in RFC 3339 format."""
