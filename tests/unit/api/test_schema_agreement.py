"""pydantic and the CRD's schema accept the same specs: one contract in two languages."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from elastrain_resource import rules
from elastrain_resource.job import CleanPodPolicy, ElasticTrainingJob, JobSpec
from elastrain_resource.schema.crd import crd

SCHEMA = jsonschema.Draft202012Validator(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
SPEC_SCHEMA = jsonschema.Draft202012Validator(SCHEMA.schema["properties"]["spec"])
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "digits:1", "command": ["python", "train.py"]}]}}

counts = st.integers(1, 2**31 - 1)
words = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Specs as users may write them; absent fields are absent."""
    low, now, high = sorted(draw(st.tuples(counts, counts, counts)))
    checkpoint = st.fixed_dictionaries(
        {"path": words.map("/".__add__)}, optional={"everySteps": counts, "everySeconds": counts, "keep": counts}
    )
    container = st.fixed_dictionaries(
        {"image": words, "command": st.lists(words, min_size=1, max_size=3)},
        optional={"resources": st.just({"limits": {}})},
    )
    names = draw(st.lists(words, min_size=1, max_size=3, unique=True))
    template = {"spec": {"containers": [{"name": name} | draw(container) for name in names]}}
    optional = {
        "minReplicas": st.just(low),
        "replicas": st.just(now),
        "nprocPerNode": counts | st.just("auto"),
        "accelerator": st.sampled_from(["nvidia.com/gpu", "habana.ai/gaudi"]),
        "checkpoint": checkpoint,
        "suspend": st.booleans(),
        "backoffLimit": st.integers(0, 2**31 - 1),
        "activeDeadlineSeconds": counts,
        "ttlSecondsAfterFinished": st.integers(0, 2**31 - 1),
        "cleanPodPolicy": st.sampled_from([p.value for p in CleanPodPolicy]),
        "successPolicy": st.sampled_from(["RankZero", "AllWorkers"]),
        "lossLimit": counts,
        "pendingDeadlineSeconds": counts,
        "maxUnavailable": st.integers(0, 2**31 - 1),
        "nodeCooldownSeconds": st.integers(0, 2**31 - 1),
        "preflight": st.fixed_dictionaries({}, optional={"minBandwidth": counts, "timeoutSeconds": counts}),
        "managedBy": st.just("kueue.x-k8s.io/multikueue"),
    }
    return draw(st.fixed_dictionaries({"maxReplicas": st.just(high), "template": st.just(template)}, optional=optional))


def pydantic_accepts(spec: dict[str, Any]) -> bool:
    try:
        JobSpec.model_validate_json(json.dumps(spec), strict=True)
    except ValidationError:
        return False
    return True


@given(specs())
def test_schema_accepts_if_pydantic_does(spec: dict[str, Any]) -> None:
    manifest = {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "ElasticTrainingJob",
        "metadata": {"name": "j"},
        "spec": spec,
    }
    job = ElasticTrainingJob.model_validate_json(json.dumps(manifest), strict=True)
    SCHEMA.validate(manifest)
    # ... and it accepts what the operator or the CLI writes back.
    SCHEMA.validate(json.loads(job.model_dump_json(by_alias=True, exclude_none=True)))


near_sizes = st.one_of(st.integers(-1, 4), st.sampled_from([2**31 - 1, 2**31, "2", 1.5, True, "auto", ""]))


@given(
    st.fixed_dictionaries(
        {"maxReplicas": near_sizes},
        optional={"minReplicas": near_sizes, "replicas": near_sizes, "nprocPerNode": near_sizes},
    )
)
def test_pydantic_accepts_sizes_if_schema_and_rules_do(sizes: dict[str, Any]) -> None:
    spec = sizes | {"template": TEMPLATE}
    accepted = SPEC_SCHEMA.is_valid(spec)
    if accepted:  # the API server evaluates rules on valid objects, with defaults filled in
        present = {"minReplicas": 1} | sizes
        accepted = all(rule.holds(present) for rule in rules.SIZES.values() if rule.needs <= present.keys())
    assert pydantic_accepts(spec) == accepted


fields = st.sampled_from(["spec", "containers", "name", "image", "command", "metadata", "labels"])
shapes = st.recursive(
    st.booleans() | words,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(fields, inner, max_size=4),
    max_leaves=8,
)


@given(shapes)
def test_schema_accepts_a_template_of_any_shape_if_pydantic_does(template: Any) -> None:
    spec = {"maxReplicas": 1, "template": template}
    assert SPEC_SCHEMA.is_valid(spec) or not pydantic_accepts(spec)
