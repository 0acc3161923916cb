"""Whose failure it is when a rank cannot enter or leave a generation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.group.position import LoopOver
from elastrain.elastic.group.shell import ExitRequested, Withdrawn
from elastrain.link import AgentLost, MessageFailed

_NO_FAILURES = (GenerationBroken, RanksDiverged, LoopOver, Withdrawn, ExitRequested, AgentLost, MessageFailed)
"""What has another cause than a failure of this rank, or none."""


@contextmanager
def ends_this_rank(communicator: Communicator) -> Iterator[None]:
    """Any failure inside the block is this rank's own, such as a state that it cannot load.

    Its peers are freed at once, and its agent knows that its process ends. The error goes on to the script.
    """
    try:
        yield
    except _NO_FAILURES:
        raise
    except BaseException as e:
        communicator.fail_here(e)
        raise
