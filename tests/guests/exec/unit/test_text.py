"""What is read from a script's text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from elastrain_exec.flow import carried_by
from elastrain_exec.refusals import Refused
from elastrain_exec.text import OTHERS_LOOPS, check


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("loss = f(x)\nprint(loss)", ""),
        ("total += x", "total"),
        ("best = max(best, x)", "best"),
        ("items.append(x)", "items"),
        ("items = []\nitems.append(x)", ""),
        ("if x > best:\n best = x", "best"),
        ("if x:\n last = x", "last"),
        ("if x:\n y = 1\nelse:\n y = 2\nprint(y)", ""),
        ("if x:\n continue\ny = 1\nprint(y)", ""),
        ("shadow[x] = 0.9 * shadow[x] + x", "shadow"),
        ("mean.mul_(0.9)", "mean"),
        ("for z in x:\n w = z\nprint(w)", ""),
        ("while x:\n n = n + 1", "n"),
        ("with f(x) as y:\n y.append(x)", ""),
        ("print(sum(q for q in x))", ""),
        ("if (n := n + 1) > 3:\n pass", "n"),
        ("try:\n y = f(x)\nexcept E:\n continue\nprint(y)", ""),
        ("a, (b, c) = b, (x, x)\nprint(c)", "b"),
    ],
)
def test_a_loop_carries_what_an_iteration_may_read_before_it_sets_it(body: str, carried: str) -> None:
    text = "def f():\n for x in loader:\n" + "".join(f"  {line}\n" for line in body.splitlines()) + " print(last)\n"
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert " ".join(sorted(carried_by(function, set()).names)) == carried


@pytest.mark.parametrize("package", OTHERS_LOOPS)
def test_a_package_with_a_loop_of_its_own_is_refused_with_the_line(package: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import torch\nfrom {package} import Something\n")
    with pytest.raises(Refused, match=rf"^train\.py:2: import of {package}, which"):
        check(str(path))
