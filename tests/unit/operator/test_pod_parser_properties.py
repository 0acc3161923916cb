"""Whatever a pod contains, it is parsed without an error, and becomes the worker of no job that does not control it."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Outcome
from elastrain_operator.facts import Coordination, JobRef, Observed, Pod
from elastrain_operator.job.plan import plan
from elastrain_operator.pod import manifest
from elastrain_operator.watch import parse
from elastrain_operator.watch.pods import WorkerPods
from elastrain_resource.job import JobSpec, JobStatus
from raw_cluster import TEMPLATE

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = JobSpec.model_validate({"maxReplicas": 4, "template": TEMPLATE})
JOB = JobKeys("ns", "job", "uid")
FOREIGN = JobKeys("other", "job", "uid-2")

HUGE = st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, 10**40])
TIMES = st.sampled_from(
    ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2030-01-01T00:00:00Z", "2030-01-01", "yesterday", "", None]
)
WORDS = st.text(max_size=4) | st.sampled_from(
    ["True", "False", "Unknown", "Ready", "PodScheduled", "DisruptionTarget", "Failed", "Succeeded", "trainer",
     names.PREFLIGHT_CONTAINER, "1e400", "9" * 5000, "²", "٣", "\x00", "NaN"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | HUGE | st.floats() | WORDS | TIMES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        WORDS | st.sampled_from(
            ["metadata", "status", "state", "terminated", "running", "waiting", "name", "conditions", "message",
             "containerStatuses", "exitCode", "finishedAt", "startedAt", "resources", "limits", "requests", "labels",
             "type", "reason", "ownerReferences", "controller", "uid"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
MESSAGES = st.builds(
    lambda outcome, fields: json.dumps({"outcome": outcome, **fields}),
    st.sampled_from([*Outcome, "exploded", None, 7]),
    st.dictionaries(
        st.sampled_from(["step", "exit_code", "signal", "rank", "reason", "message", "log_tail", "unknown"]),
        HUGE | WORDS | st.floats() | st.none(),
        max_size=4,
    ),
) | st.sampled_from(["{", "[" * 5000, '{"outcome": "finished", "step": 1e999}', "\ud800"])


def references(job: JobKeys) -> list[dict[str, Any]]:
    return [manifest.owner(JobRef(job.namespace, job.job, job.uid))]


@st.composite
def pods(draw: st.DrawFn, owned: bool) -> dict[str, Any]:
    """A pod as the API server may store one, with some places replaced by anything."""
    container = {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": draw(HUGE | WORDS)}}}
    ended = {"exitCode": draw(HUGE), "message": draw(MESSAGES), "startedAt": draw(TIMES), "finishedAt": draw(TIMES)}
    state = draw(st.sampled_from([{"terminated": ended}, {"running": {"startedAt": draw(TIMES)}}, {"waiting": {}}, {}]))
    condition = {"type": draw(WORDS), "status": draw(WORDS), "lastTransitionTime": draw(TIMES)}
    labels = {names.LABEL_JOB: "job", names.LABEL_JOB_UID: "uid", names.LABEL_ORDINAL: str(draw(HUGE | WORDS))}
    body = {
        "metadata": {
            "name": "job-0", "namespace": "ns", "uid": "pod", "creationTimestamp": draw(TIMES), "labels": labels,
            "ownerReferences": references(JOB if owned else FOREIGN),
        },
        "spec": {"containers": [container], "nodeName": "n", "terminationGracePeriodSeconds": draw(HUGE)},
        "status": {
            "phase": draw(WORDS), "conditions": [condition],
            "containerStatuses": [{"name": "trainer", "state": state}],
        },
    }  # fmt: skip
    body = copy.deepcopy(body)  # the same dict may stand in several places
    for _ in range(draw(st.integers(0, 3))):
        holder, key = draw(st.sampled_from(_places(body, owned)))
        holder[key] = draw(ANYTHING)
    return body


def _places(value: Any, owned: bool) -> list[tuple[Any, Any]]:
    """Places that may be replaced: all, except what makes an ``owned`` pod the job's."""
    if isinstance(value, dict):
        kept = {"metadata", "ownerReferences", "namespace", "uid", "name"} if owned else {"metadata", "ownerReferences"}
        return [
            place
            for k, v in value.items()
            for place in [*([] if k in kept else [(value, k)]), *([] if k == "ownerReferences" else _places(v, owned))]
        ]
    if isinstance(value, list):
        return [p for k, v in enumerate(value) for p in [(value, k), *_places(v, owned)]]
    return []


@examples(300)
@given(ANYTHING.filter(lambda x: isinstance(x, dict)) | pods(owned=True) | pods(owned=False), st.booleans())
def test_no_pod_raises_and_none_is_attributed_to_a_job_that_does_not_control_it(body, again):
    seen: list[JobKeys] = []
    store = WorkerPods(None, (), lambda job, pod, gone: seen.append(job))
    for shown in (body, {**body, "status": {}}) if again else (body,):
        if (read := store._read(shown)) is not None:
            store._keep(read)
    references = (body.get("metadata") or {}).get("ownerReferences") if isinstance(body.get("metadata"), dict) else None
    controls = isinstance(references, list) and any(
        isinstance(r, dict) and r.get("uid") == "uid" and r.get("controller") is True for r in references
    )
    assert bool(store.of(JOB)) <= controls
    for job in seen:
        assert job.namespace == body["metadata"]["namespace"]


@examples(300)
@given(pods(owned=True), pods(owned=True), st.sampled_from([None, Coordination()]), st.booleans())
def test_no_pod_of_a_job_stops_its_plans(body, later, records, is_old):
    first = parse.pod(body, NOW)
    second = parse.pod(later, NOW + timedelta(seconds=5), first)
    status = JobStatus(next_ordinal=1)
    for n, pod in enumerate((first, second)):
        if not isinstance(pod, Pod):
            continue
        seen = Observed(JobRef("ns", "job", "uid", 1), (pod,), records)
        made = plan(SPEC, status, seen, NOW + timedelta(seconds=5 * n + (9e6 if is_old else 0)))
        if made.status:
            status = made.status
            json.dumps(status.model_dump(mode="json", by_alias=True), allow_nan=False)
            assert _largest(status.model_dump(mode="json")) < 2**63, "the API server stores 64 bits"
            assert status.next_ordinal <= 13, "no pod moves the ordinals beyond those that were given out"


def _largest(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max([value if isinstance(value, int) else 0, *map(_largest, inner)])
