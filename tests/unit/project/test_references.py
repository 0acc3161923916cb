"""What docstrings and comments refer to exists: files, and the names of roles such as ``:func:``."""

from __future__ import annotations

import builtins
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
TEXTS = {path: path.read_text() for folder in ("trainer", "operator") for path in (ROOT / folder).rglob("*.py")}
FILES = [*TEXTS, *(ROOT / "scripts").rglob("*.py"), Path("/of/a/user/train_gpt2.py")]
DEFINITION = re.compile(r"^\s*(?:async def |def |class |)(\w+)(?=\(|:| =|\[)", re.MULTILINE)
DEFINED = {name for text in TEXTS.values() for name in DEFINITION.findall(text)}
NAMES = DEFINED | set(dir(builtins)) | {name for path in TEXTS for name in (path.stem, path.parent.name)}


def test_every_reference_of_a_docstring_exists() -> None:
    dead = []
    for path, text in TEXTS.items():
        for name in re.findall(r":(?:mod|class|func|meth|attr):`[~.]?(elastrain[\w.]*|[A-Z]\w+(?:\.\w+)?)`", text):
            if name.rpartition(".")[2] not in NAMES and not name.isupper():
                dead.append(f"{path.relative_to(ROOT)}: {name}")
        for name in re.findall(r"``((?:\w+/)*\w+\.py)``", text):
            if not any(str(known).endswith(f"/{name}") for known in FILES):
                dead.append(f"{path.relative_to(ROOT)}: {name}")
    assert not dead
