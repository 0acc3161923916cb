"""The locks: everything that the images install is pinned by hash, and pinned to what pyproject.toml asks for now."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
WANTED = {
    "build": PYPROJECT["build-system"]["requires"],
    "sbom": ["cyclonedx-bom"],
    "operator": PROJECT["dependencies"] + EXTRAS["operator"],
    "trainer": PROJECT["dependencies"] + EXTRAS["trainer"] + EXTRAS["tracing"],
    "trainer-cpu": PROJECT["dependencies"] + EXTRAS["trainer"] + EXTRAS["tracing"],
}
"""What each lock is of."""
TEXT = {"", ".md", ".yaml"}
every_lock = pytest.mark.parametrize("name", WANTED)


def text(name: str) -> str:
    return (ROOT / f"requirements/{name}.lock").read_text()


def locked(name: str) -> dict[str, list[tuple[str, list[str]]]]:
    """Package → its versions (several where platforms or Pythons differ), each with the hashes of its files."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    entries = re.split(r"\n(?=\S)", re.sub(r"^\s*#.*\n", "", text(name), flags=re.M))
    for entry in filter(str.strip, entries):
        head = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)", entry)
        assert head, f"requirements/{name}.lock: {entry.splitlines()[0]}: is not a pinned package"
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry)
        found.setdefault(canonicalize_name(head[1]), []).append((head[2], hashes))
    return found


@every_lock
def test_every_package_has_hashes(name: str) -> None:
    assert not [p for p, versions in locked(name).items() for _, hashes in versions if not hashes]


@every_lock
def test_lock_has_what_pyproject_asks_for_now(name: str) -> None:
    found, missing = locked(name), []
    for wanted in map(Requirement, WANTED[name]):
        versions = [version for version, _ in found.get(canonicalize_name(wanted.name), [])]
        if not versions or not all(wanted.specifier.contains(v, prereleases=True) for v in versions):
            missing.append(f"{wanted}: locked is {', '.join(versions) or 'nothing'}")
    assert not missing, f"requirements/{name}.lock is behind pyproject.toml: make lock"


@every_lock
def test_lock_has_what_its_packages_ask_for_as_far_as_these_versions_are_installed_here(name: str) -> None:
    found, missing = locked(name), []
    for package, versions in found.items():
        try:
            if importlib.metadata.version(package) not in [version for version, _ in versions]:
                continue  # another version may ask for other packages
            needs = importlib.metadata.requires(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if package == "torch" and name == "trainer-cpu":
            needs = [n for n in needs if not n.startswith(("nvidia", "triton", "cuda"))]
        asked = [r for r in map(Requirement, needs) if r.marker is None or r.marker.evaluate({"extra": ""})]
        missing += [f"{package} needs {r}" for r in asked if canonicalize_name(r.name) not in found]
    assert not missing, f"requirements/{name}.lock: make lock"


@every_lock
def test_lock_names_its_command_and_no_index(name: str) -> None:
    assert "make lock" in "\n".join(text(name).splitlines()[:3])
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text(name))


def test_build_and_sbom_locks_are_of_what_their_sources_say() -> None:
    def asked(name: str) -> list[str]:
        lines = (ROOT / f"requirements/{name}.in").read_text().splitlines()
        return [line for line in lines if line and not line.startswith("#")]

    assert asked("build") == WANTED["build"], "requirements/build.in repeats [build-system] of pyproject.toml"
    assert [Requirement(line).name for line in asked("sbom")] == WANTED["sbom"]


def test_operator_has_no_torch_and_the_trainer_no_operator() -> None:
    assert "torch" not in locked("operator")
    for name in ("trainer", "trainer-cpu"):
        assert not {"kopf", "kubernetes"} & locked(name).keys()


def test_cpu_lock_names_one_file_of_torch() -> None:
    ((version, hashes),) = locked("trainer-cpu")["torch"]
    assert version.endswith("+cpu")
    assert len(hashes) == 1
    assert not [p for p in locked("trainer-cpu") if p.startswith(("nvidia", "triton"))]


def test_every_installation_in_the_dockerfile_is_of_hashes_or_of_our_own_wheel() -> None:
    joined = DOCKERFILE.replace("\\\n", " ")
    installations = re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&;\n]*", joined)
    assert len(installations) >= 6
    free = [line for line in installations if "--require-hashes" not in line and "--no-deps" not in line]
    assert [line.split()[-1] for line in free] == ["$EXTRA_PACKAGES"], "what a user adds is the user's to pin"


def test_no_example_names_an_image_that_another_could_publish() -> None:
    """Names below ``.example`` resolve nowhere (RFC 2606): a manifest without your own name pulls nothing."""
    pages = [ROOT / "README.md", ROOT / "Dockerfile", *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/*")]
    pattern = r"(?:\bimage: |--image[ =]|docker build .*-t |\bTRAINER_IMAGE=)\"?([\w./-]+:\w[\w.]*)"
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages if page.is_file() and page.suffix in TEXT}
    named = [(page, name) for page, content in texts.items() for name in re.findall(pattern, content)]
    assert len(named) > 15, "the pattern finds what there is"
    assert [(page, name) for page, name in named if not name.startswith("registry.example/")] == []


def test_no_text_has_pip_look_for_elastrain_in_an_index() -> None:
    """The name is not owned there."""
    folders = ("docs", "trainer", "operator", "examples", "charts")
    files = [p for f in folders for p in ROOT.glob(f"{f}/**/*.*") if p.suffix in {".md", ".yaml", ".py"}]
    wrong = {
        path
        for path in [ROOT / "README.md", *files]
        if re.search(r"pip install (-\S+ )*[\"']?elastrain", path.read_text())
    }
    assert [str(path.relative_to(ROOT)) for path in sorted(wrong)] == []
