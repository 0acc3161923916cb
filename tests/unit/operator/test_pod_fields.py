"""Every field of the pod API in a template is ours, passed through, or refused with a message."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from kubernetes import client

from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest
from elastrain_resource import podfields as fields
from elastrain_resource.podfields import Treatment
from loop_world import CONFIG

JOB = JobRef("team-a", "digits", "0f0e", 3)
PLACES = {
    "metadata": (fields.METADATA, client.V1ObjectMeta),
    "spec": (fields.POD, client.V1PodSpec),
    "trainer": (fields.TRAINER, client.V1Container),
    "beside": (fields.BESIDE, client.V1Container),
    "init": (fields.INIT, client.V1Container),
}
OF_OTHER_VERSIONS = {"workloadRef"}
"""Fields that the pod API has had, and no longer has in the version of the client."""


def template() -> dict[str, Any]:
    """With a container in each place."""
    return {
        "metadata": {},
        "spec": {
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [
                {"name": "beside", "image": "b"},
                {"name": "trainer", "image": "t", "command": ["python", "train.py"]},
            ],
        },
    }


def within(given: dict[str, Any], place: str) -> dict[str, Any]:
    """The object of that place in a template or pod."""
    if place in ("metadata", "spec"):
        return given[place]
    every = [*given["spec"]["initContainers"], *given["spec"]["containers"]]
    return next(c for c in every if c["name"] == place)


def rendered(make_spec, place: str, **chosen: Any) -> dict[str, Any]:
    """The pod of the template with these fields, in that place."""
    given = template()
    within(given, place).update(copy.deepcopy(chosen))
    return manifest.pod(JOB, make_spec(template=given), 7, CONFIG)


@pytest.mark.parametrize("place", PLACES)
def test_table_has_each_field_of_the_newest_pod_api_and_no_other(place):
    table, model = PLACES[place]
    known = set(model.attribute_map.values())
    assert known - set(table) == set(), "new fields of the pod API: decide what becomes of each"
    assert set(table) - known <= OF_OTHER_VERSIONS


RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
REFUSED = [
    ("spec", "activeDeadlineSeconds", 60, "the job's `activeDeadlineSeconds`"),
    ("spec", "ephemeralContainers", [{"name": "debug"}], "kubectl debug"),
    ("spec", "nodeName", "node-a", "nodeSelector"),
    ("trainer", "restartPolicy", "OnFailure", "backoffLimit"),
    ("trainer", "restartPolicy", "Always", "backoffLimit"),
    ("trainer", "restartPolicyRules", [RULE], "backoffLimit"),
    ("trainer", "lifecycle", {"stopSignal": "SIGUSR1"}, "SIGTERM"),
    ("beside", "restartPolicyRules", [{**RULE, "action": "RestartAllContainers"}], "neither seen nor counted"),
    ("init", "restartPolicyRules", [RULE, {**RULE, "action": "RestartAllContainers"}], "neither seen nor counted"),
    ("init", "name", "elastrain-preflight", "pre-flight"),
]


@pytest.mark.parametrize(("place", "field", "value", "words"), REFUSED)
def test_refused_field_is_named_with_its_value_and_the_way_out(make_spec, place, field, value, words):
    with pytest.raises(manifest.TemplateInvalid) as refused:
        rendered(make_spec, place, **{field: value})
    assert f".{field}: " in str(refused.value)
    assert words in str(refused.value)


def test_each_field_that_is_refused_has_a_case():
    table = {(p, name) for p, (t, _) in PLACES.items() for name, f in t.items() if f.treatment is Treatment.REFUSED}
    assert table == {(place, name) for place, name, _, _ in REFUSED}


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        ("trainer", "restartPolicy", "Never"),
        ("trainer", "lifecycle", {"stopSignal": "SIGTERM", "preStop": {"exec": {"command": ["sync"]}}}),
        ("beside", "restartPolicy", "Always"),
        ("beside", "restartPolicyRules", [RULE]),
        ("init", "restartPolicy", "Always"),
        ("init", "restartPolicy", "OnFailure"),
        ("init", "restartPolicyRules", [RULE]),
    ],
)
def test_harmless_value_of_such_a_field_is_passed_through(make_spec, place, field, value):
    assert within(rendered(make_spec, place, **{field: value}), place)[field] == value


@pytest.mark.parametrize("place", PLACES)
def test_field_that_is_ours_has_our_value_whatever_the_template_says(make_spec, place):
    table, _ = PLACES[place]
    ours = {name: "theirs" for name, field in table.items() if field.treatment is Treatment.OURS}
    made = within(rendered(make_spec, place, **ours), place)
    assert not [name for name in ours if made.get(name) == "theirs"]


def test_field_of_a_newer_api_is_passed_through(make_spec):
    assert rendered(make_spec, "spec", fromTheFuture=1)["spec"]["fromTheFuture"] == 1


@pytest.mark.parametrize(
    ("chosen", "policy"),
    [
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "Default"}, "Default"),
        ({"hostNetwork": False}, None),
        ({}, None),
    ],
)
def test_worker_in_the_host_s_network_finds_etcd_by_the_name_of_its_service(make_spec, chosen, policy):
    assert rendered(make_spec, "spec", **chosen)["spec"].get("dnsPolicy") == policy
