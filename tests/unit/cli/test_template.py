"""A pod template is held against the pod API before it reaches a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain_cli.template import problems
from elastrain_resource import manifest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))


def template(spec: dict[str, Any] | None = None, **container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", "image": "i", **container}], **(spec or {})}}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (template(env=[{"name": "SEED", "value": 1}]), 'spec.containers[0].env[0].value: 1: must be a text; write "1"'),
        (template(env=[{"name": "ON", "value": True}]), 'env[0].value: True: must be a text; write "true"'),
        (
            template(resources={"limits": {"memory": "10GB"}}),
            "'10GB': must be a quantity, as 2, 500m or 10Gi; write",
        ),
        (
            template(volumeMounts=[{"name": "data", "mountPath": "/d"}]),
            "'data': must be a volume of spec.",
        ),
        (
            template({"nodeSelctor": {"a": "b"}}),
            "nodeSelctor: is no field of the pod API; did you mean nodeSelector?",
        ),
        (template({"nodeSelector": {"gpu": 8}}), 'nodeSelector[gpu]: 8: must be a text; write "8"'),
        (template({"tolerations": {"key": "a"}}), "spec.tolerations: {'key': 'a'}: must be a list"),
        (template(ports=[{"containerPort": "80"}]), "ports[0].containerPort: '80': must be a whole number"),
        (template({"hostNetwork": "yes"}), "spec.hostNetwork: 'yes': must be true or false"),
    ],
)
def test_a_value_that_the_pod_api_refuses_is_named_with_the_way_out(wrong: dict[str, Any], says: str) -> None:
    (found,) = problems(wrong)
    assert says in found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_nothing_is_said_about_the_template_of_an_example(path: Path) -> None:
    if "kind: ElasticTrainingJob" not in path.read_text():
        pytest.skip("another kind")
    assert list(problems(manifest.load(path).spec.template)) == []


def test_a_field_of_a_newer_api_server_passes() -> None:
    assert list(problems(template({"quantumEntanglement": {"pairs": 2}}))) == []


KEYS = st.text() | st.sampled_from(["containers", "env", "value", "limits", "volumeMounts", "volumes", "name"])
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(KEYS, of, max_size=3),
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "x"]), json, max_size=3))
def test_any_template_gets_an_answer(found: dict[str, Any]) -> None:
    assert all(isinstance(line, str) for line in problems(found))
