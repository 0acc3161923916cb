"""The parts of Kubernetes' own types that a job embeds: what elastrain reads is spelt out, the rest passes through.

In code these parts stay plain dictionaries, since they go on to the API server as they came.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, core_schema

from elastrain.api import names, rules


def rule_broken(words: str, value: Any) -> PydanticCustomError:
    """The error of a validator that found a rule broken: the rule in words, and the value to show for the field."""
    return PydanticCustomError("rule", "{words}", {"words": words, "value": value})


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


class Container(Embedded):
    """A container of the worker pods; all fields of Kubernetes' own Container are allowed."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """The container named `trainer`, else the first one, runs the training command."""
    image: Annotated[str, Field(min_length=1)]
    """Image with elastrain installed (for the container that trains). Local mode does not use it."""
    command: Annotated[list[str], Field(max_length=1024)] | None = None
    """The training command, as in `["python", "train.py"]`. The container that trains must have one."""


class PodSpec(Embedded):
    """Pod spec of a worker; all fields of Kubernetes' own PodSpec are allowed."""

    containers: Annotated[list[Container], Field(min_length=1, max_length=32)]
    """The containers of a worker. One of them trains: the one named `trainer`, else the first."""

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
    """Metadata given to worker pods."""

    labels: dict[str, str] | None = None
    """Labels given to worker pods, beside those that elastrain sets."""
    annotations: dict[str, str] | None = None
    """Annotations given to worker pods."""


class PodTemplate(Embedded):
    """Pod template of a worker."""

    metadata: PodTemplateMeta | None = None
    """Labels and annotations given to worker pods; their names are set by elastrain."""
    spec: PodSpec
    """Pod spec of a worker; all fields of Kubernetes' own PodSpec are allowed."""
