"""What a stolen token of the operator can do with pods: attacks on a real API server."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest

from conditions import eventually
from elastrain.api import names
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.pod import workerset
from stolen_token import CONFIG, MERGE, PLAIN, TEMPLATE, Body, Stolen, altered, trainer

pytestmark = pytest.mark.apiserver


# ---- the operator's own work is accepted -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"preflight": {}},
        {"preflight": {"pairs": {}}},
        {"template": PLAIN},
    ],
    ids=["template", "preflight", "pairs", "plain"],
)
def test_workers_of_jobs_are_accepted(stolen: Stolen, spec: Body) -> None:
    job, parsed = stolen.job(f"job-{time.monotonic_ns()}", **{"template": TEMPLATE, **spec})
    assert not stolen.create(manifests.pod(job, parsed, 0, CONFIG))
    assert not stolen.create(manifests.pod(job, parsed, 17, CONFIG, ("node-a",), stands_by=True))


def test_workers_that_their_job_s_set_controls_are_accepted(stolen: Stolen, worker: Body) -> None:
    job = JobRef(worker["metadata"]["namespace"], worker["metadata"]["labels"][names.LABEL_JOB], uid_of(worker))
    assert not stolen.create(workerset.controlled(worker, job, "of-the-set"))


# ---- the platform's work is no concern of a policy -------------------------------------------------------------------
TOKEN = {"serviceAccountToken": {"audience": "sts.example", "expirationSeconds": 86400, "path": "token"}}
PROXY = {"name": "proxy", "image": "proxy:1", "envFrom": [{"configMapRef": {"name": "mesh"}}]}
VOLUMES = [
    {"name": "envoy", "emptyDir": {"medium": "Memory"}},
    {"name": "ca", "configMap": {"name": "ca"}},
    {"name": "token", "projected": {"sources": [TOKEN, {"configMap": {"name": "ca"}}]}},
]


def on_a_platform(pod: Body) -> None:
    """A cloud role, a mesh and a mirror; e2e/test_platform.py has them on a cluster."""
    spec = pod["spec"]
    trainer(pod)["image"] = "mirror.example/trainer:1"
    trainer(pod)["env"].append({"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}})
    spec["containers"].append(copy.deepcopy(PROXY))
    spec["initContainers"] = [*spec.get("initContainers", ()), {"name": "init", "image": "proxy:1"}]
    spec["volumes"] = [*spec.get("volumes", ()), *copy.deepcopy(VOLUMES)]
    spec["imagePullSecrets"] = [{"name": "mirror"}]


@pytest.mark.parametrize("template", [TEMPLATE, PLAIN], ids=["with Secrets and claims", "plain"])
def test_worker_is_accepted_with_what_the_platform_adds(stolen: Stolen, template: Body) -> None:
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", template)
    assert not stolen.create(altered(manifests.pod(job, spec, 0, CONFIG), on_a_platform))


def uid_of(worker: Body) -> str:
    return str(worker["metadata"]["labels"][names.LABEL_JOB_UID])


# ---- attacks --------------------------------------------------------------------------------------------------------
ATTACKS: dict[str, tuple[Callable[[Body], object], str]] = {
    "no owner": (lambda p: p["metadata"].pop("ownerReferences"), "an ElasticTrainingJob, with its labels"),
    "another owner": (lambda p: p["metadata"]["ownerReferences"][0].update(kind="Job"), "an ElasticTrainingJob"),
    "two owners": (
        lambda p: p["metadata"]["ownerReferences"].append({**p["metadata"]["ownerReferences"][0], "controller": False}),
        "an ElasticTrainingJob",
    ),
    "another set": (
        lambda p: p["metadata"].update(
            ownerReferences=[
                {**p["metadata"]["ownerReferences"][0], "controller": False},
                {**p["metadata"]["ownerReferences"][0], "kind": names.SET_KIND, "name": "theirs", "uid": "u"},
            ]
        ),
        "an ElasticTrainingJob",
    ),
    "another uid": (
        lambda p: (
            p["metadata"]["ownerReferences"][0].update(uid="00000000-0000-0000-0000-000000000000"),
            p["metadata"]["labels"].update({names.LABEL_JOB_UID: "00000000-0000-0000-0000-000000000000"}),
        ),
        "UID of another job",
    ),
    "another name": (lambda p: p["metadata"].update(name="coredns-0"), "its name"),
    "privileged": (lambda p: trainer(p).update(securityContext={"privileged": True}), "pod-security.kubernetes.io"),
    "all capabilities": (
        lambda p: trainer(p).update(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
        "pod-security.kubernetes.io",
    ),
    "host's files": (
        lambda p: p["spec"]["volumes"].append({"name": "scratch2", "hostPath": {"path": "/"}}),
        "pod-security.kubernetes.io",
    ),
    "host's network": (lambda p: p["spec"].update(hostNetwork=True), "pod-security.kubernetes.io"),
    "host's processes": (lambda p: p["spec"].update(hostPID=True), "pod-security.kubernetes.io"),
    "another service account": (
        lambda p: p["spec"].update(serviceAccountName="powerful"),
        "account powerful is not",
    ),
    "a node without the scheduler": (
        lambda p: p["spec"].update(nodeName="control-plane"),
        "pod-security.kubernetes.io",
    ),
    "another secret": (
        lambda p: p["spec"]["volumes"].append({"name": "theirs", "secret": {"secretName": "foreign"}}),
        "Secret foreign is not in template.spec",
    ),
    "another secret under a known name": (
        lambda p: p["spec"]["volumes"][1].update(secret={"secretName": "foreign"}),
        "Secret foreign is not in template.spec",
    ),
    "a secret as an API token": (
        lambda p: p["spec"]["volumes"].append(
            {"name": "kube-api-access-x", "projected": {"sources": [{"secret": {"name": "foreign"}}]}}
        ),
        "Secret foreign is not in template.spec",
    ),
    "a secret in a projection": (
        lambda p: p["spec"]["volumes"][3]["projected"]["sources"].append({"secret": {"name": "foreign"}}),
        "Secret foreign is not in template.spec",
    ),
    "a secret as a variable": (
        lambda p: trainer(p)["env"].append(
            {"name": "X", "valueFrom": {"secretKeyRef": {"name": "foreign", "key": "password"}}}
        ),
        "Secret foreign is not in template.spec",
    ),
    "a secret as all variables": (
        lambda p: trainer(p)["envFrom"].append({"secretRef": {"name": "foreign"}}),
        "Secret foreign is not in template.spec",
    ),
    "another job's credentials": (
        lambda p: next(v for v in p["spec"]["volumes"] if v["name"] == "elastrain-etcd")["secret"].update(
            secretName="first-etcd-00000000"
        ),
        "Secret first-etcd-00000000 is not in template.spec",
    ),
    "another claim": (
        lambda p: p["spec"]["volumes"][0].update(persistentVolumeClaim={"claimName": "theirs"}),
        "volume data is not in template.spec",
    ),
    "a claim beside": (
        lambda p: p["spec"]["volumes"].append({"name": "theirs", "persistentVolumeClaim": {"claimName": "data"}}),
        "volume theirs is not in template.spec",
    ),
    "a driver": (
        lambda p: p["spec"]["volumes"].append({"name": "theirs", "csi": {"driver": "secrets-store.csi.k8s.io"}}),
        "volume theirs is not in template.spec",
    ),
}


@pytest.mark.parametrize(("change", "words"), ATTACKS.values(), ids=ATTACKS.keys())
def test_pod_that_is_no_worker_of_its_job_is_refused(
    stolen: Stolen, worker: Body, change: Callable[[Body], object], words: str
) -> None:
    refusal = stolen.create(altered(worker, change))
    assert words in refusal or "template.spec of the job" in refusal or "another job" in refusal, "one policy answers"


@pytest.mark.parametrize("what", ["another service account", "another secret", "a secret as a variable"])
def test_worker_without_the_label_is_refused_if_it_uses_more_than_its_job(stolen: Stolen, what: str) -> None:
    """With the label, too."""
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", PLAIN, f"{stolen.release}-plain")
    worker = manifests.pod(job, spec, 0, CONFIG)
    assert names.LABEL_USES not in worker["metadata"]["labels"], "it costs no comparison"
    worker["spec"].setdefault("volumes", [])
    stripped = altered(worker, ATTACKS[what][0])
    assert "is not in template.spec" in stolen.create(stripped)
    stripped["metadata"]["labels"][names.LABEL_USES] = "true"
    assert "is not in template.spec" in stolen.create(stripped)


def test_no_pod_uses_objects_of_a_namespace_without_jobs(stolen: Stolen, worker: Body) -> None:
    """Such as kube-system, or that of the release: their service accounts, Secrets and claims stay out of reach."""
    for namespace in (stolen.release, f"{stolen.release}-empty"):
        there = altered(worker, lambda p, n=namespace: p["metadata"].update(namespace=n))
        assert "no params found" in stolen.create(there)


def test_an_invented_job_gives_no_access_to_the_host(stolen: Stolen, worker: Body) -> None:
    def invent(pod: Body) -> None:
        pod["metadata"]["name"] = "invented-3"
        pod["metadata"]["labels"][names.LABEL_JOB] = "invented"
        pod["metadata"]["ownerReferences"][0]["name"] = "invented"

    invented = altered(worker, invent)
    assert not stolen.create(invented), "this is left: docs/operations.md says so"
    for change in ("privileged", "host's files", "host's network", "host's processes", "all capabilities"):
        assert "pod-security.kubernetes.io" in stolen.create(altered(invented, ATTACKS[change][0])), change


def test_workers_use_the_host_if_their_template_and_their_namespace_say_so(stolen: Stolen) -> None:
    template = copy.deepcopy(TEMPLATE)
    template["spec"]["volumes"].append({"name": "lustre", "hostPath": {"path": "/lustre"}})
    template["spec"] |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", template)
    worker = manifests.pod(job, spec, 0, CONFIG)
    assert "pod-security.kubernetes.io/enforce=privileged" in stolen.create(worker)
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    path = f"/api/v1/namespaces/{job.namespace}"
    stolen.admin.merge(path, label)
    try:
        eventually(lambda: not stolen.create(worker), what="the API server reads the namespace's label", pause=0.1)
        other = next(n for n, v in enumerate(worker["spec"]["volumes"]) if v["name"] == "lustre")
        root = altered(worker, lambda p: p["spec"]["volumes"][other].update(hostPath={"path": "/"}))
        assert "volume lustre is not in template.spec" in stolen.create(root)
    finally:
        stolen.admin.merge(path, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}})


def test_only_annotations_of_a_worker_are_changed(stolen: Stolen) -> None:
    job, spec = stolen.job(f"job-{time.monotonic_ns()}")
    worker = manifests.pod(job, spec, 0, CONFIG)
    pods = f"/api/v1/namespaces/{job.namespace}/pods"
    assert not stolen.attempt("POST", pods, worker)
    path = f"{pods}/{worker['metadata']['name']}"
    note = {"metadata": {"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}}
    assert not stolen.attempt("PATCH", path, note, MERGE)
    image = {"spec": {"containers": [{"name": "trainer", "image": "evil:1"}]}}
    assert "only annotations" in stolen.attempt("PATCH", path, image, "application/strategic-merge-patch+json")
    assert "only annotations" in stolen.attempt("PATCH", path, {"metadata": {"labels": {"team": "b"}}}, MERGE)
    assert "ElasticTrainingJob owns" in stolen.attempt("PATCH", path, {"metadata": {"ownerReferences": None}}, MERGE)
    theirs = {"metadata": {"name": "unrelated"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    stolen.admin.call("POST", stolen.admin.pods_path, theirs)
    assert "ElasticTrainingJob owns" in stolen.attempt("PATCH", f"{stolen.admin.pods_path}/unrelated", note, MERGE)


def test_pods_of_others_are_not_deleted(stolen: Stolen) -> None:
    pod = {"metadata": {"name": "theirs"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    stolen.admin.call("POST", stolen.admin.pods_path, pod)
    assert "an ElasticTrainingJob owns" in stolen.attempt("DELETE", f"{stolen.admin.pods_path}/theirs")
