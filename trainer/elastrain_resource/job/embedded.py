"""The parts of Kubernetes' own types inside a job: fields that elastrain reads are declared, all others pass through.

These parts stay plain dictionaries in code, since they go to the API server unchanged.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import core_schema

from elastrain.api import names
from elastrain.api.base import rule_broken
from elastrain_resource import rules


class Embedded(BaseModel):
    """Base: camelCase on the wire, unknown fields pass through."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True, use_attribute_docstrings=True
    )


class AsDict:
    """Annotation of a ``dict`` field: checked against ``model`` (errors name the path inside), kept as a dict."""

    def __init__(self, model: type[Embedded]) -> None:
        self.model = model

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(
            lambda checked: checked.model_dump(by_alias=True, exclude_unset=True),
            handler.generate_schema(self.model),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )


def _checked_name(name: str) -> str:
    if not rules.name_is_valid(name):
        raise rule_broken(rules.NAME.words, name)
    return name


class JobMeta(Embedded):
    """Metadata of a job."""

    name: Annotated[str, AfterValidator(_checked_name)]
    namespace: str | None = None


Argument = Annotated[str, Field(max_length=131072)]
"""One argument of a command: as long as Linux passes on."""


class Container(Embedded):
    """A container of the worker pods; all fields of Kubernetes' own Container are allowed."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The container named `trainer`, else the first one, runs the training command."""
    image: Annotated[str, Field(min_length=1, max_length=4096)]
    """Image with elastrain installed (for the training container). Local mode ignores it."""
    command: Annotated[list[Argument], Field(max_length=1024)] | None = None
    """The training command, such as `["python", "train.py"]`. The training container must have one."""


class PodSpec(Embedded):
    """Pod spec of a worker; all fields of Kubernetes' own PodSpec are allowed."""

    containers: Annotated[list[Container], Field(min_length=1, max_length=32)]
    """The containers of a worker. The one named `trainer`, else the first, runs the training command."""

    @field_validator("containers")
    @classmethod
    def _names_differ_and_trainer_has_a_command(cls, containers: list[Container]) -> list[Container]:
        given = [c.name for c in containers]
        if twice := next((name for name in given if given.count(name) > 1), None):
            raise rule_broken("must be a different name for each container", twice)
        trainer = containers[given.index(names.TRAINER_CONTAINER) if names.TRAINER_CONTAINER in given else 0]
        if not trainer.command:
            raise rule_broken(rules.TRAINER_HAS_COMMAND.words, trainer.name)
        return containers


class PodTemplateMeta(Embedded):
    """Metadata of worker pods."""

    labels: dict[str, Annotated[str, Field(max_length=63)]] | None = None
    """Labels of worker pods, in addition to elastrain's own."""
    annotations: dict[str, Annotated[str, Field(max_length=262144)]] | None = None
    """Annotations of worker pods."""


class PodTemplate(Embedded):
    """Pod template of a worker."""

    metadata: PodTemplateMeta | None = None
    """Labels and annotations of worker pods; elastrain sets the pods' names."""
    spec: PodSpec
    """Pod spec of a worker; all fields of Kubernetes' own PodSpec are allowed."""
