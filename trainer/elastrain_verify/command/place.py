"""The folder of a run: the script finds its files there, and writes into no other run's and not beside its source.

Folders of the script's working directory are made anew, files are copied, and large files are links.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from pathlib import Path

MOST_ENTRIES = 5_000
"""Files and folders of a working directory that are made anew; deeper folders are links."""
COPIED_BYTES = 16 << 20
"""Files up to this size are copied, so that a script which overwrites one changes only the copy."""
SOURCE = (".py", ".pyc", ".so")
"""Files that are links: ``__file__`` then leads to the modules beside the script, wherever they are."""


def furnish(source: Path, target: Path) -> None:
    """Make ``target`` a working directory that looks as ``source``, without hidden files. Raises ``OSError``."""
    left, queue = MOST_ENTRIES, deque([(source, target)])
    while queue:
        original, folder = queue.popleft()
        folder.mkdir(parents=True, exist_ok=True)
        for entry in sorted(os.scandir(original), key=lambda e: e.name):
            place = folder / entry.name
            if entry.name.startswith(".") or entry.name == "__pycache__" or target.is_relative_to(entry.path):
                continue
            left -= 1
            if entry.is_dir(follow_symlinks=False) and left > 0:
                queue.append((Path(entry.path), place))
            elif _copied(entry) and left > 0:
                shutil.copy2(entry.path, place)
            else:
                place.symlink_to(entry.path)


def _copied(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False) or entry.name.endswith(SOURCE):
        return False
    return entry.stat().st_size <= COPIED_BYTES
