"""Holds a pod template against the pod API, as the models of Kubernetes' own client have it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from elastrain_resource.podfields import Raw, objects

_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_OWN_VOLUMES = ("elastrain-shm", "elastrain-etcd")
"""Volumes that the operator adds."""
_KINDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    dict: "a mapping",
    list: "a list",
}
_EXPECTED = {"str": str, "int": int, "float": float, "bool": bool}


def problems(template: Raw, path: str = "spec.template") -> Iterator[str]:
    """One line for each value that the pod API refuses: field, value, rule, way out.

    A field that the client does not know, and that resembles none, passes: a newer API server may have it.
    Raises ``ImportError`` without the package kubernetes.
    """
    from kubernetes.client import models

    yield from _of_type(models, "V1PodTemplateSpec", template, path)
    spec = template.get("spec")
    if isinstance(spec, Mapping):
        yield from _mounts(spec, f"{path}.spec")


def _of_type(models: Any, kind: str, value: Any, path: str) -> Iterator[str]:
    """Problems of a value whose type the client calls ``kind``."""
    if value is None or kind == "object":
        return
    if inner := re.fullmatch(r"[Ll]ist\[(.+)\]", kind):
        if not isinstance(value, list):
            yield _not(path, value, list)
            return
        for number, item in enumerate(value):
            yield from _of_type(models, inner[1], item, f"{path}[{number}]")
    elif inner := re.fullmatch(r"[Dd]ict[\[(]str, (.+)[\])]", kind):
        if not isinstance(value, Mapping):
            yield _not(path, value, dict)
            return
        for key, item in value.items():
            yield from _entry(models, inner[1], item, f"{path}[{key}]", path.rpartition(".")[2])
    elif kind in _EXPECTED:
        expected = _EXPECTED[kind]
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            yield _not(path, value, expected)
    elif hasattr(models, kind):
        yield from _of_model(models, getattr(models, kind), value, path)


def _entry(models: Any, kind: str, value: Any, path: str, of: str) -> Iterator[str]:
    """Problems of an entry of a mapping in the field ``of``: a quantity, or what its type says."""
    if of not in ("limits", "requests", "overhead"):
        yield from _of_type(models, kind, value, path)
    elif isinstance(value, bool) or not isinstance(value, int | float | str) or not _QUANTITY.fullmatch(str(value)):
        hint = f"; write {value[:-1]}" if isinstance(value, str) and _QUANTITY.fullmatch(value[:-1]) else ""
        yield f"{path}: {value!r}: must be a quantity, as 2, 500m or 10Gi{hint}"


def _of_model(models: Any, model: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield _not(path, value, dict)
        return
    kinds = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    for name, item in value.items():
        if name in kinds:
            yield from _of_type(models, kinds[name], item, f"{path}.{name}")
        elif near := difflib.get_close_matches(str(name), kinds, 1, 0.8):
            yield f"{path}.{name}: is no field of the pod API; did you mean {near[0]}?"


def _mounts(spec: Raw, path: str) -> Iterator[str]:
    """Mounts and devices of volumes that the pod does not have."""
    volumes = [*_OWN_VOLUMES, *(volume.get("name") for volume in objects(spec.get("volumes")))]
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(objects(spec.get(kind))):
            for field in ("volumeMounts", "volumeDevices"):
                for mount in objects(container.get(field)):
                    if (name := mount.get("name")) not in volumes:
                        yield f"{path}.{kind}[{number}].{field}: {name!r}: must be a volume of {path}.volumes"


def _not(path: str, value: Any, expected: type) -> str:
    quoted = f'; write "{str(value).lower() if isinstance(value, bool) else value}"'
    hint = quoted if expected is str and isinstance(value, int | float) else ""
    return f"{path}: {value!r}: must be {_KINDS[expected]}{hint}"
