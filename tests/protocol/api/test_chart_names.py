"""Names of the chart's objects: room for what Kubernetes' controllers append, and no name that two releases share."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from budgets import at_night
from charts import Run

LABEL = 63
"""Most characters of a label's value, and of a Service's name."""
APPENDED = {"StatefulSet": 11, "Deployment": 0, "Service": 0}
"""What a controller appends: ``-<revision>`` of ten characters, in a label of the pods of a StatefulSet. A Deployment
appends to names of pods only, which may be longer."""


ALL = (
    "dashboard.enabled=true",
    "kueue.enabled=true",
    "gang.scheduler=volcano",
    "workers.networkPolicy.namespaces={team-a}",
)
"""All that creates objects outside the namespace of the release."""
SHARED = {"CustomResourceDefinition"}
"""Of the cluster, whoever installs it."""


def objects(helm: Run, release: str, *settings: str, namespace: str = "training") -> list[dict[str, Any]]:
    values = [option for setting in (*ALL, *settings) for option in ("--set", setting)]
    where = f"--namespace={namespace}"
    result = helm("template", release, "charts/elastrain", where, "--kube-version=1.34.0", *values)
    assert result.returncode == 0, result.stderr
    return [m for m in yaml.load_all(result.stdout, yaml.CSafeLoader) if m and m["kind"] not in SHARED]


def places(made: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """(kind, namespace, or empty for an object of the cluster, name)."""
    return {(m["kind"], m["metadata"].get("namespace", ""), m["metadata"]["name"]) for m in made}


@pytest.mark.parametrize("length", [1, 37, 38, 45, 53])
def test_every_name_has_room_for_what_is_appended_at_any_length_of_the_release(helm: Run, length: int) -> None:
    made = objects(helm, "r" * length)
    named = [(m["kind"], m["metadata"]["name"]) for m in made if m["kind"] in APPENDED]
    assert {"StatefulSet", "Deployment", "Service"} <= {kind for kind, _ in named}
    assert [f"{k} {n}" for k, n in named if len(n) + APPENDED[k] > LABEL] == []


def test_two_long_releases_share_no_name(helm: Run) -> None:
    one, two = (places(objects(helm, "r" * 52 + end)) for end in "ab")
    assert one & two == set()


@pytest.mark.parametrize(
    "settings", [(), *at_night((("watchNamespaces={team-a,team-b}",),), (("fullnameOverride=own",),))]
)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("elastrain", "blue"), ("elastrain", "green")),
        (("r" * 53, "n" * 62 + "a"), ("r" * 53, "n" * 62 + "b")),
        (("elastrain", "view-x"), ("elastrain-view", "x")),
        (("elastrain", "x"), ("elastrain", "x-view")),
    ],
    ids=["one name", "long names", "joined alike", "a suffix as namespace"],
)
def test_two_releases_in_two_namespaces_share_no_name(
    helm: Run, one: tuple[str, str], two: tuple[str, str], settings: tuple[str, ...]
) -> None:
    made = [objects(helm, release, *settings, namespace=namespace) for release, namespace in (one, two)]
    first, second = (places(found) for found in made)
    assert {place for place in first if place[1] in ("", "kube-system")}, "objects outside the release's namespace"
    assert first & second == set()
    assert max(len(name) for _, _, name in first) <= 253


def test_name_of_one_own_that_is_too_long_is_refused(helm: Run) -> None:
    words = ("template", "r", "charts/elastrain", "--kube-version=1.34.0", "--set")
    assert helm(*words, f"fullnameOverride={'n' * 47}").returncode == 0
    refused = helm(*words, f"fullnameOverride={'n' * 48}")
    assert refused.returncode != 0
    assert "47" in refused.stderr
