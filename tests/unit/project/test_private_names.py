"""Private names of torch change without notice: one module uses them, each behind a probe."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3] / "trainer"
HOME = "elastrain/elastic/torch_private.py"
BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}
EXCEPTIONS = {"elastrain_verify/rank/reference.py: _orig_mod"}
"""The reference shares no code with the runtime that it judges."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def attributes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Attributes and the objects they belong to, also those that ``getattr`` and the like name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_NAME:
            yield from ((node.args[0], arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant))


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def names_of_torch(tree: ast.AST) -> set[str]:
    """Private names that the module of private names uses of other objects than its own."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imported = {part for name in imports(tree) if name.startswith("torch") for part in name.split(".")}
    used = {name for of, name in attributes(tree) if getattr(of, "id", "") != "self"}
    return {name for name in used | imported if private(name)} - own


def violations(source: str, torchs: set[str]) -> list[str]:
    tree = ast.parse(source)
    own = {name for of, name in attributes(tree) if getattr(of, "id", "") == "self"}
    found = [part for name in imports(tree) if name.startswith("torch") for part in name.split(".") if private(part)]
    for of, name in attributes(tree):
        if private(name) and (name in torchs - own or ast.unparse(of).split(".")[0] in {"torch", "nn", "dist"}):
            found.append(name)
    return found


TORCHS = names_of_torch(ast.parse((ROOT / HOME).read_text()))


def test_one_module_uses_private_names_of_torch() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if name != HOME:
            found |= {f"{name}: {private_name}" for private_name in violations(path.read_text(), TORCHS)}
    assert found == EXCEPTIONS, "move the use to elastic/torch_private.py, with a probe that does the same"


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils import _pytree",
        "import torch._dynamo",
        "from torch.distributed.fsdp._fully_shard import x",
        "torch._foreach_norm([])",
        "nn.modules.batchnorm._BatchNorm",
        "p._sharded_param_data = 1",
        "hasattr(p, '_unsharded_param')",
        "self.tensor._local_tensor",
    ],
)
def test_a_private_name_is_found_if_it_is(source: str) -> None:
    assert violations(source, TORCHS)


@pytest.mark.parametrize("source", ["self._mesh", "from torch import nn", "peer._reducer", "torch.__version__"])
def test_a_name_of_ours_is_none_of_torch(source: str) -> None:
    assert not violations(source, TORCHS)
