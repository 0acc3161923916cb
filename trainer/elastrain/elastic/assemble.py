"""Which strategy trains the models of a job, and what holds its state between generations."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Literal

import structlog
import torch

from elastrain import guests
from elastrain.api.shape import ONE_RANK
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm.backend import look, propose_within
from elastrain.elastic.group.copies import WholeCopies
from elastrain.elastic.group.position import Position
from elastrain.elastic.group.rank_state import RankState
from elastrain.elastic.group.report import Reporter, tracer_of
from elastrain.elastic.group.shell import Session
from elastrain.elastic.group.world import World
from elastrain.elastic.shares import shares_of
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.strategies.replicated import Replicated
from elastrain.elastic.strategies.sharding.fully_sharded import FullySharded
from elastrain.elastic.strategies.sharding.sharded import Sharded
from elastrain.elastic.strategies.strategy import Measure, Strategy

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 0.05
"""Interval at which a rank looks for a generation."""
_REMIND_SECONDS = 10.0


def strategy_for(numerics: Literal["exact", "bitwise"], session: Session, small: Measure | None = None) -> Strategy:
    """The strategy for the job's settings. ``small``: as of :class:`Replicated`.

    Raises ``ValueError`` for what does not fit.
    """
    settings = session.welcome.settings
    shape, shards = settings.shape, settings.shards
    if shape != ONE_RANK and numerics == "bitwise":
        raise ValueError(
            f"elastrain.join(numerics='bitwise'): for replicated models only, and spec.parallelism.shards is {shards}: "
            "the bits of a sum over shards depend on the number of ranks (docs/numerics.md). Use numerics='exact': "
            "equal to a fixed run up to the order of additions"
        )
    if small is not None and (shape != ONE_RANK or numerics == "bitwise"):
        raise ValueError(
            f"spec.batch: not with elastrain.join(numerics={numerics!r}) and shards {shards}: use numerics='exact' and "
            "whole models, or remove it"
        )
    if shape is None:
        return FullySharded(partial(first_placement, session), settings.backend)
    if shape.dimensions:
        return Sharded(shape, session.shard, settings.backend)
    if numerics == "bitwise":
        strategy: Strategy = guests.load("elastrain_bitwise.strategy").deterministic()
        return strategy
    return Replicated(small)


def world_for(
    session: Session,
    strategy: Strategy,
    tracked: dict[str, Stateful],
    keeper: CheckpointKeeper,
    batch: ScriptsBatch | None = None,
) -> World:
    """The rank's place among the others. ``tracked`` is shared with the job, which adds to it. ``batch``: of a step."""
    settings = session.welcome.settings
    divergence = None if settings.shards == "all" else settings.divergence  # one copy has no replicas
    reporter, shape = Reporter(batch=batch or ScriptsBatch(), tracer=tracer_of(os.environ)), strategy.shape
    state = RankState(tracked, keeper, reporter, divergence, shares_of(settings, shape), shape=shape)
    position = Position(session, keeper)
    copies = WholeCopies(session)
    if isinstance(strategy, FullySharded):
        from elastrain.elastic.one_copy import OneCopy  # imports FSDP, which would delay every other job

        copies = OneCopy(session, strategy, state, position)
    return World(session, strategy, keeper, state=state, position=position, copies=copies)


def first_placement(session: Session, device: torch.device) -> tuple[int, int]:
    """Number of shards, and the shard of this rank.

    A joiner builds any shard of the present size, and receives its own one later. If no rank trains, this one is ready
    before its model is built, and builds its shard of the first generation's: no rank ever has to hold the whole model.
    Waits as long as the agent lives; a log line repeats it. Raises as of :meth:`Session.pause`.
    """
    began = reminded = time.monotonic()
    joins = session.locate().training
    if not joins:
        session.use(propose_within(look(device), session.welcome.settings.backend), device)
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
