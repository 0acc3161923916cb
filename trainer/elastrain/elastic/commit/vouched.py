"""The rank's side of its agent's vouch page (:mod:`elastrain.api.pages.vouch`): whether a step may be committed now."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from elastrain.api.pages import vouch
from elastrain.elastic.comm.communicator import Communicator

_LOOK_SECONDS = 0.005
"""Interval of looking at a page that does not vouch."""


class AgentVouch:
    """The page of this rank's agent. A look takes about 1 µs."""

    def __init__(self, socket_path: str) -> None:
        self._page: mmap.mmap | None = None
        path = Path(vouch.path_of(socket_path))
        if path.exists():  # else the agent is not elastrain's own, and no other generation is formed beside it
            with path.open("rb") as file:
                self._page = mmap.mmap(file.fileno(), vouch.SIZE, access=mmap.ACCESS_READ)

    def wait(self, communicator: Communicator, seconds: float) -> bool:
        """Whether a step of this generation may be committed: returns at once if the agent vouches for it, else waits
        for that, at most ``seconds``. Without it the generation is broken."""
        deadline = time.monotonic() + seconds
        why = f"the agent has not vouched for {seconds:g} s: it is stopped or hangs, or etcd does not confirm its lease"
        while communicator.broken is None:
            now = time.monotonic()
            if self._covers(communicator, now):
                return True
            if now >= deadline or communicator.over is not None:
                communicator.abort(communicator.over or why)
                break
            time.sleep(_LOOK_SECONDS)
        return False

    def _covers(self, communicator: Communicator, now: float) -> bool:
        if self._page is None:
            return True
        content = vouch.parse(self._page[:])
        return content is not None and content.covers(communicator.generation, communicator.of.size, now)
