"""The shape of a pod template, as far as the operator reads it. The API server validates the rest.

The CRD does not check the fields of a template. A field of the wrong type is refused here, with field, value and rule,
before other code reads it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError
from pydantic.alias_generators import to_camel

from elastrain.api.base import rule_broken
from elastrain_resource import manifest


def _quantity(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise rule_broken("must be a quantity, such as 2 or 16Gi", value)
    return value


Fields = dict[str, Any]
Quantity = Annotated[Any, AfterValidator(_quantity)]


class _Shape(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="allow")


class _Variable(_Shape):
    name: str


class _Capabilities(_Shape):
    add: list[str] | None = None
    drop: list[str] | None = None


class _SecurityContext(_Shape):
    privileged: StrictBool | None = None
    run_as_user: StrictInt | None = None
    capabilities: _Capabilities | None = None


class _Resources(_Shape):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None


class _Container(_Shape):
    name: str
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None
    ports: list[Fields] | None = None
    resources: _Resources | None = None
    security_context: _SecurityContext | None = None
    volume_mounts: list[Fields] | None = None


class _Term(_Shape):
    match_fields: list[Fields] | None = None


class _Required(_Shape):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(_Shape):
    required_during_scheduling_ignored_during_execution: _Required | None = None


class _Affinity(_Shape):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(_Shape):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resources: _Resources | None = None
    volumes: list[Fields] | None = None
    security_context: _SecurityContext | None = None
    termination_grace_period_seconds: Annotated[StrictInt, Field(ge=0, le=2**63 - 1)] | None = None
    affinity: _Affinity | None = None
    node_selector: dict[str, str] | None = None
    tolerations: list[Fields] | None = None
    topology_spread_constraints: list[Fields] | None = None


class _Metadata(_Shape):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class _Template(_Shape):
    metadata: _Metadata | None = None
    spec: _PodSpec


def problems(template: Fields) -> tuple[str, ...]:
    """The problems of ``spec.template``, one ``field: value: rule`` each; none if it can be rendered."""
    try:
        _Template.model_validate(template)
    except ValidationError as error:
        return tuple(manifest.problems(error, "spec", "template"))
    return ()
