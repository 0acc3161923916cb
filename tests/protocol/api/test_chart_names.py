"""Names of the chart's objects leave room for what Kubernetes' controllers append, whatever the release is called."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from charts import Run

LABEL = 63
"""Most characters of a label's value, and of a Service's name."""
APPENDED = {"StatefulSet": 11, "Deployment": 0, "Service": 0}
"""What a controller appends: ``-<revision>`` of ten characters, in a label of the pods of a StatefulSet. A Deployment
appends to names of pods only, which may be longer."""


def objects(helm: Run, release: str, *settings: str) -> list[dict[str, Any]]:
    values = [option for setting in ("dashboard.enabled=true", *settings) for option in ("--set", setting)]
    result = helm("template", release, "charts/elastrain", "--namespace=training", "--kube-version=1.34.0", *values)
    assert result.returncode == 0, result.stderr
    return [m for m in yaml.safe_load_all(result.stdout) if m]


@pytest.mark.parametrize("length", [1, 37, 38, 45, 53])
def test_every_name_has_room_for_what_is_appended_at_any_length_of_the_release(helm: Run, length: int) -> None:
    made = objects(helm, "r" * length)
    named = [(m["kind"], m["metadata"]["name"]) for m in made if m["kind"] in APPENDED]
    assert {"StatefulSet", "Deployment", "Service"} <= {kind for kind, _ in named}
    assert [f"{k} {n}" for k, n in named if len(n) + APPENDED[k] > LABEL] == []


def test_two_long_releases_share_no_name(helm: Run) -> None:
    one, two = ({(m["kind"], m["metadata"]["name"]) for m in objects(helm, "r" * 52 + end)} for end in "ab")
    assert {name for kind, name in one & two if kind != "CustomResourceDefinition"} == set()


def test_name_of_one_own_that_is_too_long_is_refused(helm: Run) -> None:
    words = ("template", "r", "charts/elastrain", "--kube-version=1.34.0", "--set")
    assert helm(*words, f"fullnameOverride={'n' * 47}").returncode == 0
    refused = helm(*words, f"fullnameOverride={'n' * 48}")
    assert refused.returncode != 0
    assert "47" in refused.stderr
