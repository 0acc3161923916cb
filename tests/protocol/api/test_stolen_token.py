"""What a stolen token of the operator can do: attacks on a real API server with the chart's rights and policies."""

from __future__ import annotations

import copy
import json
import time
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from charts import Run, operator
from conditions import eventually
from elastrain.api import names
from elastrain.api.job import JobSpec
from elastrain.etcd import EtcdConfig
from elastrain_operator.apply import budget as budgets
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.model import DisruptionBudget, JobRef
from elastrain_operator.pod import manifest as manifests
from elastrain_operator.pod import uses
from elastrain_operator.policy import credentials
from raw_cluster import Cluster

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

Body = dict[str, Any]
MERGE = "application/merge-patch+json"
ACCOUNT = "stolen-elastrain"
CONFIG = OperatorConfig(
    etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379", user=True, ca=True, per_job=True)
)
TEMPLATE = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
    "spec": {
        "serviceAccountName": "trainer",
        "initContainers": [{"name": "fetch", "image": "fetch:1", "command": ["fetch"], "args": ["all"]}],
        "containers": [
            {
                "name": "trainer",
                "image": "trainer:1",
                "command": ["python", "train.py"],
                "args": ["--epochs=3"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
                "envFrom": [{"secretRef": {"name": "more"}}],
                "resources": {"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}},
                "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "keys", "mountPath": "/keys"}],
            },
            {"name": "sidecar", "image": "sidecar:1"},
        ],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "scratch", "emptyDir": {}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "keys"}}, {"configMap": {"name": "c"}}]}},
        ],
    },
}


PLAIN = {"spec": {"containers": [{"name": "trainer", "image": "m:1", "command": ["python"]}]}}


class Stolen:
    """The token of the operator, and what the API server answers to it."""

    def __init__(self, apiserver: ApiServer, helm: Run, home: Path, *options: str) -> None:
        self.admin = Cluster(apiserver.kubeconfig, f"tenant-{time.monotonic_ns()}")
        release = f"release-{time.monotonic_ns()}"
        for namespace in (self.admin.namespace, release, f"{release}-empty", f"{release}-plain"):
            self.admin.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            for account in ("default", "trainer", "powerful"):
                path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
                self.admin.call("POST", path, {"metadata": {"name": account}})
        settings = (
            "--set=crds.install=false",
            "--set=rbac.aggregateToDefaultRoles=false",
            f"--namespace={release}",
            *options,
        )
        made = helm("template", "stolen", "charts/elastrain", "--kube-version=1.34.0", *settings)
        kinds = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount")
        self.manifests = [m for m in yaml.safe_load_all(made.stdout) if m]
        chosen = [m for m in self.manifests if m["kind"] in kinds or m["kind"].startswith("ValidatingAdmission")]
        applied = apiserver.kubectl("apply", "-f", "-", document=yaml.safe_dump_all(chosen))
        assert applied.returncode == 0, applied.stderr
        self.release = release
        account = operator(self.manifests)["spec"]["template"]["spec"]["serviceAccountName"]
        answer = self.admin.call(
            "POST",
            f"/api/v1/namespaces/{release}/serviceaccounts/{account}/token",
            {"spec": {"expirationSeconds": 7200}},
        )
        config = yaml.safe_load(apiserver.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": answer["status"]["token"]}
        (home / "stolen").write_text(yaml.safe_dump(config))
        self.thief = Cluster(home / "stolen", self.admin.namespace)
        self.apiserver = apiserver
        self.compares = any("-templates" in m["metadata"]["name"] for m in chosen)

    def remove(self) -> None:
        kinds = ("ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ClusterRoleBinding", "ClusterRole")
        named = [f"{m['kind']}/{m['metadata']['name']}" for m in self.manifests if m["kind"] in kinds]
        self.apiserver.kubectl("delete", "--wait=false", *named)

    def job(self, name: str, template: Body = TEMPLATE, namespace: str = "", **spec: Any) -> tuple[JobRef, JobSpec]:
        where = namespace or self.admin.namespace
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"maxReplicas": 4, "template": template, **spec},
        }
        path = f"/apis/{names.API_VERSION}/namespaces/{where}/{names.PLURAL}"
        made = self.admin.call("POST", path, body)
        job, parsed = JobRef(where, name, made["metadata"]["uid"], 1), JobSpec.model_validate(made["spec"])
        if label := uses.label(template["spec"], job.uid):
            change = {"metadata": {"uid": job.uid, "labels": label}}
            assert not self.attempt("PATCH", f"{path}/{name}", change, MERGE)
        if label and self.compares:
            forged = altered(manifests.pod(job, parsed, 0, CONFIG), lambda p: trainer(p).update(image="forged:1"))
            words = ("those of its job's template", "pod-security.kubernetes.io")
            eventually(lambda: any(w in self.create(forged) for w in words), what="the API server finds the job")
        return job, parsed

    def attempt(self, method: str, path: str, body: Body | None = None, content: str = "application/json") -> str:
        """Empty: the API server accepts the request; else its refusal."""
        try:
            self.thief.call(method, path, body, content)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["message"])
        return ""

    def create(self, pod: Body) -> str:
        namespace = pod["metadata"]["namespace"]
        return self.attempt("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)


@pytest.fixture(scope="module")
def stolen(apiserver: ApiServer, helm: Run, tmp_path_factory: pytest.TempPathFactory) -> Any:
    found = Stolen(apiserver, helm, tmp_path_factory.mktemp("stolen"))
    job, spec = found.job("first")
    pod = manifests.pod(job, spec, 0, CONFIG)
    orphan = copy.deepcopy(pod)
    del orphan["metadata"]["ownerReferences"]
    deadline = time.monotonic() + 30
    while not found.create(orphan) or found.create(pod):  # until the API server has read the new policies
        assert time.monotonic() < deadline, (found.create(orphan), found.create(pod))
        time.sleep(0.1)
    yield found
    found.remove()


@pytest.fixture
def worker(stolen: Stolen) -> Body:
    """A worker as the operator makes it."""
    job, spec = stolen.job(f"job-{time.monotonic_ns()}")
    return manifests.pod(job, spec, 3, CONFIG)


# ---- the operator's own work is accepted -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"preflight": {}},
        {"preflight": {"pairs": {}}},
        {"sharedMemory": "none"},
        {"template": PLAIN},
    ],
    ids=["template", "preflight", "pairs", "no shared memory", "plain"],
)
def test_workers_of_jobs_are_accepted(stolen: Stolen, spec: Body) -> None:
    job, parsed = stolen.job(f"job-{time.monotonic_ns()}", **{"template": TEMPLATE, **spec})
    assert not stolen.create(manifests.pod(job, parsed, 0, CONFIG))
    assert not stolen.create(manifests.pod(job, parsed, 17, CONFIG, ("node-a",), stands_by=True))


def test_other_objects_of_jobs_are_accepted(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    base = f"/api/v1/namespaces/{job.namespace}"
    secret = manifests.secret(job, "u", "p", b"ca")
    assert not stolen.attempt("POST", f"{base}/secrets", secret)
    assert not stolen.attempt("PUT", f"{base}/secrets/{credentials.secret_name(job)}", secret)
    budget = budgets.manifest(job, DisruptionBudget((0, 1)))
    path = f"/apis/policy/v1/namespaces/{job.namespace}/poddisruptionbudgets/{budget['metadata']['name']}"
    for ordinals in ((0, 1), (1,)):
        applied = budgets.manifest(job, DisruptionBudget(ordinals))
        query = "?fieldManager=elastrain-operator&force=true"
        assert not stolen.attempt("PATCH", path + query, applied, "application/apply-patch+yaml")
    assert not stolen.attempt("DELETE", path)
    event = {
        "metadata": {"name": f"e-{job.uid}"},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": job.name,
            "namespace": job.namespace,
        },
        "reason": "Test",
        "type": "Normal",
    }
    assert not stolen.attempt("POST", f"{base}/events", event)
    counted = f"{base}/events/{event['metadata']['name']}"
    assert not stolen.attempt("PATCH", counted, {"count": 2}, MERGE)
    lease = {"metadata": {"name": ACCOUNT}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stolen.release}/leases"
    assert not stolen.attempt("POST", leases, lease)


def test_operator_deletes_workers_and_ended_jobs(stolen: Stolen) -> None:
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", ttlSecondsAfterFinished=0)
    pods = f"/api/v1/namespaces/{job.namespace}/pods"
    assert not stolen.attempt("POST", pods, manifests.pod(job, spec, 0, CONFIG))
    assert not stolen.attempt("DELETE", f"{pods}/{job.name}-0")
    path = stolen.admin.job_path(job.name)
    assert "have ended" in stolen.attempt("DELETE", path)
    ended = {"status": {"completionTime": "2030-01-01T00:00:00Z"}}
    assert not stolen.attempt("PATCH", f"{path}/status", ended, MERGE)
    assert not stolen.attempt("DELETE", path)


# ---- attacks with pods -----------------------------------------------------------------------------------------------
def altered(pod: Body, change: Callable[[Body], object]) -> Body:
    copied = copy.deepcopy(pod)
    change(copied)
    return copied


def trainer(pod: Body) -> Body:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")


ATTACKS: dict[str, tuple[Callable[[Body], object], str]] = {
    "no owner": (lambda p: p["metadata"].pop("ownerReferences"), "an ElasticTrainingJob, with its labels"),
    "another owner": (lambda p: p["metadata"]["ownerReferences"][0].update(kind="Job"), "an ElasticTrainingJob"),
    "two owners": (
        lambda p: p["metadata"]["ownerReferences"].append({**p["metadata"]["ownerReferences"][0], "controller": False}),
        "an ElasticTrainingJob",
    ),
    "another uid": (
        lambda p: (
            p["metadata"]["ownerReferences"][0].update(uid="00000000-0000-0000-0000-000000000000"),
            p["metadata"]["labels"].update({names.LABEL_JOB_UID: "00000000-0000-0000-0000-000000000000"}),
        ),
        "first digit",
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
    "another service account": (lambda p: p["spec"].update(serviceAccountName="powerful"), "template"),
    "a node without the scheduler": (
        lambda p: p["spec"].update(nodeName="control-plane"),
        "pod-security.kubernetes.io",
    ),
    "another secret": (
        lambda p: p["spec"]["volumes"].append({"name": "theirs", "secret": {"secretName": "foreign"}}),
        "template",
    ),
    "another secret under a known name": (
        lambda p: p["spec"]["volumes"][1].update(secret={"secretName": "foreign"}),
        "template",
    ),
    "another kind of volume under a known name": (
        lambda p: (p["spec"]["volumes"][2].pop("emptyDir"), p["spec"]["volumes"][2].update(configMap={"name": "x"})),
        "template",
    ),
    "a secret as an API token": (
        lambda p: p["spec"]["volumes"].append(
            {"name": "kube-api-access-x", "projected": {"sources": [{"secret": {"name": "foreign"}}]}}
        ),
        "template",
    ),
    "a secret in a projection": (
        lambda p: p["spec"]["volumes"][3]["projected"]["sources"].append({"secret": {"name": "foreign"}}),
        "template",
    ),
    "a secret as a variable": (
        lambda p: trainer(p)["env"].append(
            {"name": "X", "valueFrom": {"secretKeyRef": {"name": "foreign", "key": "password"}}}
        ),
        "template",
    ),
    "a secret as all variables": (
        lambda p: trainer(p)["envFrom"].append({"secretRef": {"name": "foreign"}}),
        "template",
    ),
    "another job's credentials": (
        lambda p: next(v for v in p["spec"]["volumes"] if v["name"] == "elastrain-etcd")["secret"].update(
            secretName="first-etcd-00000000"
        ),
        "template",
    ),
    "template": (lambda p: trainer(p).update(image="evil:1"), "template"),
    "another command": (lambda p: trainer(p).update(command=["sh", "-c", "evil"]), "template"),
    "another argument": (lambda p: trainer(p).update(args=["--evil"]), "template"),
    "another container": (
        lambda p: p["spec"]["containers"].append({"name": "evil", "image": "trainer:1"}),
        "template",
    ),
    "another check": (
        lambda p: p["spec"]["initContainers"].append(
            {"name": "elastrain-preflight", "image": "trainer:1", "command": ["sh", "-c", "evil"]}
        ),
        "template",
    ),
}


@pytest.mark.parametrize(("change", "words"), ATTACKS.values(), ids=ATTACKS.keys())
def test_pod_that_is_no_worker_of_its_job_is_refused(
    stolen: Stolen, worker: Body, change: Callable[[Body], object], words: str
) -> None:
    refusal = stolen.create(altered(worker, change))
    assert words in refusal or "those of its job's template" in refusal, "one of several policies answers"


@pytest.mark.parametrize("what", ["another service account", "another secret", "a secret as a variable"])
def test_worker_without_the_label_is_refused_if_it_uses_more_than_its_job(stolen: Stolen, what: str) -> None:
    """With the label, too, if no job of its namespace uses such objects."""
    job, spec = stolen.job(f"job-{time.monotonic_ns()}", PLAIN, f"{stolen.release}-plain")
    worker = manifests.pod(job, spec, 0, CONFIG)
    assert names.LABEL_USES not in worker["metadata"]["labels"], "it costs no comparison"
    worker["spec"].setdefault("volumes", [])
    stripped = altered(worker, ATTACKS[what][0])
    assert "elastrain.dev/uses" in stolen.create(stripped)
    stripped["metadata"]["labels"][names.LABEL_USES] = job.uid[0]
    assert "no params found" in stolen.create(stripped)


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
        deadline = time.monotonic() + 10
        while stolen.create(worker) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not stolen.create(worker)
        other = next(n for n, v in enumerate(worker["spec"]["volumes"]) if v["name"] == "lustre")
        root = altered(worker, lambda p: p["spec"]["volumes"][other].update(hostPath={"path": "/"}))
        assert "template" in stolen.create(root)
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


def test_namespaces_are_opened_by_a_label_if_the_values_name_one(
    stolen: Stolen, apiserver: ApiServer, helm: Run, tmp_path: Path
) -> None:
    other = Stolen(
        apiserver, helm, tmp_path, "--set=rbac.namespaceLabel=elastrain.dev/jobs", "--set=fullnameOverride=second"
    )
    try:
        job, spec = other.job("labelled")
        worker, plain = manifests.pod(job, spec, 0, CONFIG), other.job("plain", PLAIN)
        deadline = time.monotonic() + 30
        while "with the label elastrain.dev/jobs" not in (answer := other.create(worker)):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
        assert not other.create(manifests.pod(*plain, 0, CONFIG)), "it uses nothing of its namespace"
        other.admin.merge(f"/api/v1/namespaces/{job.namespace}", {"metadata": {"labels": {"elastrain.dev/jobs": ""}}})
        while answer := other.create(worker):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
    finally:
        other.remove()


def test_pods_of_others_are_not_deleted(stolen: Stolen) -> None:
    pod = {"metadata": {"name": "theirs"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    stolen.admin.call("POST", stolen.admin.pods_path, pod)
    assert "an ElasticTrainingJob owns" in stolen.attempt("DELETE", f"{stolen.admin.pods_path}/theirs")


# ---- attacks with other objects --------------------------------------------------------------------------------------
def test_secrets_of_others_are_neither_changed_nor_created(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    base = f"/api/v1/namespaces/{job.namespace}/secrets"
    stolen.admin.call("POST", base, {"metadata": {"name": "theirs"}, "stringData": {"password": "x"}})
    ours = manifests.secret(job, "u", "p", b"ca")
    take_over = altered(ours, lambda s: s["metadata"].update(name="theirs"))
    assert "ElasticTrainingJob owns" in stolen.attempt("PUT", f"{base}/theirs", take_over)
    assert "etcd credentials" in stolen.attempt("POST", base, altered(ours, lambda s: s["metadata"].update(name="new")))
    token = altered(
        ours,
        lambda s: s.update(
            type="kubernetes.io/service-account-token",
            data={},
            metadata={**s["metadata"], "annotations": {"kubernetes.io/service-account.name": "powerful"}},
        ),
    )
    assert "etcd credentials" in stolen.attempt("POST", base, token)
    orphan = altered(ours, lambda s: s["metadata"].pop("ownerReferences"))
    assert "ElasticTrainingJob owns" in stolen.attempt("POST", base, orphan)
    assert "cannot get" in stolen.attempt("GET", f"{base}/theirs")


def test_budgets_of_others_are_neither_changed_nor_deleted(stolen: Stolen) -> None:
    path = f"/apis/policy/v1/namespaces/{stolen.admin.namespace}/poddisruptionbudgets"
    theirs = {"metadata": {"name": "theirs"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}
    stolen.admin.call("POST", path, theirs)
    assert "ElasticTrainingJob owns" in stolen.attempt("DELETE", f"{path}/theirs")
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    all_pods = altered(
        budgets.manifest(job, DisruptionBudget((0,))), lambda b: b["spec"].update(selector={"matchLabels": {"x": "y"}})
    )
    assert "workers of one job" in stolen.attempt("POST", path, all_pods)


def test_running_jobs_are_not_deleted(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    assert "have ended" in stolen.attempt("DELETE", stolen.admin.job_path(job.name))


def test_only_the_label_of_a_job_is_changed(stolen: Stolen) -> None:
    job, _ = stolen.job(f"job-{time.monotonic_ns()}")
    path = stolen.admin.job_path(job.name)
    others = "0123456789abcdef".replace(job.uid[0], "")
    for attack in (
        {"spec": {"maxReplicas": 9}},
        {"spec": {"template": {"spec": {"serviceAccountName": "powerful"}}}},
        {"metadata": {"labels": {names.LABEL_USES: others[0]}}},
        {"metadata": {"labels": {names.LABEL_USES: None}}},
        {"metadata": {"labels": {"team": "b"}}},
        {"metadata": {"labels": {names.LABEL_USES: job.uid[0], "team": "b"}}},
        {"metadata": {"annotations": {"note": "x"}}},
        {"metadata": {"finalizers": ["example.com/held"]}},
    ):
        assert "only its label" in stolen.attempt("PATCH", path, attack, MERGE), attack
    same = {"metadata": {"labels": {names.LABEL_USES: job.uid[0]}}}
    assert not stolen.attempt("PATCH", path, same, MERGE)


def test_worker_with_the_label_of_another_job_is_refused(stolen: Stolen, worker: Body) -> None:
    """Else it would be compared with the jobs of that label only."""
    uid = worker["metadata"]["ownerReferences"][0]["uid"]
    other = next(digit for digit in "0123456789abcdef" if digit != uid[0])
    wrong = altered(worker, lambda p: p["metadata"]["labels"].update({names.LABEL_USES: other}))
    assert "first digit" in stolen.create(wrong) or "no params found" in stolen.create(wrong)


def test_leases_and_events_of_others_are_not_written(stolen: Stolen) -> None:
    lease = {"metadata": {"name": "another"}, "spec": {"holderIdentity": "me"}}
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{stolen.release}/leases"
    assert "its own Lease" in stolen.attempt("POST", leases, lease)
    event = {
        "metadata": {"name": "forged"},
        "involvedObject": {"kind": "Pod", "name": "x", "namespace": stolen.admin.namespace},
        "reason": "Forged",
        "type": "Normal",
    }
    events = f"/api/v1/namespaces/{stolen.admin.namespace}/events"
    assert "about ElasticTrainingJobs only" in stolen.attempt("POST", events, event)


ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
NAMED = {"metadata": {"name": "x"}}
OTHERS = {
    "bind a pod": ("/api/v1/namespaces/{n}/pods/x/binding", {**NAMED, "target": {"name": "nodeName"}}),
    "request a token": ("/api/v1/namespaces/{n}/serviceaccounts/powerful/token", {"spec": {}}),
    "bind a role": ("/apis/rbac.authorization.k8s.io/v1/namespaces/{n}/rolebindings", {**NAMED, "roleRef": ROLE}),
    "exec": ("/api/v1/namespaces/{n}/pods/x/exec", {}),
    "evict": ("/api/v1/namespaces/{n}/pods/x/eviction", NAMED),
    "deployment": ("/apis/apps/v1/namespaces/{n}/deployments", NAMED),
    "job": (
        "/apis/elastrain.dev/v1alpha1/namespaces/{n}/elastictrainingjobs",
        {**NAMED, "spec": {"maxReplicas": 1, "template": TEMPLATE}},
    ),
}


@pytest.mark.parametrize(("path", "body"), OTHERS.values(), ids=OTHERS.keys())
def test_other_rights_are_not_granted(stolen: Stolen, path: str, body: Body) -> None:
    assert "cannot create" in stolen.attempt("POST", path.format(n=stolen.admin.namespace), body)


def test_nobody_else_is_bound_by_the_policies(stolen: Stolen) -> None:
    pod = {"metadata": {"name": "free"}, "spec": {"containers": [{"name": "c", "image": "i:1"}], "hostNetwork": True}}
    stolen.admin.call("POST", f"{stolen.admin.pods_path}?dryRun=All", pod)
