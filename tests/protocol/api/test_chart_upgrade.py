"""From the previous chart to the present one, by its manifests: stored objects stay valid, old values are accepted.
(On a cluster, with jobs that train: e2e/test_release.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import Run

ROOT = Path(__file__).parents[3]
PREVIOUS = ROOT / "e2e/charts/previous.tgz"


@pytest.fixture(scope="module")
def before(helm: Run) -> list[dict[str, Any]]:
    """The previous chart's manifests."""
    made = helm("template", "demo", str(PREVIOUS), "--namespace=training", "--kube-version=1.35.0")
    assert made.returncode == 0, made.stderr
    return [document for document in yaml.safe_load_all(made.stdout) if document]


def crd(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [d for d in documents if d["metadata"]["name"] == "elastictrainingjobs.elastrain.dev"]
    return found


def stored(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (version,) = [v for v in crd(documents)["spec"]["versions"] if v["storage"]]
    return version


def narrowed(old: Any, new: Any, path: str) -> Iterator[str]:
    """Places at which ``new`` may refuse or prune a value that ``old`` allows."""
    for name in set(old.get("properties", {})) - set(new.get("properties", {})):
        if not new.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{path}.{name} is gone"
    if old.get("type") != new.get("type"):
        yield f"{path} was {old.get('type')} and is {new.get('type')}"
    if fresh := set(new.get("required", [])) - set(old.get("required", [])):
        yield f"{path} must have {', '.join(sorted(fresh))} now"
    if gone := set(old.get("enum", [])) - set(new.get("enum", old.get("enum", []))):  # without an enum, all is allowed
        yield f"{path} may not be {', '.join(map(str, sorted(gone)))} any more"
    if new.get("minimum", 0) > old.get("minimum", 0) or new.get("maximum", 2**63) < old.get("maximum", 2**63):
        yield f"{path} has narrower bounds"
    for name, schema in old.get("properties", {}).items():
        if name in new.get("properties", {}):
            yield from narrowed(schema, new["properties"][name], f"{path}.{name}")
    if isinstance(old.get("items"), dict):
        yield from narrowed(old["items"], new.get("items", {}), f"{path}[]")


def test_objects_of_the_previous_crd_are_valid_under_the_present_one(before, rendered) -> None:
    old, new = stored(before), stored(rendered())
    assert old["name"] == new["name"], "objects are stored in this version: another one needs a conversion"
    schemas = [version["schema"]["openAPIV3Schema"] for version in (old, new)]
    assert not list(narrowed(*schemas, ""))


def test_every_version_that_was_served_is_served(before, rendered) -> None:
    served = [{v["name"] for v in crd(d)["spec"]["versions"] if v["served"]} for d in (before, rendered())]
    assert served[0] <= served[1]


def test_immutable_fields_are_unchanged(before, rendered) -> None:
    def fixed(documents: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
        kinds = {"Deployment": ("selector",), "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates")}
        return {
            (d["kind"], d["metadata"]["name"]): {f: d["spec"].get(f) for f in kinds[d["kind"]]}
            for d in documents
            if d["kind"] in kinds
        }

    # Helm finds the running etcd, and keeps its form (test_chart_apiserver.py).
    old, new = fixed(before), fixed(rendered("etcd.replicas=1", "etcd.persistence.enabled=false"))
    assert {k: v for k, v in new.items() if k in old} == old, "the API server refuses such an upgrade"


def test_values_of_the_previous_chart_are_accepted_by_the_present_one(helm: Run) -> None:
    shown = helm("show", "values", str(PREVIOUS))
    known = helm("show", "values", "charts/elastrain")
    assert shown.returncode == known.returncode == 0

    def paths(value: Any, at: str = "") -> set[str]:
        if not isinstance(value, dict) or not value:
            return {at}
        return {p for k, v in value.items() for p in paths(v, f"{at}.{k}")}

    lost = paths(yaml.safe_load(shown.stdout)) - paths(yaml.safe_load(known.stdout))
    assert not lost, "the chart refuses these values by name: the changelog must give the replacement"
