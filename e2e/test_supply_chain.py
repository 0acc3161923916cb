"""The images say what is in them, and it is what was locked."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness.commands import ROOT, docker
from harness.example import images


def bill(image: str) -> dict[str, Any]:
    return dict(
        json.loads(docker("run", "--rm", "--entrypoint", "cat", images()[image], "/opt/elastrain/sbom.cdx.json"))
    )


@pytest.mark.parametrize(("image", "lock"), [("OPERATOR_IMAGE", "operator"), ("TRAINER_IMAGE", "trainer")])
def test_image_has_a_bill_of_materials_of_the_locked_versions(image: str, lock: str) -> None:
    made = bill(image)
    assert made["bomFormat"] == "CycloneDX"
    installed = {c["name"].lower().replace("_", "-"): c["version"] for c in made["components"]}
    assert "elastrain" in installed
    pinned = [
        {(name.lower(), v) for name, v in re.findall(r"^([A-Za-z0-9.-]+)==([^\s;\\]+)", path.read_text(), re.M)}
        for path in ROOT.glob(f"requirements/{lock}*.lock")
    ]
    known = {name for versions in pinned for name, _ in versions}
    found = {(name, version) for name, version in installed.items() if name in known}
    assert any(found <= versions for versions in pinned), "another version than the locked one"
    assert ("torch" in installed) is (lock == "trainer")
