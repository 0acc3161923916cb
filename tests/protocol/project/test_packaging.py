"""The shipped artifacts: the wheel's contents, and the Dockerfile's promises as far as its text shows them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PACKAGES = {path.name: path for path in ROOT.glob("*/elastrain*") if (path / "__init__.py").is_file()}
"""The operator, the core, and what stands beside them."""


# ---- the wheel -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built by the project's own build backend from a copy of its sources."""
    home = tmp_path_factory.mktemp("wheel")
    for part in ("operator", "trainer"):
        shutil.copytree(ROOT / part, home / part, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, home)
    build = "import hatchling.build as b; print(b.build_wheel('.'))"
    result = subprocess.run([sys.executable, "-c", build], cwd=home, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return zipfile.ZipFile(home / result.stdout.split()[-1])


def test_wheel_has_all_packages_whole_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if ".dist-info/" not in name}
    sources = {
        f"{package}/{path.relative_to(folder)}"
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not any(p.startswith(".") for p in path.parts[-3:])
    }
    assert shipped == sources


def test_wheel_is_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_wheel_offers_the_command_and_the_torchrun_backend(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    text = wheel.read(entry_points).decode()
    assert "[console_scripts]\nelastrain = elastrain.__main__:main" in text
    assert "\nkubectl_complete-etj = elastrain_cli.cluster.app:complete\n" in text, "kubectl looks for it by name"
    assert "[torchrun.handlers]\netcd-v3 = elastrain_torchrun:handler_factory" in text


def test_wheel_has_the_licence(wheel: zipfile.ZipFile) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_no_package_shadows_the_standard_library() -> None:
    # `operator` and `trainer` are folders of sources; as packages, `import operator` would find the first of them.
    assert not (ROOT / "operator/__init__.py").exists()
    assert not (ROOT / "trainer/__init__.py").exists()


# ---- the Dockerfile --------------------------------------------------------------------------------------------------
def stage(name: str) -> str:
    """The instructions of one stage."""
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)
    assert match, f"no stage {name}"
    return match[1]


def test_dockerfile_needs_no_buildkit() -> None:
    instructions = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    assert not [line for line in instructions if re.search(r"RUN --|COPY --(?!from=)|<<", line)]
    assert not DOCKERFILE.startswith("# syntax")


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_image_runs_as_a_numeric_user_that_is_not_root(target: str) -> None:
    (user,) = re.findall(r"^USER (\S+)$", stage(target), re.M)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    values = (ROOT / "charts/elastrain/templates/_helpers.tpl").read_text()
    assert f"runAsUser: {user.split(':')[0]}\n" in values


@pytest.mark.parametrize("target", ["operator", "trainer"])
def test_image_is_labelled_with_the_projects_version(target: str) -> None:
    assert f'org.opencontainers.image.version="{PROJECT["version"]}"' in stage(target)


def test_images_install_their_own_extra() -> None:
    assert "/requirements/operator.lock" in stage("operator-environment")
    assert "/requirements/${TRAINER_LOCK}" in stage("trainer-environment")
    assert "ARG TRAINER_LOCK=trainer.lock\n" in stage("trainer-environment")
    extras = PROJECT["optional-dependencies"]
    assert not [r for r in extras["operator"] + PROJECT["dependencies"] if r.startswith("torch")]
    assert not [r for r in extras["trainer"] + PROJECT["dependencies"] if r.startswith("kopf")]


def test_build_context_contains_only_copied_files() -> None:
    sources = {s for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.M) for s in line.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sources == allowed
    assert all(os.access(ROOT / source, os.R_OK) for source in sources)


def test_no_package_index_is_hard_coded() -> None:
    assert "http" not in DOCKERFILE
