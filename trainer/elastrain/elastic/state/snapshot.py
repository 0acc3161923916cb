"""The tracked state at the beginning of a loop body, for bodies that update it before their last backward.

Such a body is one transaction. If it is discarded, the state is put back and the whole body runs again: its forwards
then compute with the same parameters, statistics and schedules as the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.elastic.state import capture
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.tracked import forget_stages, is_scaler


class Snapshot:
    """A copy of the state of all tracked objects, on their devices."""

    def __init__(self, tracked: Mapping[str, Stateful]) -> None:
        self._tracked = tracked
        self._copy: Any = None

    def save(self) -> None:
        """Copy the state: a loop body begins."""
        self._copy = capture.copied(capture.capture(self._tracked), self._copy)

    def restore(self) -> None:
        """Put the copy back: the body was discarded. Objects may keep its tensors."""
        copy, self._copy = self._copy, None
        capture.restore(self._tracked, copy)
        for obj in self._tracked.values():
            if is_scaler(obj):
                forget_stages(obj)
