"""How a worker ended, and how a job of stock torchrun did."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from elastrain.api.base import Record, Text


class Closed(Record):
    """The end of the job for stock torchrun. Written by the first of its agents that finishes, or fails for good.

    The record expires, so that the same ``--rdzv-id`` can be reused later.
    """

    member: str
    """Id of the member that wrote it."""
    reason: str
    """``Finished``, ``Failed``, or ``Closed`` if a program called ``set_closed()``; or ``names.DIVERGED``."""
    message: Text = ""
    """The cause of a failure, in one line."""


class Outcome(StrEnum):
    """How a worker ended. Of a newer agent's word the exit code decides."""

    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


class Termination(Record):
    """The end of a worker. Written by its agent to the termination log, read by the operator or local runner."""

    shown = frozenset({"rank", "reason", "message", "log_tail"})

    outcome: Annotated[Outcome | str, Field(union_mode="left_to_right")]
    step: int = 0
    exit_code: int = 0
    signal: int = 0
    rank: int | None = None
    """Global rank of the first failure."""
    reason: str = ""
    """One CamelCase word: ScriptFailed, RankKilled, EtcdUnavailable, EtcdDenied, Usage, ..."""
    message: Text = ""
    """The failure and its place, in one line."""
    log_tail: Text = ""
    """Last lines of the failed rank (bounded: a termination log holds 4096 bytes)."""
