"""The version of a template: every change of its text rolls out, and no order of its keys does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain_operator.pod.template import version

Template = dict[str, Any]
Change = Callable[[Template], object]


def template() -> Template:
    return {
        "metadata": {"labels": {"team": "a"}},
        "spec": {
            "initContainers": [{"name": "fetch", "image": "fetch@sha256:00"}],
            "containers": [
                {
                    "name": "trainer",
                    "image": "registry.example:5000/digits",
                    "command": ["python", "train.py"],
                    "resources": {"limits": {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": 1}},
                    "env": [{"name": "RATE", "value": "0.1"}, {"name": "EMPTY"}],
                    "ports": [{"containerPort": 80}],
                    "readinessProbe": {"httpGet": {"port": 80}},
                },
                {"name": "beside", "image": "beside:1"},
            ],
            "tolerations": [{"key": "spot", "value": "true"}],
            "volumes": [{"name": "s", "secret": {"secretName": "s"}}, {"name": "t", "emptyDir": {"sizeLimit": "1Gi"}}],
        },
    }


def trainer(t: Template) -> Template:
    return t["spec"]["containers"][0]


def limits(t: Template) -> Template:
    return trainer(t)["resources"]["limits"]


CHANGES: dict[str, Change] = {
    "image": lambda t: trainer(t).update(image="registry.example:5000/digits:2"),
    "command": lambda t: trainer(t).update(command=["python", "other.py"]),
    "cpu": lambda t: limits(t).update(cpu="1001m"),
    "memory": lambda t: limits(t).update(memory="2G"),
    "a request below the limit": lambda t: trainer(t)["resources"].update(requests={"cpu": "999m"}),
    "value": lambda t: trainer(t)["env"][0].update(value="0.2"),
    "a variable": lambda t: trainer(t)["env"].append({"name": "MORE", "value": ""}),
    "label": lambda t: t["metadata"]["labels"].update(team="b"),
    "pull": lambda t: trainer(t).update(imagePullPolicy="IfNotPresent"),
    "hostNetwork": lambda t: t["spec"].update(hostNetwork=True),
    "grace": lambda t: t["spec"].update(terminationGracePeriodSeconds=31),
    "token": lambda t: t["spec"].update(automountServiceAccountToken=True),
    "account": lambda t: t["spec"].update(serviceAccountName="other"),
    "root": lambda t: trainer(t).update(securityContext={"runAsUser": 0}),
    "all capabilities kept": lambda t: trainer(t).update(securityContext={"capabilities": {"drop": []}}),
    "no spread": lambda t: t["spec"].update(topologySpreadConstraints=[]),
    "policy of a sidecar": lambda t: t["spec"]["containers"][1].update(terminationMessagePolicy="File"),
    "taint's value": lambda t: t["spec"]["tolerations"][0].update(operator="Exists", value=""),
    "tolerates all": lambda t: t["spec"]["tolerations"].append({"operator": "Exists"}),
    "sizeLimit": lambda t: t["spec"]["volumes"][1]["emptyDir"].update(sizeLimit="1G"),
    "an unknown field": lambda t: t["spec"].update(newField=False),
    "order of containers": lambda t: t["spec"]["containers"].reverse(),
    "another spelling, which costs a planned rescale": lambda t: limits(t).update(cpu="1000m"),
}


def changed(change: Change) -> Template:
    made = copy.deepcopy(template())
    change(made)
    return made


@pytest.mark.parametrize("name", CHANGES)
def test_version_changes_if_the_template_does(name):
    assert version(changed(CHANGES[name])) != version(template())


def shuffled(value: Any, draw: st.DataObject) -> Any:
    if isinstance(value, dict):
        return {k: shuffled(value[k], draw) for k in draw.draw(st.permutations(sorted(value)))}
    return [shuffled(v, draw) for v in value] if isinstance(value, list) else value


@given(st.data())
def test_version_stays_in_any_order_of_keys(data):
    assert version(shuffled(template(), data)) == version(template())


def test_present_version_stays_in_later_versions_of_the_operator():
    """Another name would replace all workers of all jobs at an upgrade."""
    assert version(template()) == "351010a28ee8"


@pytest.mark.parametrize("wrong", [{}, {"spec": None}, {"spec": {"containers": [None]}}, {"spec": {"containers": 1}}])
def test_template_that_makes_no_worker_has_a_version(wrong):
    assert version(wrong) != version(template())
