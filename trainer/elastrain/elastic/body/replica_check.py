"""Compares the replicas with a vote, or at a boundary, and acts on a difference. For the training thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import structlog

from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind, RanksDiverged
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Compared
from elastrain.elastic.encoding import decode, encode
from elastrain.elastic.group.world import World
from elastrain.elastic.replicas.compare import WAY_OUT, Judgement, Outcome, Row, differ, judge

log = structlog.get_logger(__name__)

MOST_TAKEN = 1
"""Times that a rank takes the state of a majority. What differs again has its cause in this rank."""


class ReplicaDiffers(RuntimeError):
    """This rank's state differs from that of the majority again and again."""


class ReplicaCheck:
    """Of one rank."""

    def __init__(self, world: World) -> None:
        self._world, self._replicas = world, world.state.replicas

    def after_vote(self, summed: Summed | None, communicator: Communicator) -> Compared:
        """The sum of the votes is here, or void. A rank that has it knows the numbers of all ranks, and so each takes
        the same way: a difference makes the step count on no rank.

        Raises :class:`RanksDiverged`, and :class:`ReplicaDiffers` on a rank of which that is not the first time.
        """
        if summed is None or communicator.broken is not None or not summed.replicas:
            return Compared.EQUAL
        return self._settle(summed.replicas, communicator)

    def at_boundary(self) -> bool:
        """A pause, or the end of a loop, follows. Returns whether the replicas are equal. Raises as above."""
        world = self._world
        if world.state.calls.count or not self._replicas.schedule.due_at_boundary:
            return True
        world.complete()
        communicator = world.communicator
        assert communicator is not None
        communicator.step = world.step
        try:
            numbers = communicator.all_gather_ints([self._replicas.number_at_boundary()], Kind.REPLICAS)
        except GenerationBroken:
            return False
        return self._settle([number for (number,) in numbers], communicator) is Compared.EQUAL

    def _settle(self, numbers: Sequence[int], communicator: Communicator) -> Compared:
        step, replicas, model = self._world.step, self._replicas, self._world.model
        assert model is not None
        try:
            model.check_alike(communicator)
        except GenerationBroken:
            return Compared.UNKNOWN
        judgement = Judgement(Outcome.EQUAL)
        if differ(numbers, replicas.shards):
            try:
                judgement = self._judge(communicator, step)
            except GenerationBroken:
                return Compared.UNKNOWN
        if judgement.outcome is Outcome.EQUAL:
            replicas.equal(step)
            return Compared.EQUAL
        log.error("replicas differ", step=step, outcome=judgement.outcome.name, why=judgement.why)
        self._act(judgement, communicator)
        return Compared.DIFFERENT

    def _judge(self, communicator: Communicator, step: int) -> Judgement:
        """What all ranks find in their entries. Raises ``GenerationBroken``."""
        mine = encode(asdict(self._replicas.row(self._replicas.shards[communicator.rank])))
        rows = [Row(**decode(raw)) for raw in communicator.all_gather_bytes(mine, Kind.REPLICAS)]
        judgement = judge(rows, step)
        self._replicas.judged(judgement)
        try:
            communicator.all_gather_ints([1], Kind.REPLICAS)  # all have the rows before one of them leaves
        except GenerationBroken:
            log.info("a peer was lost while replicas were compared", outcome=judgement.outcome.name)
        return judgement

    def _act(self, judgement: Judgement, communicator: Communicator) -> None:
        mine = communicator.rank in judgement.minority
        if judgement.outcome is Outcome.FAIL:
            raise RanksDiverged(judgement.why)
        if judgement.outcome is Outcome.GO_BACK:
            self._replicas.go_back()
        elif mine:
            self._replicas.taken += 1
            if self._replicas.taken > MOST_TAKEN:
                error = ReplicaDiffers(f"{judgement.why}; not for the first time: {WAY_OUT}")
                communicator.fail_here(error)
                raise error
        self._world.leave(judgement.why, void=mine or judgement.outcome is Outcome.GO_BACK)
