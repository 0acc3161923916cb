"""Types of fields that need more than a bound, each with its rule as text and as CRD schema."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator, WithJsonSchema

from elastrain.api.base import rule_broken
from elastrain.api.settings import ALL
from elastrain_resource.accelerators import AUTO

_INT32_MAX = 2**31 - 1
_RESOURCE = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _ranks(value: Any) -> int | str:
    if value == AUTO:
        return AUTO
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INT32_MAX:
        raise rule_broken(f"must be a whole number from 1 to {_INT32_MAX}, or {AUTO}", value)
    return value


def _shards(value: Any) -> int | str:
    if value == ALL:
        return ALL
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _INT32_MAX:
        raise rule_broken(f"must be a whole number from 1 to {_INT32_MAX}, or {ALL}", value)
    return value


def _qualified(value: str) -> str:
    if not re.fullmatch(_RESOURCE, value):
        raise rule_broken("must be a name with a domain, such as nvidia.com/gpu or example.com/controller", value)
    return value


Nproc = Annotated[
    int | str,
    PlainValidator(_ranks),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": _INT32_MAX,
            "pattern": f"^{AUTO}$",
        }
    ),
]
"""A number of ranks, or ``auto``."""

Shards = Annotated[
    int | Literal["all"],
    PlainValidator(_shards),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": 1,
            "maximum": _INT32_MAX,
            "pattern": f"^{ALL}$",
        }
    ),
]
"""Ranks that hold one copy of the model together, or ``all`` of them."""


QualifiedName = Annotated[
    str, AfterValidator(_qualified), WithJsonSchema({"type": "string", "pattern": f"^{_RESOURCE}$", "maxLength": 317})
]
"""``domain/name``, as Kubernetes names resources and controllers."""
