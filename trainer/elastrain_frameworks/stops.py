"""Callbacks of a framework that end training: the log names the one that did, since all ranks' have to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import structlog

from elastrain.elastic.state.tracked import subclass

_BY = "ended_by"
log = structlog.get_logger(__name__)


def watch(flags: Any, ends: str, refused: Mapping[str, str] | None = None) -> None:
    """Note who sets ``flags.<ends>``. Setting one of ``refused`` raises ``ValueError``, with the way out, by name."""
    cls: Any = type(flags)

    def set_(self: Any, name: str, value: Any) -> None:
        by = sys._getframe(1).f_code.co_qualname.rpartition("<locals>.")[2]
        if value and name in (refused or {}):
            raise ValueError(f"{name}, set in {by}(): not in an elastic job; {(refused or {})[name]}")
        if value and name == ends and not getattr(self, ends):
            vars(self)[_BY] = by
        cls.__setattr__(self, name, value)

    subclass(flags, {"__setattr__": set_})


def say(flags: Any, step: int) -> None:
    """The loop of this rank ends early. If it is the only one, the job fails, and names the rank."""
    if by := vars(flags).get(_BY):
        log.warning(f"{by}() has ended training; if it does so on one rank only, call job.stop() there", step=step)
