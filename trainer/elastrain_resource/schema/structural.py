"""Converts a pydantic model to a structural schema, the subset of OpenAPI v3 for CustomResourceDefinitions.

Pydantic emits ``$ref``, ``anyOf`` with null, ``title``, ``const`` and ``additionalProperties: false``; the API server
accepts none of these. (The last one is unnecessary: the API server prunes unknown fields, and refuses them under strict
validation.)
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_INT32_MAX = 2**31 - 1
_INT_OR_STRING = "x-kubernetes-int-or-string"
"""Kubernetes' only choice of types; a field declares it in its JSON schema."""
_KEPT = (
    "type", "description", "default", "enum", "pattern", "format", "required",
    "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
)  # fmt: skip


def structural_schema(model: type[BaseModel]) -> Schema:
    """The structural schema of ``model`` in wire form (camelCase), with docstrings as descriptions.

    An optional field loses its null: a manifest expresses "none" by absence. A model that allows extra fields keeps
    unknown ones. Raises ``ValueError`` with the path of a construct that a structural schema cannot express (a real
    union, for example).
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}), model.__name__)


def _structural(schema: Schema, defs: dict[str, Schema], path: str) -> Schema:
    if schema.get(_INT_OR_STRING):
        kept = {key: schema[key] for key in (*_KEPT, "anyOf", _INT_OR_STRING) if key in schema}
        return kept | ({"description": _plain(kept["description"])} if "description" in kept else {})
    schema = _resolved(schema, defs, path)
    out = {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        out["enum"] = [schema["const"]]
    if "description" in out:
        out["description"] = _plain(out["description"])
    if out.get("type") == "integer":
        out["format"] = "int32" if out.get("maximum") == _INT32_MAX else "int64"
    if out.get("default", "") is None:
        del out["default"]
    if "items" in schema:
        out["items"] = _structural(schema["items"], defs, f"{path}[]")
    if "properties" in schema:
        out["properties"] = {k: _structural(v, defs, f"{path}.{k}") for k, v in schema["properties"].items()}
    extra = schema.get("additionalProperties", False)
    if extra is True:
        out["x-kubernetes-preserve-unknown-fields"] = True
    elif extra:
        out["additionalProperties"] = _structural(extra, defs, f"{path}.*")
    if "type" not in out:
        raise ValueError(f"{path}: a structural schema needs one type, but pydantic emits {schema}")
    return out


def _resolved(schema: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """``schema`` without ``$ref`` and without a null alternative. Keys beside them (a field's own description, its
    default) take precedence."""
    own = {k: v for k, v in schema.items() if k not in ("$ref", "anyOf")}
    if "anyOf" in schema:
        others = [s for s in schema["anyOf"] if s.get("type") != "null"]
        if len(others) != 1:
            raise ValueError(f"{path}: a structural schema cannot offer a choice of types: {schema['anyOf']}")
        return _resolved(others[0] | own, defs, path)
    if "$ref" in schema:
        return _resolved(defs[schema["$ref"].removeprefix("#/$defs/")] | own, defs, path)
    return own


def _plain(docstring: str) -> str:
    """A docstring as ``kubectl explain`` should show it: one paragraph, code in single backticks."""
    return " ".join(docstring.replace("``", "`").split())
