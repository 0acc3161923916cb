"""For any manifest, the operator (validate, plan, render) produces pods or a message; it never raises.

Manifests are generated from the CRD's schema, with additional Kubernetes fields, and then mutated.
"""

from __future__ import annotations

import copy
import json
import re
import tracemalloc
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api import names
from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import Coordination, Observed
from elastrain_operator.job import plan
from elastrain_operator.job.state import Plan
from elastrain_operator.pod import manifest
from elastrain_operator.policy.report import conditions
from elastrain_operator.policy.size import leavers, replicas
from elastrain_operator.watch import parse
from elastrain_resource.schema.crd import crd

NOW = datetime(2030, 1, 1, tzinfo=UTC)
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379", secret="etcd"))
SCHEMA = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
META = {"namespace": "ns", "name": "job", "uid": "uid", "generation": 3}
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"]}]}}

# Field names of Kubernetes that the schema leaves open, with plausible values.
PLAUSIBLE: dict[str, list[Any]] = {
    "initContainers": [[{"name": "fetch", "image": "fetch:1"}], []],
    "volumes": [[{"name": "data", "emptyDir": {}}]],
    "volumeMounts": [[{"name": "data", "mountPath": "/data"}]],
    "securityContext": [
        {"runAsUser": 0},
        {"fsGroup": 1},
        {"privileged": True},
        {"capabilities": {"add": ["IPC_LOCK"]}},
    ],
    "terminationGracePeriodSeconds": [0, 30, 2**62],
    "env": [[{"name": "A", "value": "1"}], [{"name": names.ENV_JOB_UID, "value": "not this"}]],
    "args": [["--lr", "0.1"]],
    "resources": [{"limits": {"nvidia.com/gpu": 2}}, {"requests": {"cpu": "1"}}],
    "labels": [{"team": "a"}],
    "annotations": [{"note": "b"}],
    "nodeSelector": [{"pool": "gpu"}],
    "tolerations": [[{"operator": "Exists"}]],
    "finalizers": [["example.com/keep"]],
    "restartPolicy": ["Always"],
}

words = st.text(max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(words | st.sampled_from(sorted(PLAUSIBLE)), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
strewn = st.lists(st.sampled_from(sorted(PLAUSIBLE)), max_size=3, unique=True).flatmap(
    lambda fields: st.fixed_dictionaries({f: st.sampled_from(PLAUSIBLE[f]) | anything for f in fields})
)


def instances(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a structural schema allows."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return (
            st.integers(0, 9)
            | st.just(schema.get("maximum", 9))
            | words
            | st.sampled_from(["auto", "none", "16Gi", "1e400", "9" * 400])
        )
    match schema["type"]:
        case "object":
            return _objects(schema)
        case "array":
            low, high = schema.get("minItems", 0), min(schema.get("maxItems", 3), 3)
            return st.lists(instances(schema["items"]), min_size=low, max_size=max(low, high))
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=max(schema.get("minLength", 0), 6))
        case "integer":
            low, high = schema.get("minimum", -(2**63)), schema.get("maximum", 2**63 - 1)
            return st.integers(low, high) | st.integers(low, min(low + 4, high))
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
    raise AssertionError(f"the schema has a type that this test does not know: {schema}")


def _objects(schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: instances(field) for name, field in schema.get("properties", {}).items()}
    required = {name: fields.pop(name) for name in schema.get("required", ())}
    known = st.fixed_dictionaries(required, optional=fields)
    if "additionalProperties" in schema:
        return st.dictionaries(words, instances(schema["additionalProperties"]), max_size=2)
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.builds(lambda more, own: more | own, strewn, known)
    return known


def places(value: Any) -> list[tuple[Any, Any]]:
    """All (container, key) inside a JSON value."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in [(value, k), *places(v)]]
    if isinstance(value, list):
        return [p for k, v in enumerate(value) for p in [(value, k), *places(v)]]
    return []


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[Any], most: int = 3) -> Any:
    """A value with up to ``most`` places replaced, removed or renamed."""
    value = {"": copy.deepcopy(draw(valid))}
    for _ in range(draw(st.integers(0, most))):
        container, key = draw(st.sampled_from(places(value)))
        match draw(st.sampled_from(["replace", "remove", "rename"])):
            case "remove" if key != "":
                del container[key]
            case "rename" if isinstance(container, dict) and key != "":
                container[draw(words)] = container.pop(key)
            case _:
                container[key] = draw(anything)
    return value[""]


def outcome(body: dict[str, Any]) -> tuple[Plan, list[dict[str, Any]], str]:
    """The operator's result for a job: its plan, the rendered pods, and why it renders none."""
    try:
        status = parse.job_status(body)
    except parse.StatusUnreadable as error:
        patch = conditions.unreadable_patch(body["status"], str(error), NOW)
        json.dumps(patch, allow_nan=False)
        return Plan(), [], ""
    try:
        spec = parse.job_spec(body)
    except parse.SpecInvalid as error:
        return plan.refuse(status, Observed(parse.job_ref(body)), str(error), NOW), [], str(error)
    job = parse.job_ref(body)
    made = plan.plan(spec, status, Observed(job, coordination=Coordination()), NOW)
    try:
        return made, [manifest.pod(job, spec, ordinal, CONFIG) for ordinal in made.create[:2]], ""
    except manifest.TemplateInvalid as error:
        return made, [], str(error)


def check(body: dict[str, Any]) -> str:
    """Check that users or the API server can use the result. Returns the message, if there is one."""
    made, pods, said = outcome(body)
    if said:
        # At least one "field: value: rule"; field names are arbitrary.
        assert re.match(r"spec\b.*: .+: .+", said, re.DOTALL), said
    for pod in pods:
        json.dumps(pod, allow_nan=False)
        assert pod["metadata"]["labels"][names.LABEL_JOB_UID] == "uid"
        assert [c["command"][:3] for c in pod["spec"]["containers"] if c.get("command", [])[:1] == ["elastrain"]]
    if made.status:
        json.dumps(made.status.model_dump(mode="json", by_alias=True), allow_nan=False)
    assert len(made.create) <= replicas.BATCH
    return said


MANY = examples(300, HealthCheck.filter_too_much)


@MANY
@given(mutated(instances(SCHEMA["spec"])))
def test_any_spec_becomes_pods_or_a_message_with_field_value_and_rule(spec):
    check({"metadata": META, "spec": spec})


@MANY
@given(mutated(st.builds(lambda more: {"spec": {**more, **TEMPLATE["spec"]}}, strewn), most=1))
def test_any_template_becomes_pods_or_a_message_with_field_value_and_rule(template):
    check({"metadata": META, "spec": {"maxReplicas": 2, "template": template}})


@MANY
@given(mutated(instances(SCHEMA["status"])))
def test_any_status_is_read_or_reported(status):
    check({"metadata": META, "spec": {"maxReplicas": 2, "template": TEMPLATE}, "status": status})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"maxReplicas": 0, "template": TEMPLATE}, "spec.maxReplicas: 0: must be at least 1"),
        (
            {"maxReplicas": 2, "minReplicas": 3, "template": TEMPLATE},
            "spec.minReplicas: 3: must not be greater than maxReplicas (2)",
        ),
        (
            {"maxReplicas": 2, "template": TEMPLATE, "replica": 1},
            "spec.replica: 1: unknown field; did you mean replicas?",
        ),
        ({"maxReplicas": 2}, "spec.template: missing: must be given"),
        ("six", 'spec: "six": must be a mapping'),
        (
            {"maxReplicas": 2, "template": {"spec": {**TEMPLATE["spec"], "initContainers": 5}}},
            "spec.template.spec.initContainers: 5: must be a list",
        ),
        (
            {"maxReplicas": 2, "template": {"spec": {"containers": [
                {**TEMPLATE["spec"]["containers"][0], "resources": {"limits": {"nvidia.com/gpu": [2]}}}
            ]}}},
            "spec.template.spec.containers[0].resources.limits.nvidia.com/gpu: [2]: "
            "must be a quantity, such as 2 or 16Gi",
        ),
        (
            {"maxReplicas": 2, "template": {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": -1}}},
            "spec.template.spec.terminationGracePeriodSeconds: -1: must be at least 0",
        ),
    ],
)  # fmt: skip
def test_a_message_names_field_value_and_rule(spec, words):
    assert check({"metadata": META, "spec": spec}) == words


def test_a_job_of_two_thousand_million_workers_is_created_in_batches():
    made, pods, said = outcome({"metadata": META, "spec": {"maxReplicas": 2**31 - 1, "template": TEMPLATE}})
    assert (len(made.create), len(pods), said) == (replicas.BATCH, 2, "")


def integers(schema: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], int]]:
    """All integers of a spec that lie in no list, each with its greatest value."""
    if schema.get("type") == "integer" or schema.get("x-kubernetes-int-or-string"):
        return [(path, schema["maximum"])] if "maximum" in schema else []
    return [found for name, field in schema.get("properties", {}).items() for found in integers(field, (*path, name))]


def smallest(schema: dict[str, Any]) -> Any:
    """The least that a schema asks for."""
    if schema.get("type") == "object":
        return {name: smallest(schema["properties"][name]) for name in schema.get("required", ())}
    if schema.get("type") == "array":
        return [smallest(schema["items"])] * schema.get("minItems", 0)
    return schema["enum"][0] if "enum" in schema else schema.get("minimum", "x")


def spec_of(values: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """A small spec with these values."""
    spec: dict[str, Any] = {"maxReplicas": 2, "template": copy.deepcopy(TEMPLATE)}
    for (*parents, last), value in values:
        at, schema = spec, SCHEMA["spec"]
        for name in parents:
            schema = schema["properties"][name]
            at = at.setdefault(name, smallest(schema))
        at[last] = value
    return spec


INTEGERS = integers(SCHEMA["spec"])
SIZES = [
    (path, high) for path, high in INTEGERS if path[-1] in {"replicas", "minReplicas", "maxReplicas", "nprocPerNode"}
]
SIZES += [(("parallelism", name), high) for name in ("shards", "tensor") for path, high in INTEGERS if path[-1] == name]


@pytest.mark.parametrize(
    "values", [[one] for one in INTEGERS] + [c for n in range(2, 7) for c in combinations(SIZES, n)], ids=str
)
def test_no_number_of_a_spec_sizes_the_work_of_a_pass(values):
    body = {"metadata": META, "spec": spec_of(values)}
    check(body)  # what is made once in a process is no work of this pass
    tracemalloc.start()
    try:
        check(body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def large(size: int) -> dict[str, Any]:
    """A job whose template has a variable of that many bytes."""
    (container,) = TEMPLATE["spec"]["containers"]
    env = [{"name": "BLOB", "value": "x" * size}]
    return {
        "metadata": META,
        "spec": {"maxReplicas": 2, "template": {"spec": {"containers": [{**container, "env": env}]}}},
    }


def test_a_spec_of_more_than_256_kib_is_refused_by_its_size_and_is_not_kept():
    held = parse.bounded(large(300_000))
    assert len(json.dumps(held)) < 300
    assert check(held) == (
        "spec: 300160 bytes: must be at most 262144 as JSON; mount large data from a ConfigMap or a volume"
    )
    assert parse.bounded(large(200_000)) == large(200_000)


def test_a_large_job_of_another_operator_stays_its_job():
    theirs = large(300_000)
    theirs["spec"]["managedBy"] = "kueue.x-k8s.io/multikueue"
    assert not parse.is_ours(parse.bounded(theirs))


def test_an_excessive_grace_period_is_bounded(pod_body):
    body = pod_body(0)
    body["spec"]["terminationGracePeriodSeconds"] = 2**63 - 1
    assert leavers.drain_deadline(parse.pod(body, NOW), NOW).year > 2060
