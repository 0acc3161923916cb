"""A job from a plain script."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest
import yaml

from elastrain_cli.cluster.compose import MAX_SCRIPT_BYTES, BadScript, compose, files_name, job_name
from elastrain_resource.manifest import loads


def composed(**changes: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "script": "print(1)", "file": "train.py", "arguments": ["--epochs", "3"], "image": "train:1",
        "sizes": (1, 8, None), "resources": {},
    }  # fmt: skip
    return compose("digits", **(asked | changes))


@pytest.mark.parametrize(("file", "name"), [("train.py", "train"), ("a/Train_GPT-2.py", "train-gpt-2")])
def test_the_job_is_named_after_the_script(file: str, name: str) -> None:
    assert job_name(PurePath(file)) == name


def test_a_name_is_required_if_none_can_be_derived() -> None:
    with pytest.raises(BadScript, match=r"1\.py: the file name yields no valid job name.*--name"):
        job_name(PurePath("1.py"))


def test_the_manifest_is_valid_and_runs_the_script_with_its_arguments() -> None:
    job = loads(yaml.safe_dump(composed(sizes=(2, 8, 4), resources={"nvidia.com/gpu": "1"}, nproc_per_node=2)))
    assert (job.spec.min_replicas, job.spec.max_replicas, job.spec.replicas, job.spec.nproc_per_node) == (2, 8, 4, 2)
    pod = job.spec.template["spec"]
    assert pod["containers"][0]["command"] == ["python", "/opt/elastrain/script/train.py", "--epochs", "3"]
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "1"}}
    assert pod["volumes"][0]["configMap"]["name"] == files_name("digits")


def test_a_script_that_no_config_map_can_hold_is_refused() -> None:
    with pytest.raises(BadScript, match=r"train\.py: has 900,001 bytes, at most 900,000"):
        composed(script="#" * (MAX_SCRIPT_BYTES + 1))
