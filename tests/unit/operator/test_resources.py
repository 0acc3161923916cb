"""Quantities, requests of pods, and facts about nodes."""

from __future__ import annotations

import pytest

from elastrain_operator.allocation import explanations, resources
from elastrain_operator.allocation.snapshot import Job, NodeRules, Requirement, Taint, Toleration, WorkerShape
from elastrain_operator.cluster import nodes
from elastrain_operator.pod import shape as shapes
from elastrain_operator.pod.shape import shape

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("resource", "text", "value"),
    [
        ("cpu", "2", 2000),
        ("cpu", "500m", 500),
        ("cpu", "0.1", 100),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "100u", 1),
        ("memory", "16Gi", 16 * 2**30),
        ("memory", "1.5G", 1_500_000_000),
        ("memory", "128974848", 128974848),
        ("memory", "1000m", 1),
        (GPU, "8", 8),
    ],
)
def test_quantity_is_read_as_kubernetes_reads_it(resource, text, value):
    assert resources.quantity(resource, text) == value


@pytest.mark.parametrize("text", ["", "many", "1 Gi", "0x10", "1e99999", "--1", "1KB"])
def test_an_invalid_quantity_is_refused_by_name(text):
    with pytest.raises(ValueError, match="is not a quantity"):
        resources.quantity("cpu", text)


def container(**requests) -> dict:
    return {"resources": {"requests": {k.replace("_", "/"): v for k, v in requests.items()}}}


def test_a_pods_requests_are_those_of_the_scheduler():
    pod = {
        "containers": [container(cpu="1", memory="1Gi"), container(cpu="500m")],
        "initContainers": [container(cpu="4"), {**container(cpu="250m"), "restartPolicy": "Always"}],
        "overhead": {"cpu": "250m"},
    }
    assert dict(resources.demand(pod)) == {"cpu": 4250, "memory": 2**30, "pods": 1}


SIDECAR = {**container(cpu="1"), "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        ({"initContainers": [SIDECAR, container(cpu="4")]}, 5),
        ({"initContainers": [container(cpu="4"), SIDECAR]}, 4),
        ({"initContainers": [SIDECAR, container(cpu="4"), SIDECAR, container(cpu="4")]}, 6),
        ({"initContainers": [SIDECAR], "resources": {"requests": {"cpu": "8"}}}, 8),
        ({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "8"}}}, 1),
        ({"resources": {"limits": {"cpu": "8"}}}, 2),
        ({"containers": [{}], "resources": {"limits": {"cpu": "8"}}}, 8),
        ({"resources": {"requests": {"cpu": "8"}}, "overhead": {"cpu": "1"}}, 9),
    ],
    ids=[
        "a sidecar runs beside an init container after it", "not beside one before it", "each beside those after it",
        "the pod's request stands for all", "not its limit beside a request", "its limit gives way to a container's",
        "its limit alone is its request", "overhead is added",
    ],
)  # fmt: skip
def test_sidecars_and_the_pod_s_own_resources_count_as_in_kube_scheduler(pod, cpu):
    assert dict(resources.demand({"containers": [container(cpu="2")], **pod})) == {"cpu": cpu * 1000, "pods": 1}


def test_a_pod_as_a_whole_has_no_accelerators():
    whole = {"requests": {GPU: "8", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    pod = {"containers": [{}], "resources": whole}
    assert dict(resources.demand(pod)) == {"memory": 2**30, "pods": 1}
    assert dict(resources.charge(pod))["limits.memory"] == 2 * 2**30
    assert "NotBestEffort" in resources.scopes(pod)


def test_limit_counts_without_a_request():
    pod = {"containers": [{"resources": {"limits": {GPU: 2, "cpu": "4"}, "requests": {"cpu": "1"}}}]}
    assert dict(resources.demand(pod)) == {GPU: 2, "cpu": 1000, "pods": 1}


def test_equal_demands_are_one_object():
    assert resources.demand({"containers": [container(cpu="1")]}) is resources.demand(
        {"containers": [container(cpu="1")]}
    )


def body(**status) -> dict:
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "n"}, "status": {"allocatable": {GPU: "8"}, "conditions": ready, **status}}


def test_a_nodes_facts_are_parsed():
    raw = body()
    raw["spec"] = {"taints": [{"key": GPU, "effect": "NoSchedule"}], "unschedulable": True}
    facts = nodes.node(raw)
    assert (facts.allocatable, facts.taints) == ({GPU: 8}, (Taint(GPU),))
    assert (facts.ready, facts.cordoned, facts.going) == (True, True, "")
    assert not nodes.node(body(conditions=[])).ready, "without a condition it is not ready"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]}},
        {"status": {"conditions": [{"type": "PreemptScheduled", "status": "True"}]}},
        {"metadata": {"name": "n", "deletionTimestamp": "2030-01-01T00:00:00Z"}},
    ],
)
def test_node_is_departing_if_that_was_announced(change):
    assert nodes.node({**body(), **change}).going


def test_kind_follows_the_template():
    required = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": ["b"]}]
    required["nodeSelectorTerms"] += [{"matchFields": fields}, {}]
    spec = {
        "containers": [{"name": "trainer", "resources": {"limits": {GPU: "4"}}}],
        "nodeSelector": {"pool": "a100"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
    }
    place = NodeRules(
        (("pool", "a100"),),
        ((Requirement("zone", "In", ("a",)),), (Requirement("metadata.name", "NotIn", ("b",), of_field=True),), ()),
        (Toleration("spot", "Exists"), Toleration(GPU, "Exists", effect="NoSchedule")),
        ("sick",),
    )
    assert shape({"spec": spec}, ["sick"]) == WorkerShape(((GPU, 4), ("pods", 1)), place)


REQUIRED = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}


@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        ({}, ""),
        ({"schedulerName": "default-scheduler", "affinity": {"podAntiAffinity": PREFERRED}}, ""),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, ""),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}, "resource claims that all workers share"),
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "d"}}]}, "volumes' nodes"),
        ({"volumes": [{"name": "scratch", "ephemeral": {}}, {"name": "x", "emptyDir": {}}]}, "volumes' nodes"),
        ({"affinity": {"podAffinity": REQUIRED}}, "pod affinity"),
        ({"affinity": {"podAntiAffinity": REQUIRED}}, "pod affinity"),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "topology spread"),
        ({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}, "scheduling gates"),
        ({"schedulerName": "volcano"}, "scheduler"),
    ],
)
def test_answer_names_what_the_allocator_does_not_know(spec, unknown):
    """Claims of devices, zones of volumes, pod affinity and other schedulers are not in its books."""
    template = {"spec": {"containers": [{"name": "trainer"}], **spec}}
    assert ", ".join(shapes.unknown(template)) == unknown
    job = Job("u", "ns", "j", 1, 2, shape(template), unknown=shapes.unknown(template))
    said = f"the allocator does not know the template's {unknown}" if unknown else ""
    assert explanations.blind(job) == said
