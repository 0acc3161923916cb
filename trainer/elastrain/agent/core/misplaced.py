"""Whether ranks have to start anew because their scripts are in another loop than the job.

A script with several loops (one for each epoch, say) waits for a generation in one of them. If the job leaves that loop
meanwhile, the rank could enter the generation only by running the code between the loops while all others wait.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.agent.core.events import JobSnapshot
from elastrain.agent.core.rank import Rank

PAUSE_SECONDS = 60.0
"""Between two starts of a worker that stands by: with short epochs it would do nothing else."""


def why_misplaced(ranks: Sequence[Rank], seen: JobSnapshot | None, since: float = PAUSE_SECONDS) -> str:
    """Why all ``ranks`` of this worker have to start anew at the job's position; empty: they need not. Pure.

    It is no failure of theirs, and does not count as one. ``since``: seconds since they last did so.
    """
    if seen is None or any(rank.exited for rank in ranks):
        return ""
    for rank in ranks:
        stands_by = rank.can_connect and not rank.adopted and not rank.told_exit
        if since >= PAUSE_SECONDS and stands_by and seen.training and 0 < rank.loop_end < seen.step:
            return f"the script waits in a loop that ended at step {rank.loop_end}; the job is at step {seen.step}"
    return next((rank.misplaced for rank in ranks if rank.misplaced), "")
