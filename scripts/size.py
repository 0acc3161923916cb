"""Counts of the house: what a worker loads, the packages, the path of a lost rank, and what users read.

``scripts/size.py`` prints them. tests/unit/project/test_size.py holds each by a bound, which only falls.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))
import loss_path

ROOT = Path(__file__).parents[1]
TRAINER, OPERATOR, ELASTIC = ROOT / "trainer", ROOT / "operator/elastrain_operator", ROOT / "trainer/elastrain/elastic"
WORKER = ("elastrain.elastic.start", "elastrain.agent.runtime")
"""What a rank and an agent begin with."""
APART = ("kueue", "devices")
"""Folders of the operator that its core does without."""


def counts() -> dict[str, int]:
    """Every count by its name, in the order of the test's table."""
    lost = loss_path.read((ROOT / "docs/architecture.md").read_text())
    crd = yaml.safe_load((ROOT / "crds/elastictrainingjobs.yaml").read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    reasons = (ROOT / "docs/reference/conditions.md").read_text()
    pages = [p for p in ROOT.glob("docs/**/*.md") if "decisions" not in p.parts]
    return {
        "lines that a worker loads": lines(imported(WORKER)),
        "lines of trainer/elastrain": lines((TRAINER / "elastrain").rglob("*.py")),
        "lines of the operator": lines(OPERATOR.rglob("*.py")),
        "lines of the operator's core": lines(
            path for path in OPERATOR.rglob("*.py") if path.relative_to(OPERATOR).parts[0] not in APART
        ),
        "lines of bench": lines((ROOT / "bench").rglob("*.py")),
        "lines of tests and e2e": lines(p for folder in ("tests", "e2e") for p in (ROOT / folder).rglob("*.py")),
        "files on the path of a lost rank": len(lost.files),
        "lines on the path of a lost rank": lost.lines,
        "classes on the path of a lost rank": lost.classes,
        "fields of state on the path of a lost rank": sum(lost.fields.values()),
        "imports of elastic/loop.py": own_imports(ELASTIC / "loop.py"),
        "callables of elastic/ that others set": len(list(set_from_outside(ELASTIC))),
        "leaves of spec": leaves(schema["spec"], lists=False),
        "leaves of status": leaves(schema["status"], lists=True),
        "documented reasons": len(re.findall(r"^\| `\w+`", reasons, re.MULTILINE)),
        "values of the chart": values(yaml.safe_load((ROOT / "charts/elastrain/values.yaml").read_text())),
        "words of the pages": sum(len(page.read_text().split()) for page in pages),
    }


def lines(files: Iterable[Path]) -> int:
    """Lines of all ``files``: code, comments, docstrings and blank ones."""
    return sum(path.read_text().count("\n") for path in files)


def imported(modules: Iterable[str]) -> set[Path]:
    """Our files that ``modules`` lead to by imports, also inside functions, with their packages."""
    found: set[Path] = set()
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = TRAINER.joinpath(*name.split("."))
        file = next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)
        if file is None or file in found:
            continue
        found.add(file)
        waiting += [*(".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1)), *named_by(file)]
    return found


def named_by(file: Path) -> Iterator[str]:
    """Modules of ours that a file may import; a name imported from a package may be one, too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("elastrain"))
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("elastrain"):
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def own_imports(file: Path) -> int:
    """Statements at the top of a file that import from elastrain."""
    body = ast.parse(file.read_text()).body
    return sum(isinstance(n, ast.ImportFrom) and (n.module or "").startswith("elastrain") for n in body)


def set_from_outside(folder: Path) -> Iterator[str]:
    """``file:attribute`` of each assignment to a callable attribute of another object: an edge that no import shows."""
    trees = {path: ast.parse(path.read_text()) for path in folder.rglob("*.py")}
    callables = {name for tree in trees.values() for name in callable_attributes(tree)}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            set_here = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in callables
            if set_here and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield f"{path.relative_to(folder)}:{node.attr}"


def callable_attributes(tree: ast.Module) -> Iterator[str]:
    """Names of attributes that are declared as callables."""
    for node in ast.walk(tree):
        declared = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
        if declared and "Callable[" in ast.unparse(node.annotation):
            yield node.target.attr


def leaves(schema: dict[str, Any], lists: bool) -> int:
    """Fields without fields of their own. ``lists``: those of a list's entries count, else a list is one."""
    below = schema.get("properties", {}).values()
    if not below and lists:
        below = [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    return sum(leaves(field, lists) for field in below) or 1


def values(of: object) -> int:
    """Values without values of their own; an empty mapping is one."""
    return sum(map(values, of.values())) if isinstance(of, dict) and of else 1


if __name__ == "__main__":
    sys.stdout.writelines(f"{count:>8,}  {name}\n" for name, count in counts().items())
