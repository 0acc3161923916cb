"""What a rank says of its generation: that it has entered it, and that it is broken."""

from __future__ import annotations

import structlog

from elastrain.api.messages import Broken
from elastrain.elastic.comm.communicator import Communicator

log = structlog.get_logger(__name__)


def log_entered(communicator: Communicator, step: int, seconds: float) -> None:
    """``step``: committed ones. ``seconds``: that the ranks have taken to come to the same state."""
    why = communicator.choice.why
    log.info(
        "generation entered", generation=communicator.generation, reason=communicator.of.reason, rank=communicator.rank,
        world_size=communicator.world_size, step=step, sync_seconds=round(seconds, 3),
        sums_by=communicator.sums_by, because=why if communicator.sums_by == "nccl" else f"not NCCL: {why}",
    )  # fmt: skip


def broken_message(communicator: Communicator, step: int, cause: str) -> Broken:
    """To the agent. A rank that could not send its state keeps it, and says so."""
    if (unsent := communicator.unsent) is not None:
        log.error("this rank cannot send its state, and keeps it", exc_info=unsent)
    mine = unsent is not None
    return Broken(generation=communicator.generation, step=step, error=cause, mine=mine, unsent=mine)
