"""Remedies for common first failures of a script. Pure."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from elastrain import guests


def hint(tail: str, directory: Path) -> str:
    """A remedy for the last lines of a failed worker, which ran this Python in ``directory``. Empty if the lines are
    clear without one."""
    if found := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", tail):
        module = found[1].partition(".")[0]
        other = f"{sys.executable} -m pip install PACKAGE, where PACKAGE has the module {module}"
        return f"workers run {sys.executable}, which has no module {module}: {guests.way_out(module) or other}"
    if re.search(r"can't open file .*No such file or directory", tail):
        return f"paths in the job's command are relative to {directory}"
    return ""
