"""What is published: the chart's metadata, the workflows, and the versions that docs/project/support.md claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from elastrain_resource import manifest

ROOT = Path(__file__).parents[3]
CHART: dict[str, Any] = yaml.safe_load((ROOT / "charts/elastrain/Chart.yaml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def annotation(name: str) -> Any:
    return yaml.safe_load(CHART["annotations"][f"artifacthub.io/{name}"])


# ---- the chart -------------------------------------------------------------------------------------------------------
def test_the_chart_names_the_crds_that_it_installs() -> None:
    files = sorted((ROOT / "crds").iterdir())
    for path, named in zip(files, annotation("crds"), strict=True):
        crd = yaml.safe_load(path.read_text())
        (version,) = crd["spec"]["versions"]
        expected = (crd["metadata"]["name"], crd["spec"]["names"]["kind"], version["name"])
        assert (named["name"], named["kind"], named["version"]) == expected
        assert version["schema"]["openAPIV3Schema"]["description"].rstrip(".") == named["description"]


def test_the_example_of_the_chart_is_a_valid_job_of_this_version() -> None:
    (example,) = annotation("crdsExamples")
    manifest.loads(yaml.safe_dump(example), source="Chart.yaml")  # raises, naming field, value and rule
    assert f":{CHART['version']}" in example["spec"]["template"]["spec"]["containers"][0]["image"]


def test_the_chart_has_a_known_kind_of_change_and_is_a_prerelease_before_1() -> None:
    assert {change["kind"] for change in annotation("changes")} <= {
        "added", "changed", "deprecated", "removed", "fixed", "security",
    }  # fmt: skip
    assert annotation("prerelease") == CHART["version"].startswith("0.")


# ---- the workflows ---------------------------------------------------------------------------------------------------
def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit_and_names_its_version(workflow: Path) -> None:
    used = re.findall(r"uses: (?!\./)(.+)", workflow.read_text())
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_grants_nothing_that_a_job_does_not_name(workflow: Path) -> None:
    content = yaml.safe_load(workflow.read_text())
    assert content["permissions"] == {}
    assert all("permissions" in job for job in content["jobs"].values())
    checkouts = [step for step in steps(workflow) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_only_what_the_repository_has(workflow: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"\bmake (\w+)", commands)) <= set(targets)
    assert all((ROOT / path).is_file() for path in re.findall(r"(?<![\w/.])\.ci/\w+", commands))
    stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.M)
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        assert set(job.get("strategy", {}).get("matrix", {}).get("target", [])) <= set(stages)
    assert "${{" not in commands, "an expression in a command is text of others in a shell: pass it by env"


# ---- the versions that are claimed -----------------------------------------------------------------------------------
def found(path: str, pattern: str) -> str:
    match = re.search(pattern, (ROOT / path).read_text(), re.M)
    assert match, f"{path}: nothing matches {pattern}"
    return match[1]


PROGRAMS, PYPROJECT = "e2e/cluster/programs/go.mod", "pyproject.toml"


@pytest.mark.parametrize(
    ("row", "sources"),
    [
        ("Kubernetes", [(PROGRAMS, r"k8s\.io/kubernetes v(\S+)"), ("Makefile", r"^OTHER_KUBERNETES \?= v(\S+)"),
                        ("Makefile", r"^NEWEST_KUBERNETES \?= v(\S+)"),
                        ("e2e/cluster/versions.env", r"kindest/node:v([\d.]+)@")]),
        ("Helm", [(PROGRAMS, r"helm\.sh/helm/v3 v(\S+)")]),
        ("etcd, on a cluster", [("scripts/etcd/go.mod", r"go\.etcd\.io/etcd/server/v3 v(\S+)"),
                                ("scripts/get-etcd", r"^NEEDED=(\S+)")]),
        ("etcd, local mode", [("scripts/get-etcd", r"--local \] \|\| NEEDED=(\S+)")]),
        ("Kueue", [("scripts/get-kueue", r"KUEUE_VERSION:-v([\d.]+)"), ("Makefile", r"^OLDEST_KUEUE \?= v(\S+)")]),
        ("Karpenter, kwok", [("scripts/get-karpenter", r"KARPENTER_VERSION:-v([\d.]+)"),
                             ("scripts/get-kwok", r"^VERSION=v(\S+)")]),
        ("cert-manager", [(PROGRAMS, r"cert-manager/cert-manager v(\S+)")]),
        ("Python", [("Dockerfile", r"^ARG BASE_IMAGE=python:([\d.]+)"),
                    (PYPROJECT, r'^requires-python = ">=([\d.]+)"')]),
        ("torch", [("requirements/trainer-cpu.lock", r"^torch==([\d.]+)"), (PYPROJECT, r'"torch>=([\d.]+)"'),
                   ("requirements/trainer.lock", r"^torch==([\d.]+)")]),
        ("transformers, accelerate, Lightning, TRL",
         [(PYPROJECT, rf'"{name}>=([\d.]+)[",]') for name in ("transformers", "accelerate", "lightning", "trl")]),
    ],
)  # fmt: skip
def test_versions_of_the_support_page_are_those_that_are_run_or_required(
    row: str, sources: list[tuple[str, str]]
) -> None:
    line = found("docs/project/support.md", rf"^\| {re.escape(row)} \|(.*)$")
    versions = {found(*source) for source in sources}
    assert versions <= set(re.findall(r"\d+(?:\.\d+)+", line))


@pytest.mark.parametrize("malware", ["2.6.2", "2.6.3"])
def test_the_releases_of_lightning_that_were_malware_are_not_installed(malware: str) -> None:
    requirement = Requirement(found(PYPROJECT, r'"(lightning>=[^"]+)"'))
    assert not requirement.specifier.contains(malware)
    assert requirement.specifier.contains("2.6.4")
