"""Remedies for common first failures of a script. Pure."""

from __future__ import annotations

import re
from pathlib import Path

_OURS = {"torch", "numpy", "xxhash"}


def hint(tail: str, python: str, directory: Path) -> str:
    """A remedy for the last lines of a failed worker, which ran ``python`` in ``directory``. Empty if the lines are
    clear without one."""
    if found := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", tail):
        module = found[1].partition(".")[0]
        package = "'elastrain[trainer]'" if module in _OURS else f"PACKAGE, where PACKAGE has the module {module}"
        return f"workers run {python}, which has no module {module}: {python} -m pip install {package}"
    if re.search(r"can't open file .*No such file or directory", tail):
        return f"paths in the job's command are relative to {directory}"
    return ""
