"""Shared base of the resource's models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Base: camelCase on the wire, snake_case in code, unknown fields refused, immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, Field(ge=0, le=2**31 - 1)]


def aware(text: str) -> str:
    """``text``, a point in time. Raises ``ValueError`` if it lacks a time zone."""
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("must name its time zone")
    return text


AwareTime = Annotated[str, AfterValidator(aware)]
"""A point in time, in RFC 3339 format."""
