"""Every example's manifest is valid for a cluster, and names existing files."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from elastrain_resource import manifest
from elastrain_resource.job import trainer_container
from elastrain_resource.schema.crd import crd

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS = sorted(EXAMPLES.glob("[0-9]*"))  # the other folders are shared
SCHEMA = jsonschema.Draft202012Validator(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_manifest_is_valid_by_the_crd_and_by_the_models(folder):
    path = folder / "job.yaml"
    SCHEMA.validate(yaml.safe_load(path.read_text()))
    job = manifest.load(path)
    trainer = trainer_container(job.spec.template)
    assert trainer["workingDir"] == f"/opt/elastrain/examples/{folder.name}", "where the image has the examples"
    words = [*trainer["command"], *(trainer.get("args") or [])]
    scripts = [word for word in words if word.endswith(".py")]
    assert scripts, "the command names no script"
    for script in scripts:
        assert (folder / script).is_file(), script


def test_names_of_jobs_differ_and_each_example_has_its_command():
    jobs = [manifest.load(folder / "job.yaml").name for folder in FOLDERS]
    assert len(set(jobs)) == len(jobs)
    for folder in FOLDERS:
        assert f"elastrain run examples/{folder.name}/job.yaml" in (folder / "README.md").read_text()
