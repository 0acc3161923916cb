"""Steps of a strategy whose ranks vote: what happens where the result of a vote is missing."""

from __future__ import annotations

import structlog

from elastrain.elastic.comm.communicator import GenerationBroken
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.session import ExitRequested, Withdrawn
from elastrain.elastic.group.world import World
from elastrain.elastic.step import Step

log = structlog.get_logger(__name__)


class Voting:
    """For the training thread."""

    def __init__(self, world: World, heartbeat: Heartbeat) -> None:
        self._world, self._heartbeat = world, heartbeat

    def settle(self, step: Step, summed: Summed, generation: int) -> None:
        """This rank has voted for ``step`` in ``generation``: return when it is known whether the step counts.

        ``summed``: void if the step does not count as far as this rank has seen.
        """
        model, ballot = self._world.model, self._world.position.ballot
        assert model is not None
        if not step.counts:
            ballot.voted = generation
            late = self._missing()
            ballot.voted = 0
            if late is None:
                return
            log.info("the step counts: peers have committed it", step=step.number)
            step.decide(late, generation, intact=True, updatable=True)
            summed = late
        model.take_votes(summed.of_model)
        ballot.count(summed, generation, step.number + 1)

    def _missing(self) -> Summed | None:
        """The result of this rank's vote, if a peer has committed the step.

        Waits for a generation that includes this rank, which it enters after its loop body.
        """
        world, position = self._world, self._world.position
        self._heartbeat.runtime()
        assert world.communicator is not None
        world.give_up(world.communicator, world.communicator.broken or "the vote for the step has failed")
        while True:
            try:
                generation, communicator = position.next_generation(world.number, joins=False)
            except ExitRequested:
                return None  # the end of the loop body meets the same reason
            except Withdrawn:
                position.renew()
                world.say_ready()
                continue
            if communicator is None:
                world.stop_for(generation)
                continue
            try:
                return position.hear(generation, communicator, world.entry_row(generation))
            except GenerationBroken as e:
                world.give_up(communicator, e.cause)
