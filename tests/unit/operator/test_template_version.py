"""The version of a template is its meaning: no spelling of it rolls out, and every change does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.api import names
from elastrain_operator.facts import JobRef
from elastrain_operator.kueue import render
from elastrain_operator.pod import manifest
from elastrain_operator.pod.meaning import OUR_VARIABLES, version
from loop_world import CONFIG

Template = dict[str, Any]
Change = Callable[[Template], object]
JOB = JobRef("team-a", "digits", "0f0e", 3)


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


SPELLINGS: dict[str, Change] = {
    "cpu: 1": lambda t: limits(t).update(cpu=1),
    "cpu: 1000m": lambda t: limits(t).update(cpu="1000m"),
    "cpu: 1.0": lambda t: limits(t).update(cpu=1.0),
    "cpu: 1e0": lambda t: limits(t).update(cpu="1e0"),
    "memory in Mi": lambda t: limits(t).update(memory="2048Mi"),
    "memory in bytes": lambda t: limits(t).update(memory=2**31),
    "a GPU as text": lambda t: limits(t).update({"nvidia.com/gpu": "1"}),
    "a request that is the limit": lambda t: trainer(t)["resources"].update(requests={"cpu": "1"}),
    "no requests": lambda t: trainer(t)["resources"].update(requests={}),
    "sizeLimit": lambda t: t["spec"]["volumes"][1]["emptyDir"].update(sizeLimit="1024Mi"),
    "securityContext: {}": lambda t: t["spec"].update(securityContext={}),
    "a container's securityContext: {}": lambda t: trainer(t).update(securityContext={}),
    "privileged: false": lambda t: trainer(t).update(securityContext={"privileged": False}),
    "affinity: {}": lambda t: t["spec"].update(affinity={}),
    "nodeSelector: null": lambda t: t["spec"].update(nodeSelector=None),
    "topologySpreadConstraints: null": lambda t: t["spec"].update(topologySpreadConstraints=None),
    "imagePullSecrets: []": lambda t: t["spec"].update(imagePullSecrets=[]),
    "annotations: {}": lambda t: t["metadata"].update(annotations={}),
    "resources: {}": lambda t: t["spec"]["containers"][1].update(resources={}),
    "restartPolicy": lambda t: t["spec"].update(restartPolicy="OnFailure"),
    "a name": lambda t: t["metadata"].update(name="worker", creationTimestamp=None),
    "our label": lambda t: t["metadata"]["labels"].update({names.LABEL_JOB: "other"}),
    "our annotation": lambda t: t["metadata"].update(annotations={names.CONTAINERS_NOTE: "x"}),
    "our variable": lambda t: trainer(t)["env"].append({"name": names.ENV_JOB, "value": "other"}),
    "the trainer's policy": lambda t: trainer(t).update(terminationMessagePolicy="FallbackToLogsOnError"),
    "the trainer's restart": lambda t: trainer(t).update(restartPolicy="Never"),
    "last lines": lambda t: t["spec"]["containers"][1].update(terminationMessagePolicy="FallbackToLogsOnError"),
    "the message's path": lambda t: t["spec"]["containers"][1].update(terminationMessagePath="/dev/termination-log"),
    "pull of the newest": lambda t: trainer(t).update(imagePullPolicy="Always"),
    "pull of a tag": lambda t: t["spec"]["containers"][1].update(imagePullPolicy="IfNotPresent"),
    "pull of a digest": lambda t: t["spec"]["initContainers"][0].update(imagePullPolicy="IfNotPresent"),
    "dnsPolicy": lambda t: t["spec"].update(dnsPolicy="ClusterFirst"),
    "schedulerName": lambda t: t["spec"].update(schedulerName="default-scheduler"),
    "grace": lambda t: t["spec"].update(terminationGracePeriodSeconds=30),
    "hostNetwork": lambda t: t["spec"].update(hostNetwork=False),
    "the account": lambda t: t["spec"].update(serviceAccountName="default"),
    "the account's old name": lambda t: t["spec"].update(serviceAccount="default"),
    "no token": lambda t: t["spec"].update(automountServiceAccountToken=False),
    "no links": lambda t: t["spec"].update(enableServiceLinks=False),
    "seccomp": lambda t: t["spec"].update(securityContext={"seccompProfile": {"type": "RuntimeDefault"}}),
    "no root": lambda t: t["spec"].update(securityContext={"runAsNonRoot": True}),
    "protocol": lambda t: trainer(t)["ports"][0].update(protocol="TCP"),
    "an empty value": lambda t: trainer(t)["env"][1].update(value=""),
    "a probe's period": lambda t: trainer(t)["readinessProbe"].update(periodSeconds=10, timeoutSeconds=1),
    "a probe's path": lambda t: trainer(t)["readinessProbe"]["httpGet"].update(path="/", scheme="HTTP"),
    "Equal": lambda t: t["spec"]["tolerations"][0].update(operator="Equal"),
    "the mode of a Secret": lambda t: t["spec"]["volumes"][0]["secret"].update(defaultMode=420),
    "stdin": lambda t: trainer(t).update(stdin=False, tty=False),
    "args: []": lambda t: trainer(t).update(args=[]),
}
"""Changes of the text that change nothing in a worker."""

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
}
"""Changes of what a worker is."""


def changed(change: Change) -> Template:
    made = copy.deepcopy(template())
    change(made)
    return made


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_keeps_version_if_meaning_is_the_same(name):
    other = changed(SPELLINGS[name])
    assert other != template()
    assert version(other) == version(template())
    assert render.shape(other) == render.shape(template()), "a queued job would lose its place"


@pytest.mark.parametrize("name", CHANGES)
def test_version_changes_if_meaning_changes(name):
    assert version(changed(CHANGES[name])) != version(template())


def shuffled(value: Any, draw: st.DataObject) -> Any:
    if isinstance(value, dict):
        return {k: shuffled(value[k], draw) for k in draw.draw(st.permutations(sorted(value)))}
    return [shuffled(v, draw) for v in value] if isinstance(value, list) else value


@given(st.sets(st.sampled_from(sorted(SPELLINGS))), st.sampled_from([None, *sorted(CHANGES)]), st.data())
def test_version_is_the_meaning_in_any_spelling(spellings, change, data):
    """A change and any spellings of the rest: other than without the change, unless a spelling has undone it."""
    plain, spelled = template(), template()
    for name in sorted(spellings):
        SPELLINGS[name](spelled)
    if change is not None:
        CHANGES[change](plain)
        CHANGES[change](spelled)
    spelled = shuffled(spelled, data)
    if change is None:
        assert version(spelled) == version(plain)
    else:
        assert version(spelled) != version(template())


def test_present_version_stays_in_later_versions_of_the_operator():
    """Another name would replace all workers of all jobs at an upgrade."""
    assert version(template()) == "0805a3bf9ebb"


@pytest.mark.parametrize("wrong", [{}, {"spec": None}, {"spec": {"containers": [None]}}, {"spec": {"containers": 1}}])
def test_template_that_makes_no_worker_has_a_version(wrong):
    assert version(wrong) != version(template())


def test_variables_and_fields_that_are_ignored_are_those_that_the_operator_overwrites(make_spec):
    given = template()
    trainer(given)["env"] = [{"name": name, "value": "mine"} for name in sorted(OUR_VARIABLES)]
    made = manifest.pod(JOB, make_spec(template=given), 7, CONFIG)
    assert "mine" not in [e.get("value") for e in trainer(made)["env"]]
