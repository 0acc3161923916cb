"""The order of TensorBoard's events files: it reads them by name, and the name begins with the second of their begin.

What a file has behind the ``purge_step`` of one that is read later is left out. A new rank 0 may begin within the same
second as the lost one, or on a machine whose clock is behind. Its file would be read first, and rows would come twice.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from fsspec.core import url_to_fs

_BEGIN = re.compile(r"events\.out\.tfevents\.(\d+)")
_WRITERS = "tensorboard.summary.writer.event_file_writer", "tensorboardX.event_file_writer"
"""The modules that name a file, by ``time.time()``."""


def come_last_in(folder: Any) -> None:
    """All files that this process begins from now on are read behind those of ``folder``, a path or URL."""
    system, path = url_to_fs(str(folder))
    begins = [int(found[1]) for name in system.glob(f"{path}/events.out.tfevents.*") if (found := _BEGIN.search(name))]
    for name in _WRITERS if begins else ():
        try:
            module: Any = importlib.import_module(name)
        except ImportError:
            continue
        module.time = _Clock(module.time, max(begins) + 1)


class _Clock:
    """The module ``time``, which shows no less than a given second."""

    def __init__(self, clock: Any, least: int) -> None:
        self._clock: Any = clock._clock if isinstance(clock, _Clock) else clock
        self._least = least

    def time(self) -> float:
        return max(float(self._clock.time()), float(self._least))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)
