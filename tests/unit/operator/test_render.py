"""Pod manifests. Reviewers read the golden files; ``UPDATE_GOLDEN=1`` rewrites them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from elastrain.api import names
from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import manifest

JOB = JobRef("team-a", "digits", "0f0e", 3)
GOLDEN = Path(__file__).parent / "golden"


def config(**etcd) -> OperatorConfig:
    worker = WorkerEtcd(endpoints="etcd:2379", **etcd)
    return OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=worker)


CASES = {
    "plain": ({}, config()),
    "everything-said": (
        {
            "nprocPerNode": 2,
            "checkpoint": {"path": "/data/ckpt", "everySteps": 100},
            "template": {
                "metadata": {"labels": {"team": "a", names.LABEL_JOB: "not this"}, "annotations": {"note": "kept"}},
                "spec": {
                    "restartPolicy": "Always",
                    "enableServiceLinks": True,
                    "automountServiceAccountToken": True,
                    "securityContext": {"fsGroup": 2000},
                    "terminationGracePeriodSeconds": 120,
                    "initContainers": [{"name": "fetch", "image": "fetch:1"}],
                    "containers": [
                        {"name": "proxy", "image": "proxy:1", "command": ["proxy"]},
                        {
                            "name": "trainer",
                            "image": "trainer:1",
                            "command": ["python"],
                            "args": ["train.py", "--lr", "0.1"],
                            "env": [
                                {"name": "OMP_NUM_THREADS", "value": "1"},
                                {"name": names.ENV_JOB_UID, "value": "not this"},
                                {"name": names.ENV_AUDIT_DIR, "value": "/data/audit"},
                            ],
                            "securityContext": {"runAsUser": 1000},
                            "resources": {"limits": {"nvidia.com/gpu": 2}},
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        },
                    ],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                },
            },
        },
        config(),
    ),
    "etcd-with-credentials": ({}, config(secret="etcd-worker", user=True, ca=True, certificate=True)),
    "preflight-with-pairs": (
        {"preflight": {"pairs": {}}},
        config(user=True, ca=True, per_job=True),
    ),
    "etcd-with-credentials-per-job": ({}, config(user=True, ca=True, per_job=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_manifest_is_as_reviewed(case, make_spec):
    fields, settings = CASES[case]
    made = yaml.safe_dump(manifest.pod(JOB, make_spec(**fields), 7, settings), sort_keys=False)
    golden = GOLDEN / f"{case}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(made)
    assert made == golden.read_text(), f"if this is intended, run with UPDATE_GOLDEN=1 and review {golden.name}"


@pytest.mark.parametrize("case", CASES)
def test_a_sibling_equals_the_manifest_rendered_for_its_ordinal(case, make_spec):
    fields, settings = CASES[case]
    first = manifest.pod(JOB, make_spec(**fields), 0, settings)
    before = json.dumps(first)
    assert manifest.sibling(first, JOB, 7) == manifest.pod(JOB, make_spec(**fields), 7, settings)
    assert json.dumps(first) == before


def test_spec_is_not_changed_by_rendering(make_spec):
    spec = make_spec()
    before = json.dumps(spec.template)
    manifest.pod(JOB, spec, 0, config())
    assert json.dumps(spec.template) == before


def test_template_is_refused_without_a_command(make_spec):
    spec = make_spec().model_copy(update={"template": {"spec": {"containers": [{"name": "trainer", "image": "i"}]}}})
    with pytest.raises(
        manifest.TemplateInvalid, match=r"spec\.template\.spec\.containers\[trainer\]\.command: must be set"
    ):
        manifest.pod(JOB, spec, 0, config())


def test_args_are_the_command_line_if_there_is_no_command(make_spec):
    container = {"name": "trainer", "image": "i", "args": ["python", "train.py"]}
    spec = make_spec().model_copy(update={"template": {"spec": {"containers": [container]}}})
    trainer = manifest.pod(JOB, spec, 0, config())["spec"]["containers"][0]
    assert (trainer["command"], trainer["args"]) == (["elastrain", "agent", "--"], ["python", "train.py"])


def test_secrets_are_named_and_never_copied(make_spec):
    made = json.dumps(manifest.pod(JOB, make_spec(), 0, config(secret="etcd-worker", user=True)))
    assert '"secretKeyRef": {"name": "etcd-worker", "key": "username"}' in made


def test_credentials_without_a_secret_are_refused():
    with pytest.raises(ValueError, match="--worker-etcd-secret"):
        config(user=True)
