"""The CRD on a real API server: what it accepts, its messages on refusal, and its columns."""

from __future__ import annotations

import itertools
import json
import re
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import ValidationError

from elastrain_resource.job import JobSpec
from raw_cluster import Cluster

if TYPE_CHECKING:
    from control_plane import ApiServer

pytestmark = pytest.mark.apiserver

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(ROOT.glob("examples/*/*.yaml"))


def job(name: str, **spec: Any) -> dict[str, Any]:
    """A valid manifest; ``spec`` adds or replaces fields."""
    container = {"name": "trainer", "image": "digits:1", "command": ["python", "train.py"]}
    return {
        "apiVersion": "elastrain.dev/v1alpha1",
        "kind": "ElasticTrainingJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minReplicas": 1, "maxReplicas": 4, "template": {"spec": {"containers": [container]}}} | spec,
    }


@pytest.fixture
def created(apiserver: ApiServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A job on the server, with a unique name; deleted afterwards."""
    name = re.sub(r"[^a-z]+", "-", request.node.name)[-40:].strip("-")
    cluster = Cluster(apiserver.kubeconfig, "default")
    cluster.call("POST", cluster.job_path(), job(name))
    yield name
    cluster.call("DELETE", cluster.job_path(name))


def get(apiserver: ApiServer, name: str) -> dict[str, Any]:
    return Cluster(apiserver.kubeconfig, "default").job(name)


def patch(apiserver: ApiServer, name: str, change: dict[str, Any], subresource: str = "") -> str:
    """The server's refusal; empty: it has accepted. (kubectl would take 0.1 s of CPU for each.)"""
    cluster = Cluster(apiserver.kubeconfig, "default")
    try:
        cluster.merge(cluster.job_path(name) + subresource, change)
    except urllib.error.HTTPError as error:
        return str(json.load(error)["message"])
    return ""


# ---- accepted --------------------------------------------------------------------------------------------------------
def test_committed_crd_is_accepted_by_the_server(apiserver: ApiServer) -> None:
    result = apiserver.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", str(ROOT / "crds"))
    assert result.returncode == 0, result.stderr
    accepted = json.loads(apiserver.kubectl("get", "crd", "elastictrainingjobs.elastrain.dev", "-o", "json").stdout)
    problems = [c for c in accepted["status"]["conditions"] if c["type"] == "NonStructuralSchema"]
    assert problems == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_example_is_accepted(apiserver: ApiServer, path: Path) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        if document and document["kind"] == "ElasticTrainingJob":
            result = apiserver.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", document=document)
            assert result.returncode == 0, result.stderr


def test_defaults_are_filled_in(apiserver: ApiServer, created: str) -> None:
    spec = get(apiserver, created)["spec"]
    assert spec.pop("template")
    ours = JobSpec.model_validate(job(created)["spec"])
    assert spec == ours.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"template"})


def test_template_keeps_other_kubernetes_fields(apiserver: ApiServer) -> None:
    manifest = job("keeps")
    pod = manifest["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "Never", "tolerations": [{"operator": "Exists"}]}
    pod["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
    result = apiserver.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", document=manifest
    )
    assert json.loads(result.stdout)["spec"]["template"]["spec"] == pod


def test_null_means_absent(apiserver: ApiServer) -> None:
    manifest = job("nulls", replicas=None, checkpoint=None)
    result = apiserver.kubectl("create", "--dry-run=server", "--validate=strict", "-f", "-", document=manifest)
    assert result.returncode == 0, result.stderr


# ---- refused, naming field, value and rule ---------------------------------------------------------------------------
NO_COMMAND = {"spec": {"containers": [{"name": "trainer", "image": "digits:1"}]}}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"minReplicas": 5}, "spec.minReplicas", "minReplicas (5) must not be greater than maxReplicas (4)"),
    ({"replicas": 9}, "spec.replicas", "replicas (9) must be between minReplicas (1) and maxReplicas (4)"),
    ({"warmSpares": 5}, "spec.warmSpares", "warmSpares (5) must not be greater than maxReplicas (4)"),
    ({"warmSpares": -1}, "spec.warmSpares", "spec.warmSpares in body should be greater than or equal to 0"),
    ({"replicas": 1, "minReplicas": 2}, "spec.replicas",
     "replicas (1) must be between minReplicas (2) and maxReplicas (4)"),
    ({"minReplicas": 0}, "spec.minReplicas", "0: spec.minReplicas in body should be greater than or equal to 1"),
    ({"maxReplicas": 0}, "spec.maxReplicas", "0: spec.maxReplicas in body should be greater than or equal to 1"),
    ({"replicas": 0}, "spec.replicas", "0: spec.replicas in body should be greater than or equal to 1"),
    ({"nprocPerNode": -1}, "spec.nprocPerNode", "-1: spec.nprocPerNode in body should be"),
    ({"nprocPerNode": "many"}, "spec.nprocPerNode", '"many": spec.nprocPerNode in body should match'),
    ({"accelerator": "gpu"}, "spec.accelerator", '"gpu": spec.accelerator in body should match'),
    ({"managedBy": "kueue"}, "spec.managedBy", '"kueue": spec.managedBy in body should match'),
    ({"pendingDeadlineSeconds": 0}, "spec.pendingDeadlineSeconds", "0: spec.pendingDeadlineSeconds in body should be"),
    ({"backoffLimit": -1}, "spec.backoffLimit", "-1: spec.backoffLimit in body should be"),
    ({"activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "0: spec.activeDeadlineSeconds in body should be"),
    ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished", "-1: spec.ttlSecondsAfterFinished in body"),
    ({"cleanPodPolicy": "Some"}, "spec.cleanPodPolicy", '"Some": supported values: "Running", "All", "None"'),
    ({"replicas": "2"}, "spec.replicas", '"string": spec.replicas in body must be of type integer'),
    ({"parallelism": {"shards": 0}}, "spec.parallelism.shards", "0: spec.parallelism.shards in body should be greater"),
    ({"parallelism": {"shards": "some"}}, "spec.parallelism.shards", "spec.parallelism.shards in body should match"),
    ({"nprocPerNode": 2, "parallelism": {"shards": 3}}, "spec.parallelism",
     "parallelism.shards (3) must divide nprocPerNode (2)"),
    ({"nprocPerNode": 4, "parallelism": {"shards": 4, "tensor": 3}}, "spec.parallelism",
     "parallelism.tensor (3) must divide parallelism.shards, which must be a number"),
    ({"parallelism": {"shards": "all", "tensor": 2}}, "spec.parallelism",
     "parallelism.tensor (2) must divide parallelism.shards, which must be a number"),
    ({"nprocPerNode": "auto", "parallelism": {"shards": 2}}, "spec.parallelism",
     "parallelism.shards (2) must divide nprocPerNode (auto), which must be a number"),
    ({"nprocPerNode": 8, "parallelism": {"mesh": [{"name": "dp_shard", "size": 3}]}}, "spec.parallelism",
     "parallelism.mesh (present) must have as many ranks as divide nprocPerNode (8)"),
    ({"parallelism": {"mesh": []}}, "spec.parallelism.mesh", "should have at least 1 items"),
    ({"parallelism": {"mesh": [{"name": "pp", "size": 1}]}}, "spec.parallelism.mesh", "must have a dimension dp_shard"),
    ({"parallelism": {"mesh": [{"name": "dp_shard", "size": 1}, {"name": "dp_shard", "size": 1}]}},
     "spec.parallelism.mesh", "dimensions of different names"),
    ({"parallelism": {"mesh": [{"name": "dp_shard", "size": 1024}, {"name": "tp", "size": 1024}]}},
     "spec.parallelism.mesh", "at most 65536 ranks"),
    ({"parallelism": {"mesh": [{"name": "dp_shard", "size": 1}, {"name": "ring", "size": 1}]}},
     "spec.parallelism.mesh[1]", "divides (ring) needs divides"),
    ({"parallelism": {"mesh": [{"name": "dp_shard", "size": 1, "divides": "Layers"}]}},
     "spec.parallelism.mesh[0]", "must be Batch for dp_shard"),
    ({"parallelism": {"mesh": [{"name": "dp_shard", "size": 1}], "shards": 2}, "nprocPerNode": 2},
     "spec.parallelism.mesh", "short forms of it"),
    ({"batch": {"min": 8, "max": 4, "learningRate": "Linear"}}, "spec.batch.max",
     "batch.max (4) must not be less than batch.min (8)"),
    ({"batch": {"min": 8, "max": 8, "learningRate": "linear"}}, "spec.batch.learningRate", "supported values"),
    ({"batch": {"min": 8, "max": 8, "learningRate": "Linear"}, "parallelism": {"shards": "all"}}, "spec.batch",
     "batch (present) must be absent if parallelism.shards is not 1"),
    ({"shares": "Measured", "parallelism": {"shards": "all"}}, "spec.shares",
     "must be Equal if parallelism.shards is all"),
    ({"maxShare": 1.5}, "spec.maxShare", "maxShare (1.5) must be absent if shares is Equal"),
    ({"shares": "Measured", "maxShare": 0.5}, "spec.maxShare", "greater than or equal to 1"),
    ({"checkpoint": {"path": "data"}}, "spec.checkpoint.path",
     "path (data) must begin with '/' (or, in local mode, with '.'), or be a URL"),
    ({"checkpoint": {"path": "s3://key:secret@bucket/c"}}, "spec.checkpoint.path", "must contain no credentials"),
    ({"checkpoint": {"path": "/c", "archive": {"path": "bucket"}}}, "spec.checkpoint.archive.path",
     "path (bucket) must begin"),
    ({"checkpoint": {}}, "spec.checkpoint.path", "Required value"),
    ({"checkpoint": {"path": "/c", "keep": 0}}, "spec.checkpoint.keep", "0: spec.checkpoint.keep in body"),
    ({"template": None}, "spec.template", "Required value"),
    ({"template": {}}, "spec.template.spec", "Required value"),
    ({"template": {"spec": {"containers": []}}}, "spec.template.spec.containers", "should have at least 1 items"),
    ({"template": {"spec": {"containers": [{"name": "a", "command": ["c"]}]}}},
     "spec.template.spec.containers[0].image", "Required value"),
    ({"template": NO_COMMAND}, "spec.template.spec.containers",
     "containers (trainer) must have a command in the container named trainer, else in the first one"),
]  # fmt: skip


@pytest.fixture(scope="module")
def refusals(apiserver: ApiServer) -> dict[str, str]:
    """kubectl's message about each of REFUSED, by the job's name. (One call for all: kubectl is slow to start.)"""
    manifests = [job(f"refused-{i}", **spec) for i, (spec, _, _) in enumerate(REFUSED)]
    result = apiserver.kubectl("create", "-f", "-", document=yaml.safe_dump_all(manifests))
    assert result.stdout == ""
    parts = re.split(r'ElasticTrainingJob\S* "(refused-\d+)" is invalid:', result.stderr)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("i", range(len(REFUSED)), ids=[f"{field}-{i}" for i, (_, field, _) in enumerate(REFUSED)])
def test_refusal_names_field_value_and_rule(refusals: dict[str, str], i: int) -> None:
    _, field, words = REFUSED[i]
    said = refusals[f"refused-{i}"]
    assert words in next((line for line in said.splitlines() if field in line), ""), said


def test_each_broken_rule_is_named_at_once(apiserver: ApiServer) -> None:
    result = apiserver.kubectl(
        "apply", "-f", "-", document=job("bad", minReplicas=5, replicas=9, checkpoint={"path": "x"})
    )
    assert [line.split(":")[0] for line in result.stderr.splitlines()[1:]] == [
        "* spec.minReplicas", "* spec.replicas", "* spec.checkpoint.path"]  # fmt: skip


@pytest.mark.parametrize("name", ["digits.a", "d" * 51])
def test_name_is_refused_if_no_pod_could_be_named_after_it(apiserver: ApiServer, name: str) -> None:
    result = apiserver.kubectl("apply", "-f", "-", document=job(name))
    assert f"metadata.name ({name}) must be lower-case letters, digits and '-'" in result.stderr


def test_name_of_fifty_characters_is_accepted(apiserver: ApiServer) -> None:
    result = apiserver.kubectl("create", "--dry-run=server", "-f", "-", document=job("d" * 50))
    assert result.returncode == 0, result.stderr


def test_unknown_field_is_refused_under_strict_validation(apiserver: ApiServer) -> None:
    result = apiserver.kubectl("apply", "--validate=strict", "-f", "-", document=job("bad", maxReplica=3))
    assert 'unknown field "spec.maxReplica"' in result.stderr


def test_two_containers_of_one_name_are_refused(apiserver: ApiServer) -> None:
    manifest = job("bad")
    manifest["spec"]["template"]["spec"]["containers"] *= 2
    result = apiserver.kubectl("apply", "-f", "-", document=manifest)
    assert "spec.template.spec.containers[1]: Duplicate value" in result.stderr


def test_server_and_pydantic_agree_on_every_combination_of_small_sizes(apiserver: ApiServer) -> None:
    manifests, valid = [], set()
    for low, now, high in itertools.product(range(4), [None, 0, 1, 2, 3], range(4)):
        sizes = {"minReplicas": low, "maxReplicas": high} | ({} if now is None else {"replicas": now})
        manifest = job(f"sizes-{low}-{'x' if now is None else now}-{high}", **sizes)
        manifests.append(manifest)
        try:
            JobSpec.model_validate(manifest["spec"])
            valid.add(manifest["metadata"]["name"])
        except ValidationError:
            pass
    result = apiserver.kubectl(
        "create", "--dry-run=server", "-o", "name", "-f", "-", document=yaml.safe_dump_all(manifests)
    )
    accepted = {line.partition("/")[2] for line in result.stdout.splitlines()}
    assert len(valid) > 10
    assert accepted == valid


# ---- changes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nprocPerNode": 2}, "nprocPerNode (2) may only change while suspend is true"),
        ({"nprocPerNode": "auto"}, "nprocPerNode (auto) may only change while suspend is true"),
        ({"checkpoint": {"path": "/other"}}, "checkpoint.path (/other) may only change while suspend is true"),
        (
            {"nprocPerNode": 2, "parallelism": {"shards": 2}},
            "parallelism.shards (2) may only change while suspend is true",
        ),
        ({"parallelism": {"shards": "all"}}, "parallelism.shards (all) may only change while suspend is true"),
        (
            {"parallelism": {"maxRedoneSteps": 5}},
            "parallelism.maxRedoneSteps (5) may only change while suspend is true",
        ),
        (
            {"checkpoint": {"path": "/c", "archive": {"path": "s3://b/c"}}},
            "checkpoint.archive.path (s3://b/c) may only change while suspend is true",
        ),
        (
            {"batch": {"min": 8, "max": 64, "learningRate": "Linear"}, "parallelism": None},
            "batch (present) may only change while suspend is true",
        ),
        ({"shares": "Measured"}, "shares (Measured) may only change while suspend is true"),
        ({"shares": "Measured", "maxShare": 3}, "maxShare (3) may only change while suspend is true"),
        ({"divergence": {"everySteps": 10}}, "divergence (present) may only change while suspend is true"),
    ],
    ids=[
        "nproc",
        "auto",
        "checkpoint",
        "shards",
        "all shards",
        "redone",
        "archive",
        "batch",
        "shares",
        "max share",
        "divergence",
    ],
)
def test_change_is_refused_if_running_workers_would_not_follow(
    apiserver: ApiServer, created: str, change: dict[str, Any], words: str
) -> None:
    assert words in patch(apiserver, created, {"spec": change})
    assert patch(apiserver, created, {"spec": {"suspend": True}}) == ""
    assert patch(apiserver, created, {"spec": change}) == ""
    assert patch(apiserver, created, {"spec": {"suspend": False}}) == ""


def test_checkpoint_interval_may_change_while_the_job_runs(apiserver: ApiServer) -> None:
    name = "interval"
    assert apiserver.kubectl("create", "-f", "-", document=job(name, checkpoint={"path": "/c"})).returncode == 0
    assert patch(apiserver, name, {"spec": {"checkpoint": {"everySteps": 5}}}) == ""
    assert "(absent) may only change" in patch(apiserver, name, {"spec": {"checkpoint": None}})


def test_manager_never_changes(apiserver: ApiServer) -> None:
    name, words = "managed", "must not change: two managers would act on the same workers"
    manifest = job(name, managedBy="kueue.x-k8s.io/multikueue", suspend=True)
    assert apiserver.kubectl("create", "-f", "-", document=manifest).returncode == 0
    for manager, shown in (("elastrain.dev/operator", "elastrain.dev/operator"), (None, "absent")):
        assert f"managedBy ({shown}) {words}" in patch(apiserver, name, {"spec": {"managedBy": manager}})
    assert apiserver.kubectl("delete", "etj", name, "--wait=false").returncode == 0


def test_suspend_is_refused_if_it_discards_committed_steps(apiserver: ApiServer, created: str) -> None:
    suspend = {"spec": {"suspend": True}}
    assert patch(apiserver, created, {"status": {"step": 1200}}, "/status") == ""
    words = "spec.suspend (true) must not become true: the committed steps (status.step) would be lost"
    assert words in patch(apiserver, created, suspend)
    late = {"spec": {"suspend": True, "checkpoint": {"path": "/c"}}}
    assert words in patch(apiserver, created, late), "the running workers would not save"
    accepted = patch(apiserver, created, {"spec": {"suspend": True, "protectState": False}})
    assert accepted == ""


def test_suspend_is_accepted_if_nothing_is_lost(apiserver: ApiServer, created: str) -> None:
    suspend, resume = {"spec": {"suspend": True}}, {"spec": {"suspend": False}}
    assert patch(apiserver, created, suspend) == "", "no step is committed yet"
    assert patch(apiserver, created, {"spec": {"checkpoint": {"path": "/c"}}}) == ""
    assert patch(apiserver, created, resume) == ""

    def condition(status: str) -> dict[str, Any]:
        saves = {"type": "CheckpointHealthy", "status": status, "reason": "X", "message": "", "lastTransitionTime": "t"}
        return {"status": {"step": 1200, "conditions": [saves]}}

    assert patch(apiserver, created, condition("False"), "/status") == ""
    assert "would be lost" in patch(apiserver, created, suspend), "the last save failed"
    assert patch(apiserver, created, condition("True"), "/status") == ""
    assert patch(apiserver, created, suspend) == ""
    assert patch(apiserver, created, resume) == ""
    ended = {"status": {"completionTime": "2030-01-01T00:00:00Z", "conditions": None}}
    assert patch(apiserver, created, {**ended, "spec": {"checkpoint": None}})
    assert patch(apiserver, created, ended, "/status") == ""
    assert patch(apiserver, created, suspend) == "", "the job has ended"


# ---- subresources ----------------------------------------------------------------------------------------------------
def test_scale_sets_replicas_within_bounds_and_is_refused_outside(apiserver: ApiServer, created: str) -> None:
    scaled = apiserver.kubectl("scale", f"etj/{created}", "--replicas=3")
    assert scaled.returncode == 0, scaled.stderr
    assert get(apiserver, created)["spec"]["replicas"] == 3
    refused = apiserver.kubectl("scale", f"etj/{created}", "--replicas=9")
    assert "spec.replicas" in refused.stderr
    assert "replicas (9) must be between minReplicas (1) and maxReplicas (4)" in refused.stderr
    assert get(apiserver, created)["spec"]["replicas"] == 3


def test_scale_has_the_fields_that_an_autoscaler_reads(apiserver: ApiServer, created: str) -> None:
    apiserver.kubectl("scale", f"etj/{created}", "--replicas=3")
    status = {"replicas": 2, "selector": "elastrain.dev/job=x"}
    assert patch(apiserver, created, {"status": status}, "/status") == ""
    scale = json.loads(apiserver.kubectl("get", "etj", created, "--subresource=scale", "-o", "json").stdout)
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "elastrain.dev/job=x"})


def test_scale_cannot_be_read_if_replicas_is_absent(apiserver: ApiServer, created: str) -> None:
    # Kubernetes' own behaviour; docs/operations.md tells users of an HPA to set replicas.
    result = apiserver.kubectl("get", "etj", created, "--subresource=scale", "-o", "json")
    assert 'the spec replicas field ".spec.replicas" does not exist' in result.stderr


def test_status_and_spec_are_written_separately(apiserver: ApiServer, created: str) -> None:
    patch(apiserver, created, {"status": {"phase": "Running"}, "spec": {"replicas": 2}})
    assert "status" not in get(apiserver, created)
    patch(apiserver, created, {"status": {"phase": "Running"}, "spec": {"replicas": 4}}, "/status")
    now = get(apiserver, created)
    assert (now["status"], now["spec"]["replicas"]) == ({"phase": "Running"}, 2)


def test_status_of_a_newer_operator_is_kept_whole(apiserver: ApiServer, created: str) -> None:
    status = {"step": 7, "ofTheFuture": {"a": 1}, "lastRescale": {"to": 3, "new": True}}
    assert patch(apiserver, created, {"status": status}, "/status") == ""
    assert get(apiserver, created)["status"] == status


def test_field_ownership_tracks_the_status_as_a_whole(apiserver: ApiServer, created: str) -> None:
    condition = {"type": "Running", "status": "True", "reason": "Training", "message": "all is well"}
    status = {"step": 7, "conditions": [condition], "lastRescale": {"to": 3}}
    assert patch(apiserver, created, {"status": status}, "/status") == ""
    shown = apiserver.kubectl("get", "etj", created, "-o", "json", "--show-managed-fields").stdout
    accounts = json.loads(shown)["metadata"]["managedFields"]
    (written,) = [account["fieldsV1"] for account in accounts if account.get("subresource") == "status"]
    assert written == {"f:status": {}}


# ---- what a person sees ----------------------------------------------------------------------------------------------
def test_columns_show_the_jobs_state(apiserver: ApiServer, created: str) -> None:
    status = {
        "phase": "Running", "readyReplicas": 2, "desiredReplicas": 4, "step": 120,
        "generation": {"number": 3, "size": 2}, "restarts": {"user": 1, "infrastructure": 2, "preemption": 0},
        "lastRescale": {"pauseSeconds": 0.29},
        "conditions": [{"type": "PodsReady", "status": "False", "reason": "Draining"}],
        "progress": {"of": 500, "samplesPerSecond": 512.5, "eta": "2030-01-01T00:00:00+00:00"},
    }  # fmt: skip
    patch(apiserver, created, {"status": status}, "/status")
    head, row = apiserver.kubectl("get", "etj", created).stdout.splitlines()
    assert head.split() == ["NAME", "PHASE", "WORKERS", "DESIRED", "GENERATION", "STEP", "REASON", "AGE"]
    assert row.split()[:-1] == [created, "Running", "2", "4", "3", "120", "Draining"]
    head, row = apiserver.kubectl("get", "etj", created, "-o", "wide").stdout.splitlines()
    assert head.split()[7:16] == ["MIN", "MAX", "OF", "SAMPLES/S", "ETA", "PAUSE", "FAILURES", "LOST", "PREEMPTED"]
    assert row.split()[7:16] == ["1", "4", "500", "512.5", "2030-01-01T00:00:00+00:00", "0.29", "1", "2", "0"]


def test_job_is_listed_by_short_name_and_category(apiserver: ApiServer, created: str) -> None:
    for resource in ("etj", "elastrain", "elastictrainingjob", "all"):
        result = apiserver.kubectl("get", resource, "-o", "name")
        assert f"elastictrainingjob.elastrain.dev/{created}" in result.stdout.split(), resource


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("etj", "A data-parallel training job whose workers may join, leave and be lost"),
        ("etj.spec", "Smallest number of workers that may train; below it the job waits and keeps its state."),
        ("etj.spec.replicas", "Desired number of workers, between `minReplicas` and `maxReplicas`"),
        ("etj.spec.checkpoint", "Directory on a volume that every worker mounts at this path"),
        ("etj.spec.template.spec.containers", 'The training command, such as `["python", "train.py"]`.'),
        ("etj.status.lastRescale", "Seconds from the last commit"),
    ],
)
def test_explain_describes_the_field(apiserver: ApiServer, field: str, words: str) -> None:
    explained = apiserver.kubectl("explain", field).stdout
    assert words in " ".join(explained.split())
