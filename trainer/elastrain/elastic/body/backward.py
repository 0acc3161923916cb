"""From the loss of a loop body to the decision whether its step counts, by the sums over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog
import torch

from elastrain.api.records import Generation
from elastrain.data.order import Slice
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.body.learning import Learning
from elastrain.elastic.body.replica_check import ReplicaCheck
from elastrain.elastic.body.script_sums import ScriptSums
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.comm.transport import OnHost
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.decide import Known
from elastrain.elastic.commit.step import Step
from elastrain.elastic.commit.vote import Vote, cast
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import ExitRequested, Session
from elastrain.elastic.group.world import World
from elastrain.elastic.strategies.scheduled import Scheduled
from elastrain.elastic.strategies.strategy import Strategy
from elastrain.elastic.undo.leaves import Leaves

log = structlog.get_logger(__name__)

_KEPT = "the parameters have gradients of a step before, which cannot be kept"
_DROP = (
    "call optimizer.zero_grad() in each loop body; to accumulate gradients, use a larger global_batch_size and give "
    "micro_batch_size"
)


@contextmanager
def within_backward(step: Step) -> Iterator[None]:
    """Autograd runs: calls of the script come from hooks."""
    step.in_backward = True
    try:
        yield
    finally:
        step.in_backward = False


class Backward:
    """For the training thread."""

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        heartbeat: Heartbeat,
        world: World,
        *,
        learning: Learning,
        batch: ScriptsBatch,
        check: ReplicaCheck,
        sums: ScriptSums,
    ) -> None:
        self.stop_asked = False
        """Whether this rank asks to end training."""
        self._session, self._strategy, self._heartbeat, self._world = session, strategy, heartbeat, world
        self._learning, self._batch, self._check, self._sums = learning, batch, check, sums

    def run(
        self,
        step: Step,
        part: Slice,
        loss: torch.Tensor | Scheduled,
        unscaled: torch.Tensor,
        leaves: Leaves,
        *,
        retain_graph: bool,
    ) -> None:
        """One backward of ``step``, of ``part``. After the last one: gradients summed, vote, decide.

        ``unscaled``: the loss before a scaler multiplied it. ``leaves``: what they were when the step began.
        """
        communicator = self._world.communicator
        assert communicator is not None
        self._put_aside(step)
        summed: Summed | None = None
        if step.share.learner:
            self._learning.gradients()
            summed = self._vote(step, communicator)
        else:
            with self._guarded(communicator):
                self._gradients(step, part, loss, unscaled, communicator, retain_graph=retain_graph)
                if step.complete:
                    summed = self._vote(step, communicator)
        if step.complete:
            self._decide(step, summed, communicator, leaves)
            self._weigh(step)
        self._heartbeat.resumed(step.result.summed.sums[control.COMPUTE] if step.counts else None)

    # -- gradients -----------------------------------------------------------------------------------------------------
    def _gradients(
        self,
        step: Step,
        part: Slice,
        loss: torch.Tensor | Scheduled,
        unscaled: torch.Tensor,
        communicator: Communicator,
        *,
        retain_graph: bool,
    ) -> None:
        """Compute those of ``part``, and sum them over the ranks if it is the last one."""
        learners = self._world.share != self._world.place.share
        self._world.wrapped.around_sums = self._heartbeat.in_sum
        if self._world.state.trained.before_backward(communicator, first=step.done == 1, learners=learners):
            self._world.wrapped.may_train_others = True
        if isinstance(loss, torch.Tensor):
            self._heartbeat.backward(loss)
            self._batch.of_part(step, part, loss, unscaled)
        with within_backward(step):
            self._strategy.backward(loss, unscaled, part, communicator, last=step.complete, retain_graph=retain_graph)
        step.add_loss(part, unscaled)  # of a schedule it is known now

    # -- vote ----------------------------------------------------------------------------------------------------------
    def _vote(self, step: Step, communicator: Communicator) -> Summed | None:
        """All gradients are complete on this rank: the sum of all votes. None: it has not voted, since a peer was lost.

        Raises as of :meth:`ElasticModule.check_votes`.
        """
        if communicator.broken is not None:
            return None
        loss = None if step.losses is None else OnHost(step.losses)  # before the wait for the sums, which covers it
        summed = cast(communicator, lambda: self._own_vote(step, communicator, loss))
        if communicator.broken is None:
            self._world.wrapped.check_votes(summed.of_model, communicator)
        return summed

    def _own_vote(self, step: Step, communicator: Communicator, loss: OnHost | None) -> Vote:
        world, model = self._world, self._world.wrapped
        connected, replica = self._session.connected(), world.state.replicas.take_number(communicator)
        samples, shape, rank = sum(len(part.indices) for part in step.parts), step.place.shape, step.place.rank
        has_loss, seconds = shape.has_loss(rank), self._heartbeat.spent  # a device has come so far: cast() has waited
        of_script = self._sums.votes(step)
        riders = {
            "of_model": model.votes(),
            "of_script": of_script if has_loss or step.share.learner else [0.0] * len(of_script),
            "of_batch": self._batch.votes(world.place),
            "of_shares": world.state.shares.votes(step.share, step.place, seconds=seconds, samples=samples),
        }
        if step.share.learner:
            learning = model.learner is not None and model.learner.receiving
            connected = frozenset[int]() if learning else connected  # no switch before its state is complete
            return Vote(connected, learning=learning, riders=riders, replica=replica)
        first = shape.counts(rank)
        return Vote(
            connected,
            loss=self._loss(loss) if has_loss else 0.0,
            compute=self._heartbeat.share(),
            stop=self.stop_asked,
            counted=step.counts_given if first else 0.0,
            count=step.count if has_loss else 0,
            save=world.saving.vote(world.step + 1),
            kept=step.keeps and first,
            riders=riders,
            replica=replica,
        )

    def _loss(self, of_step: OnHost | None) -> float:
        """This rank's part of the mean loss."""
        if (summed := self._strategy.loss) is not None:
            return summed if self._world.place.rank == 0 else 0.0
        return 0.0 if of_step is None else of_step.number()

    # -- decide --------------------------------------------------------------------------------------------------------
    def _decide(self, step: Step, summed: Summed | None, communicator: Communicator, leaves: Leaves) -> None:
        """Whether ``step`` counts, by the sum of the votes. Returns when the optimizers may change the state."""
        world, generation = self._world, communicator.generation
        # Read first: if the transfer to a joiner breaks in before_update(), the sums of this step still count.
        vouched = self._session.vouched(communicator)
        holds = world.before_update()
        if world.share != world.place.share:
            holds &= self._learning.share_buffers(communicator, leaves)
            leaves.note()  # what a learner has received meanwhile
        known = Known(
            generation,
            summed,
            vouched=vouched,
            holds=holds,
            incomplete=world.receiving,
            replicas=self._check.after_vote(summed, communicator),
            keeps=self._strategy.votes,
        )
        if step.decide(known):
            step.decide(replace(known, asked=True, late=self._missed_result(communicator)))
            if step.counts:
                log.info("the step counts: peers have committed it", step=step.number)
        if not step.counts:
            log.info("the step does not count", step=step.number, outcome=step.outcome)
            return
        self._sums.take(step.result.summed.of_script)
        if self._strategy.votes:
            world.wrapped.take_votes(step.result.summed.of_model)
            world.position.ledger.count(step.result.summed, generation, step.number + 1)
        if step.backwards <= 1:
            world.state.replicas.schedule.stepped(receiving=step.result.learning)

    def _missed_result(self, voted: Communicator) -> Summed | None:
        """The result of this rank's vote over ``voted``, if a peer has counted the step by it.

        Meets the ranks of a generation that includes this rank, and asks them. They wait for this rank, which enters
        when its loop body is over. None also if it has to leave: the end of the loop body meets the reason again.
        """
        world, position, heard = self._world, self._world.position, list[Summed | None]()

        def ask(generation: Generation, communicator: Communicator) -> None:
            heard.append(position.hear(communicator, world.entry_row(generation)))

        self._heartbeat.runtime()
        voted.abort("the vote for the step has failed")
        position.ledger.voted = voted.generation
        try:
            while not heard:
                trains = world.follow(ask)
                assert not trains, "the generation is broken"
        except ExitRequested:
            return None
        finally:
            position.ledger.voted = 0
        return heard[0]

    # -- what surrounds them -------------------------------------------------------------------------------------------
    @contextmanager
    def _guarded(self, communicator: Communicator) -> Iterator[None]:
        """A backward runs. An exception in it ends the script if its generation is healthy, or was ended by it. After a
        loss code of the script sees stand-ins, and branches by them: the body runs again, and a failure recurs."""
        try:
            yield
        except Exception as e:
            if communicator.broken is None or e is communicator.failure or isinstance(e, RanksDiverged):
                # Of a sharded model the parameters may be those of an unfinished forward.
                if isinstance(e, RuntimeError) and not self._strategy.votes:
                    self._world.state.known.check()  # the loss may miss a layer that was replaced
                raise
            log.info("an exception has ended the backward of a step that is discarded", error=repr(e))
            self._world.wrapped.recover()

    def _put_aside(self, step: Step) -> None:
        """The gradients that the parameters have are of earlier backwards, and summed already. Raises ``RuntimeError``
        if gradients of a step before cannot be kept."""
        if not (step.first or step.backwards > 1):
            return  # the micro-batches of a step are added by the strategy
        kept, model = self._world.state.kept, self._world.wrapped
        if step.first and not self._strategy.votes:
            self._world.state.known.begin_step()
        step.keeps = kept.put_aside(first=step.first) or step.keeps
        model.aside = kept.aside
        if step.keeps and not self._strategy.keeps_gradients:
            raise RuntimeError(f"job.backward(): {_KEPT} with spec.parallelism.shards: all: {_DROP}")
        if step.keeps and self._batch.small is not None:
            raise RuntimeError(f"job.backward(): {_KEPT} with spec.batch, which chooses the batch of a step: {_DROP}")

    def _weigh(self, step: Step) -> None:
        """The gradients that were added become those of the mean, and those of steps before are added.

        Raises :class:`RanksDiverged` if the ranks differ in what they have given.
        """
        if not step.counts:
            return
        result, ranks = step.result, step.share.parts
        self._world.state.shares.check(result.summed.of_shares)
        if 0 < result.kept < ranks or (step.share.learner and step.keeps != (result.kept > 0)):
            raise RanksDiverged(
                f"job.backward(): in step {step.number + 1} some ranks have gradients of a step before, and others do "
                "not: call zero_grad() on all ranks before the same steps: always, or by job.step"
            )
        if result.mixed(ranks):
            raise RanksDiverged(
                f"job.backward(): in step {step.number + 1} some calls had a count=… and others had none: give it in "
                "each call, on all ranks and for each micro-batch, or in none"
            )
        self._world.wrapped.scale_gradients(result.factor(step.unit))
        self._batch.measure(step, self._world.wrapped)
        self._world.state.kept.add()
