"""State comes from peers and checkpoints by the typed encoding only: nothing of it is unpickled."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TRAINER = Path(__file__).parents[3] / "trainer"
FOLDERS = "elastrain_frameworks", "elastrain/elastic/checkpoint"
FILES = sorted(path for folder in FOLDERS for path in (TRAINER / folder).rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}
CALLS = {"load": "torch", "all_gather_object": "job"}
"""Methods that unpickle, and what they are methods of."""


def unpickles(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, ast.unparse(node.func.value).rpartition(".")[2]
            if CALLS.get(name) == owner.lstrip("_"):
                found.append(ast.unparse(node.func))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(TRAINER)))
def test_nothing_is_unpickled(path) -> None:
    assert not unpickles(path.read_text())


def test_each_way_is_seen() -> None:
    source = (
        "import pickle\nfrom dill import loads\nx = torch.load(f)\ny = self._job.all_gather_object(1)\nz = json.load(f)"
    )
    assert unpickles(source) == ["pickle", "dill", "torch.load", "self._job.all_gather_object"]
