"""What admission of a real API server makes of a worker's pod is what the allocator counts.

An API server of its own, since MutatingAdmissionPolicies are behind a switch until Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from control_plane import ApiServer, control_plane
from elastrain_operator.pod.admitted import Admitted, admitted
from raw_cluster import Cluster

pytestmark = [pytest.mark.apiserver, pytest.mark.nightly]

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POLICIES = "/apis/admissionregistration.k8s.io/v1beta1"
CREATIONS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
PROXY = (
    'Object{spec: Object.spec{initContainers: [Object.spec.initContainers{name: "proxy", image: "proxy:1", '
    'restartPolicy: "Always", resources: Object.spec.initContainers.resources{requests: {"cpu": "5"}}}]}}'
)
PATCHES = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
SELECTS = '[JSONPatch{op: "add", path: "/spec/nodeSelector", value: {"pool": "b"}}]'


@pytest.fixture(scope="module")
def apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    flags = (
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
        "--enable-admission-plugins=PodNodeSelector",
    )
    with control_plane(tmp_path_factory.mktemp("admission"), *flags) as server:
        yield server


def limits(cluster: Cluster) -> None:
    limit = {"type": "Container", "defaultRequest": {"cpu": "3"}, "default": {"cpu": "4"}}
    path = f"/api/v1/namespaces/{cluster.namespace}/limitranges"
    cluster.call("POST", path, {"metadata": {"name": "small"}, "spec": {"limits": [limit]}})


def node_selector(cluster: Cluster) -> None:
    note = {"scheduler.alpha.kubernetes.io/node-selector": "pool=b"}
    cluster.merge(f"/api/v1/namespaces/{cluster.namespace}", {"metadata": {"annotations": note}})


def runtime_class(cluster: Cluster) -> None:
    overhead = {"podFixed": {"cpu": "2"}}
    body = {"metadata": {"name": "heavy"}, "handler": "heavy", "overhead": overhead}
    cluster.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", body)


def policy(cluster: Cluster, kind: str, expression: str) -> None:
    name = f"changes-{cluster.namespace}"
    mutation = {"patchType": kind, PATCHES[kind]: {"expression": expression}}
    chosen = {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}}
    spec = {
        "matchConstraints": {"resourceRules": [CREATIONS], "namespaceSelector": chosen},
        "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": [mutation],
    }  # fmt: skip
    cluster.call("POST", f"{POLICIES}/mutatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    cluster.call("POST", f"{POLICIES}/mutatingadmissionpolicybindings", binding)


def answer(cluster: Cluster, **spec: Any) -> Admitted:
    """To a dry run of a pod whose container has no requests."""
    sent = {"metadata": {"name": "job-0"}, "spec": {"containers": [{"name": "trainer", "image": "t:1"}], **spec}}
    return admitted("v", sent, cluster.call("POST", f"{cluster.pods_path}?dryRun=All", sent), NOW)


@pytest.mark.parametrize(
    ("change", "spec", "cpu", "said"),
    [
        (limits, {}, 3000, ("cpu 0 → 3",)),
        (runtime_class, {"runtimeClassName": "heavy"}, 2000, ("cpu 0 → 2 (with overhead)",)),
        (node_selector, {}, 0, ("nodeSelector pool=b",)),
        (
            lambda cluster: policy(cluster, "ApplyConfiguration", PROXY),
            {},
            5000,
            ("cpu 0 → 5", "initContainers: proxy"),
        ),
        (lambda cluster: policy(cluster, "JSONPatch", SELECTS), {}, 0, ("nodeSelector pool=b",)),
    ],
    ids=["LimitRange", "RuntimeClass", "PodNodeSelector", "a policy's sidecar", "a policy's patch"],
)
def test_a_worker_is_counted_as_admission_has_changed_it(cluster, eventually, change, spec, cpu, said):
    assert answer(cluster).changes == ()
    change(cluster)
    eventually(lambda: answer(cluster, **spec).changes == said, 20, "the change is in force")
    shape = answer(cluster, **spec).shape
    assert shape is not None
    assert dict(shape.demand).get("cpu", 0) == cpu


AFFINITY = (
    '[JSONPatch{op: "add", path: "/spec/affinity", value: {"podAntiAffinity": '
    '{"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}}]'
)


@pytest.mark.parametrize(
    ("patch", "said", "unknown"),
    [
        (
            '[JSONPatch{op: "add", path: "/spec/schedulingGates", value: [{"name": "team/later"}]}]',
            "scheduling gates",
            "scheduling gates",
        ),
        (AFFINITY, "pod affinity", "pod affinity"),
        (
            '[JSONPatch{op: "replace", path: "/spec/schedulerName", value: "other"}]',
            "schedulerName default-scheduler → other",
            "scheduler",
        ),
        ('[JSONPatch{op: "add", path: "/spec/runtimeClassName", value: "kata"}]', "runtimeClassName none → kata", ""),
    ],
    ids=["gates", "affinity", "scheduler", "runtime class"],
)
def test_what_admission_adds_beside_requests_is_said_and_known_as_unknown(cluster, eventually, patch, said, unknown):
    if not unknown:
        cluster.call("POST", "/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "kata"}, "handler": "kata"})
    policy(cluster, "JSONPatch", patch)
    eventually(lambda: said in answer(cluster).changes, 20, "the change is in force")
    assert answer(cluster).unknown == ((unknown,) if unknown else ())


def test_a_limit_of_the_namespace_gives_way_to_the_pod_s_own_resources(cluster, eventually):
    limits(cluster)
    eventually(lambda: answer(cluster).changes != (), 20, "the LimitRange is in force")
    shape = answer(cluster, resources={"requests": {"cpu": "7"}}).shape
    assert shape is not None
    assert dict(shape.demand)["cpu"] == 7000
