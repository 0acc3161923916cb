"""A line below errors of torch.distributed and the like that a script for a fixed number of ranks meets in a job.

The error stays as it is. Pure, without torch: the process in which a script runs asks after an exception has left it.
"""

from __future__ import annotations

import re

PREFIX = "elastrain: "
"""Of the line, by which an agent finds it in a log."""

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"Error initializing torch\.distributed using env://",
        "a job forms its groups of ranks by itself: leave init_process_group() out and call elastrain.join() "
        "(`elastrain convert` proposes the change), or start the script by `python -m elastrain_launchers.restart`",
    ),
    (
        r"Default process group has not been initialized",
        "a job has no default process group, since its ranks change: job.wrap(net) replaces DistributedDataParallel, "
        "job.dataloader() DistributedSampler, job.rank and job.world_size get_rank() and get_world_size(), "
        "job.add() a sum in a loop body, job.all_reduce() and job.all_gather_object() the collectives behind the loop; "
        "leave barrier() and destroy_process_group() out (docs/training-scripts.md#what-belongs-to-a-whole-batch)",
    ),
    (
        r"KeyError: '(RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT|LOCAL_WORLD_SIZE|GROUP_RANK|NODE_RANK)'",
        "torchrun sets this variable for a fixed number of ranks: job.rank, job.world_size and job.device have the "
        "present values; leave addresses and ports out",
    ),
    (
        r"Trying to backward through the graph a second time",
        "job.backward(loss) replaces loss.backward(): call one of them; and detach() what one step hands to the next "
        "(a hidden state, a sum of losses)",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "a parameter of the model has no part in the loss: job.wrap(net, find_unused_parameters=True) if that is meant",
    ),
)
"""Pattern of an exception's class and message, and the way out."""


def hint_for(error: BaseException) -> str | None:
    """The way out of ``error``, if a script for a fixed number of ranks is its usual cause. Pure."""
    text = f"{type(error).__name__}: {error}"
    return next((way_out for pattern, way_out in _HINTS if re.search(pattern, text)), None)


def line_for(text: str) -> str:
    """The line for an error of which only the text is known, as of a script that never imports elastrain."""
    way_out = next((way_out for pattern, way_out in _HINTS if re.search(pattern, text)), "")
    return PREFIX + way_out if way_out else ""


def add_hint(error: BaseException) -> None:
    """Add the line to the exception's traceback, once."""
    if (hint := hint_for(error)) is not None and PREFIX + hint not in getattr(error, "__notes__", ()):
        error.add_note(PREFIX + hint)
