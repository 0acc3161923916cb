"""Guests, the packages beside the core: each is shipped, typed, under contract, and has an extra and a row."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from elastrain.guests import GUESTS

ROOT = Path(__file__).parents[3]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]
CORE = {
    path.stem
    for path in (ROOT / "trainer/elastrain").iterdir()
    if path.suffix == ".py" or (path / "__init__.py").is_file()
}


def test_every_package_beside_the_core_is_a_guest() -> None:
    others = {f"elastrain_{name}" for name in ("cli", "frameworks", "resource", "torchrun")}  # no extra of their own
    found = {path.name for path in ROOT.glob("trainer/elastrain_*")}
    assert found == GUESTS.keys() | others
    drawing = (ROOT / "docs/images/packages.svg").read_text()
    assert all(name in drawing for name in found)


@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_is_shipped_typed_and_has_an_extra(guest: str) -> None:
    tool = PYPROJECT["tool"]
    assert f"trainer/{guest}" in tool["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert (ROOT / "trainer" / guest / "py.typed").is_file()
    assert guest in tool["mypy"]["packages"]
    assert GUESTS[guest] in PYPROJECT["project"]["optional-dependencies"]


@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_has_tests_of_its_own(guest: str) -> None:
    assert list((ROOT / "tests/guests" / guest.removeprefix("elastrain_")).glob("*/test_*.py"))


@pytest.mark.parametrize("guest", GUESTS)
def test_neither_the_core_nor_another_guest_may_import_a_guest_which_has_a_contract_of_its_own(guest: str) -> None:
    assert guest in PYPROJECT["tool"]["importlinter"]["root_packages"]
    (core,) = [c for c in CONTRACTS if c["name"] == "neither the core nor the operator imports a guest"]
    (others,) = [c for c in CONTRACTS if c["name"] == "no guest imports another"]
    assert guest in core["forbidden_modules"]
    assert guest in others["modules"]
    own = [c for c in CONTRACTS if c["type"] == "forbidden" and guest in c["source_modules"]]
    assert own, "name the layers of the core that it may not use"
    for contract in own:
        used = {m.split(".")[1] for m in contract["forbidden_modules"] if m.startswith("elastrain.")}
        assert used <= CORE, f"{contract['name']}: layers that do not exist: {sorted(used - CORE)}"


@pytest.mark.parametrize("guest", GUESTS)
def test_a_guest_has_a_row_in_the_architecture(guest: str) -> None:
    assert f"`trainer/{guest}`" in (ROOT / "docs/architecture.md").read_text()
