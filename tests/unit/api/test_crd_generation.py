"""The generated CRD: consistent with the models, structural, and documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import BaseModel

from elastrain.api.job import CheckpointSpec, JobSpec, JobStatus
from elastrain.api.schema import crd as crd_module
from elastrain.api.schema.crd import CHART_FILE, CRD_FILE, crd, generated_files, to_chart_template, to_yaml
from elastrain.api.schema.structural import structural_schema

ROOT = Path(__file__).parents[3]
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]
STATUS = SCHEMA["properties"]["status"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside ``schema``, with its path."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from nodes(schema[keyword], f"{path}[]")


# ---- drift -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", [CRD_FILE, CHART_FILE], ids=str)
def test_committed_file_matches_the_models(path: Path) -> None:
    assert (ROOT / path).read_text() == generated_files()[path], "run `python -m elastrain.api.schema.crd --write`"


def test_check_names_each_file_if_the_models_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert crd_module.main(["--write"]) == 0
    assert crd_module.main(["--check"]) == 0
    (tmp_path / CRD_FILE).write_text("edited by hand")
    capsys.readouterr()
    assert crd_module.main(["--check"]) == 1
    assert (
        capsys.readouterr().err
        == f"{CRD_FILE}: differs from the models; run `python -m elastrain.api.schema.crd --write`\n"
    )


def test_crd_is_printed_if_no_option_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert crd_module.main([]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == crd()


def test_chart_template_is_refused_if_a_docstring_would_be_evaluated_by_helm() -> None:
    document = crd()
    document["spec"]["names"]["plural"] = "{{ .Values.x }}"
    with pytest.raises(ValueError, match="which Helm would evaluate"):
        to_chart_template(document)


def test_yaml_names_its_source() -> None:
    assert to_yaml(crd()).startswith("# Generated from trainer/elastrain/api/job/")


# ---- a structural schema ---------------------------------------------------------------------------------------------
def test_schema_has_only_what_a_structural_schema_may_have() -> None:
    allowed = {
        "type", "description", "default", "enum", "format", "required", "properties", "items", "additionalProperties",
        "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "pattern",
        "x-kubernetes-map-type",
    }  # fmt: skip
    for path, node in nodes(SCHEMA):
        if node.get("x-kubernetes-int-or-string"):
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert "type" not in node, path
            continue
        assert set(node) <= allowed, path
        assert isinstance(node["type"], str), path


def test_every_field_of_spec_and_status_is_described() -> None:
    for part in (SPEC, STATUS):
        for path, node in nodes(part):
            if not path.endswith("[]"):
                assert node.get("description"), f"{path} has no docstring"


def test_descriptions_are_plain_paragraphs() -> None:
    for path, node in nodes(SCHEMA):
        assert "``" not in node.get("description", ""), path
        assert "\n" not in node.get("description", ""), path


def test_schema_has_every_field_of_the_models() -> None:
    for model, schema in ((JobSpec, SPEC), (CheckpointSpec, SPEC["properties"]["checkpoint"]), (JobStatus, STATUS)):
        assert set(schema["properties"]) == {info.alias for info in model.model_fields.values()}


def test_counts_are_positive_and_fit_the_scale_subresource() -> None:
    for name in ("minReplicas", "maxReplicas", "replicas"):
        field = SPEC["properties"][name]
        assert (field["minimum"], field["maximum"], field["format"]) == (1, 2**31 - 1, "int32")


def test_every_string_list_and_number_of_a_spec_has_a_bound() -> None:
    bounds = {"string": {"maxLength", "enum", "pattern"}, "array": {"maxItems"}, "integer": {"maximum"}}
    for path, node in nodes(SPEC):
        assert node.get("type") not in bounds or set(node) & bounds[node["type"]], f"spec{path} has no bound"


def test_defaults_are_those_of_the_models() -> None:
    defaults = {name: field["default"] for name, field in SPEC["properties"].items() if "default" in field}
    assert defaults == {
        "minReplicas": 1,
        "warmSpares": 0,
        "nprocPerNode": 1,
        "shares": "Equal",
        "suspend": False,
        "protectState": True,
        "backoffLimit": 6,
        "infrastructureLimit": 20,
        "preemptionLimit": 100,
        "successPolicy": "RankZero",
        "maxUnavailable": 1,
        "nodeCooldownSeconds": 1800,
        "cleanPodPolicy": "Running",
    }
    assert SPEC["properties"]["checkpoint"]["properties"]["keep"]["default"] == 2


def test_status_has_no_rule_that_another_version_of_the_operator_could_break() -> None:
    for path, node in nodes(STATUS):
        takes_any_name = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
        assert takes_any_name or node["type"] != "object", path
        assert "default" not in node, path
        if path != ".conditions[]":
            assert "required" not in node, path


def test_rules_name_field_value_and_rule() -> None:
    for path, node in nodes(SCHEMA):
        for rule in node.get("x-kubernetes-validations", ()):
            assert {"rule", "message", "messageExpression"} <= set(rule), path
            assert "(%s)" in rule["messageExpression"], path
            assert "{" not in rule["message"], path


def test_columns_show_the_state_of_the_job() -> None:
    shown = [c["name"] for c in VERSION["additionalPrinterColumns"] if not c.get("priority")]
    assert shown == ["Phase", "Workers", "Desired", "Generation", "Step", "Reason", "Age"]


def test_columns_read_fields_that_exist() -> None:
    for column in VERSION["additionalPrinterColumns"]:
        path = re.sub(r"\[\?\(.*?\)\]", "", column["jsonPath"])  # one of a list
        node, (first, *rest) = SCHEMA, path.strip(".").split(".")
        if first == "metadata":
            continue
        for part in (first, *rest):
            node = node["properties"][part]
            node = node.get("items", node)
        assert node["type"] == column["type"], column


# ---- the converter ---------------------------------------------------------------------------------------------------
def test_converter_refuses_if_a_field_has_a_choice_of_types() -> None:
    class Choice(BaseModel):
        size: int | str

    with pytest.raises(ValueError, match=r"^Choice\.size: a structural schema cannot offer a choice of types"):
        structural_schema(Choice)


def test_converter_refuses_if_a_field_may_be_anything() -> None:
    class Anything(BaseModel):
        value: Any

    with pytest.raises(ValueError, match=r"^Anything\.value: a structural schema needs one type"):
        structural_schema(Anything)


def test_converter_keeps_the_fields_beside_a_reference() -> None:
    class Inner(BaseModel):
        """Of the class."""

        kind: Literal["a"] = "a"

    class Outer(BaseModel):
        model_config = {"use_attribute_docstrings": True}

        inner: Inner | None = None
        """Of the field,
        in ``two`` lines."""
        others: list[Inner] = []
        by_name: dict[str, int] = {}

    assert structural_schema(Outer)["properties"] == {
        "inner": {
            "type": "object",
            "description": "Of the field, in `two` lines.",
            "properties": {"kind": {"type": "string", "default": "a", "enum": ["a"]}},
        },
        "others": {
            "type": "array",
            "default": [],
            "items": {
                "type": "object",
                "description": "Of the class.",
                "properties": {"kind": {"type": "string", "default": "a", "enum": ["a"]}},
            },
        },
        "by_name": {"type": "object", "default": {}, "additionalProperties": {"type": "integer", "format": "int64"}},
    }
