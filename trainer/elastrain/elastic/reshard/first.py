"""The placement for which a script builds its model, before this rank has entered a generation."""

from __future__ import annotations

import time

import structlog
import torch

from elastrain.elastic.comm.backend import Offer
from elastrain.elastic.group.shell import Session

log = structlog.get_logger(__name__)

OFFER = Offer(why="sharded models communicate through the host's memory")
_LOOK_SECONDS = 0.05
"""Interval at which a rank looks for a generation."""
_REMIND_SECONDS = 10.0


def first_placement(session: Session, device: torch.device) -> tuple[int, int]:
    """Number of shards, and the shard of this rank.

    A joiner builds any shard of the present size, and receives its own one later. If no rank trains, this one is ready
    before its model is built, and builds its shard of the first generation's: no rank ever has to hold the whole model.
    Waits as long as the agent lives; a log line repeats it. Raises as of :meth:`Session.pause`.
    """
    began = reminded = time.monotonic()
    joins = session.locate().training
    if not joins:
        session.use(OFFER, device)
        session.ready(step=0)
    while True:
        if joins and (size := session.expected_world_size()):
            return size, 0
        if (place := session.newest_place()) is not None:
            return place
        session.pause(_LOOK_SECONDS)
        if (now := time.monotonic()) - reminded >= _REMIND_SECONDS:
            reminded = now
            log.info("waiting for the first generation, to build a shard of the model", seconds=round(now - began))
