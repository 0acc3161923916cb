"""Parses users' manifests: YAML text to an :class:`ElasticTrainingJob`, or a message that names the fault.

The rules are stricter than YAML's and pydantic's defaults, and as strict as ``kubectl apply --validate=strict``: no
duplicate key, no string in place of a number, no unknown field.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from elastrain.api import names
from elastrain.api.base import MOST_ERRORS
from elastrain_resource import podfields
from elastrain_resource.job import ElasticTrainingJob, trainer_container


class InvalidManifest(ValueError):
    """An invalid manifest. ``str()`` lists every problem, one per line.

    A problem reads ``field: value: rule``, as in ``spec.minReplicas: 5: must not be greater than maxReplicas (4)``.
    """

    verdict = f"not a valid {names.KIND}"

    def __init__(self, source: str, problems: Iterable[str]) -> None:
        self.source = source
        """The manifest's file, or another name for the text."""
        self.problems = tuple(problems)
        super().__init__("\n".join([f"{source}: {self.verdict}", *(f"  {p}" for p in self.problems)]))


class UnreadableManifest(InvalidManifest):
    """A file that is absent, is a directory, or may not be read."""

    verdict = "no manifest"


MOST_BYTES = 3 << 20
"""Of a manifest: an API server takes no larger request."""
MOST_NODES = 100_000
"""Of its YAML, each alias counted as what it stands for. A job of 256 KiB has fewer."""


def load(path: str | Path) -> ElasticTrainingJob:
    """The job in the file ``path``. Raises :class:`InvalidManifest`, also if the file is unreadable."""
    try:
        with Path(path).open("rb") as file:
            read = file.read(MOST_BYTES + 1)
        text = read.decode()
    except OSError as error:
        raise UnreadableManifest(str(path), [f"cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise InvalidManifest(
            str(path), [f"is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"]
        ) from error
    if len(read) > MOST_BYTES:
        raise InvalidManifest(str(path), [f"has more than {MOST_BYTES >> 20} MiB, which no API server takes"])
    return loads(text, source=str(path))


def loads(text: str, source: str = "manifest") -> ElasticTrainingJob:
    """The job in ``text``. Skips other documents (a PersistentVolumeClaim, for example).

    Raises :class:`InvalidManifest`; its message calls the text ``source``.
    """
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise InvalidManifest(source, [_yaml_problem(error)]) from error
    except RecursionError:
        raise InvalidManifest(source, ["is nested too deeply"]) from None
    job = _only_job(documents, source)
    try:
        as_json = json.dumps(job, allow_nan=False)
    except (TypeError, ValueError) as error:  # a recursive alias, .nan, !!binary
        raise InvalidManifest(source, [f"has no JSON form, which Kubernetes requires: {error}"]) from error
    try:
        # From JSON, since pydantic then checks types strictly but accepts strings for enums.
        return ElasticTrainingJob.model_validate_json(as_json, strict=True)
    except ValidationError as error:
        raise InvalidManifest(source, problems(error)) from error


def load_for_cluster(path: str | Path) -> ElasticTrainingJob:
    """As :func:`load`, also without the pod fields that the operator refuses. (Local mode ignores them.)"""
    job = load(path)
    template = job.spec.template
    if refused := podfields.refusals(template, str(trainer_container(template).get("name"))):
        raise InvalidManifest(str(path), refused)
    return job


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: a duplicate key is an error, and a date is a string. What aliases stand for is
    bounded, as kubectl bounds it."""

    def compose_document(self) -> yaml.Node | None:
        found = super().compose_document()
        if found is not None and _size(found, {}) > MOST_NODES:
            problem = f"has more than {MOST_NODES} values, each alias counted as what it stands for"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=found.start_mark)
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is not a string", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """Nodes that it stands for. An alias of a node around it counts as one: it has no JSON form."""
    if node not in known:
        known[node] = 1
        inner = [n for pair in node.value for n in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[node] += 0 if isinstance(node, yaml.ScalarNode) else sum(_size(n, known) for n in inner)
    return known[node]


def _yaml_problem(error: yaml.YAMLError) -> str:
    """The position and YAML's message, in one line."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"is not YAML: {' '.join(str(error).split())}"
    cause = ", ".join(part for part in (error.context, error.problem) if part)
    mark = error.problem_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {cause}"


def _only_job(documents: list[Any], source: str) -> dict[str, Any]:
    """The document of the job: the only document, or the only one of the kind."""
    if len(documents) > 1:
        of_kind = [d for d in documents if isinstance(d, dict) and d.get("kind") == names.KIND]
        if len(of_kind) != 1:
            raise InvalidManifest(source, [f"has {len(of_kind)} documents of kind {names.KIND}: must have one"])
        documents = of_kind
    if not documents:
        raise InvalidManifest(source, ["is empty"])
    if not isinstance(documents[0], dict):
        raise InvalidManifest(
            source, [f"{_shown(documents[0])}: must be a mapping with apiVersion, kind, metadata and spec"]
        )
    return documents[0]


def problems(error: ValidationError, *parents: str) -> list[str]:
    """Each error as :func:`problem` has it; very many are counted only, since each costs time and memory."""
    if (count := error.error_count()) > MOST_ERRORS:
        return [f"{_path(parents) or 'manifest'}: has {count} errors"]
    return [problem(e, *parents) for e in error.errors(include_url=False)]


def problem(error: ErrorDetails, *parents: str) -> str:
    """A validation error as ``field: value: rule``; ``parents``: the path of the validated value."""
    loc = (*parents, *error["loc"])
    path, context = _path(loc), error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{path}: missing: must be given"
        case "extra_forbidden":
            return f"{path}: {_shown(error['input'])}: unknown field{_suggestion(loc)}"
        case "rule":
            return f"{path}: {_shown(context['value'])}: {context['words']}"
        case kind if kind in _RULES:
            return f"{path}: {_shown(error['input'])}: {_RULES[kind].format(**context)}"
        case _:
            return f"{path}: {_shown(error['input'])}: {error['msg'][:1].lower()}{error['msg'][1:]}"


_RULES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "enum": "must be one of {expected}",
    "literal_error": "must be {expected}",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} items",
}
"""Pydantic's error types as this project's rules; ``{}`` comes from the error's context."""


def _path(loc: tuple[int | str, ...]) -> str:
    """``('spec', 'containers', 0, 'name')`` as ``spec.containers[0].name``."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _shown(value: Any) -> str:
    """A value in manifest form, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(loc: tuple[int | str, ...]) -> str:
    """The most similar known field, or the list of known fields."""
    *parents, unknown = loc
    model: type[BaseModel] = ElasticTrainingJob
    for part in parents:
        model = _model_of(model, part) if isinstance(part, str) else model
    known = [info.alias or name for name, info in model.model_fields.items()]
    near = difflib.get_close_matches(str(unknown), known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"


def _model_of(parent: type[BaseModel], alias: str) -> type[BaseModel]:
    """The model of the field ``alias`` of ``parent``, or of the items of a list there."""
    candidates = [next(info.annotation for info in parent.model_fields.values() if info.alias == alias)]
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
        candidates += get_args(candidate)
    raise TypeError(f"{parent.__name__}.{alias} has no model that could refuse a field")
