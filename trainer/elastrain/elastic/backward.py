"""From the loss of a loop body to the decision whether its step counts, by the sums over the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import torch

from elastrain.data.order import Slice
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.commit import control
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.vote import Vote, cast
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.session import Session
from elastrain.elastic.group.world import World
from elastrain.elastic.learning import Learning
from elastrain.elastic.replicas.check import Found, ReplicaCheck
from elastrain.elastic.state.buffers import Buffers
from elastrain.elastic.step import Step
from elastrain.elastic.strategies.strategy import Strategy
from elastrain.elastic.voting import Voting

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
    ) -> None:
        self.stop_asked = False
        """Whether this rank asks to end training."""
        self._session, self._strategy, self._heartbeat, self._world = session, strategy, heartbeat, world
        self._learning, self._batch, self._check = learning, batch, check
        self._voting = Voting(world, heartbeat)

    def run(
        self,
        step: Step,
        part: Slice,
        loss: torch.Tensor,
        unscaled: torch.Tensor,
        buffers: Buffers,
        *,
        retain_graph: bool,
    ) -> None:
        """One backward of ``step``, of ``part``; after the last one it is decided whether the step counts.

        ``unscaled``: the loss before a scaler multiplied it. ``buffers``: those of the model when the step began.
        """
        communicator = self._world.communicator
        assert communicator is not None
        self._put_aside(step)
        summed: Summed | None = None
        if step.share.learner:
            self._learning.gradients(buffers)
            summed = self._vote(step, communicator)
        else:
            learners = self._world.share != self._world.place.share
            self._world.state.trained.before_backward(communicator, first=step.done == 1, learners=learners)
            self._heartbeat.backward(loss)
            self._batch.of_part(step, part, loss, unscaled)
            step.add_loss(part, unscaled)
            with self._guarded(communicator):
                with within_backward(step):
                    self._strategy.backward(
                        loss, unscaled, part, communicator, last=step.complete, retain_graph=retain_graph
                    )
                if step.complete:
                    summed = self._vote(step, communicator)
        if step.complete:
            # Read first: if the transfer to a joiner breaks in before_update(), the sums of this step still count.
            intact = self._session.vouched(communicator)
            updatable = self._world.before_update()
            if self._world.share != self._world.place.share:
                updatable &= self._learning.share_buffers(communicator, buffers)
            incomplete = self._world.receiving
            found = self._check.after_vote(summed, communicator)
            intact &= found is Found.EQUAL
            step.decide(summed, communicator.generation, intact=intact, updatable=updatable, incomplete=incomplete)
            if self._strategy.votes and summed is not None and found is not Found.DIFFERENT:
                self._voting.settle(step, summed, communicator.generation)
            if step.counts and step.backwards <= 1:
                self._world.state.replicas.schedule.stepped(receiving=step.learning)
            self._weigh(step)
        self._heartbeat.resumed(summed.sums[control.COMPUTE] if summed is not None and step.counts else None)

    def _vote(self, step: Step, communicator: Communicator) -> Summed | None:
        """All gradients are complete on this rank: the sum of all votes. None: it has not voted, since a peer was lost.

        Raises as of :meth:`ElasticModule.check_votes`.
        """
        if communicator.broken is not None:
            return None
        summed = cast(communicator, lambda: self._own_vote(step, communicator))
        if communicator.broken is None:
            assert self._world.model is not None
            self._world.model.check_votes(summed.of_model, communicator)
        return summed

    def _own_vote(self, step: Step, communicator: Communicator) -> Vote:
        world, model = self._world, self._world.model
        assert model is not None
        connected, replica = self._session.connected(), world.state.replicas.take_number(communicator)
        of_model, of_batch = model.votes(), self._batch.votes(world.place)
        if step.share.learner:
            learning = model.learner is not None and model.learner.receiving
            connected = frozenset[int]() if learning else connected  # no switch before its state is complete
            return Vote(connected, learning=learning, of_model=of_model, of_batch=of_batch, replica=replica)
        first = world.place.rank % self._strategy.tensor == 0  # of the ranks that compute the same samples
        return Vote(
            connected,
            loss=self._loss(step) if first else 0.0,
            compute=self._heartbeat.share(),
            stop=self.stop_asked,
            counted=step.counts_given if first else 0.0,
            count=step.count if first else 0,
            save=world.saving.vote(world.step + 1),
            kept=step.keeps and first,
            of_model=of_model,
            of_batch=of_batch,
            replica=replica,
        )

    def _loss(self, step: Step) -> float:
        """This rank's part of the mean loss."""
        if (summed := self._strategy.loss) is not None:
            return summed if self._world.place.rank == 0 else 0.0
        return 0.0 if step.losses is None else step.losses.item()

    @contextmanager
    def _guarded(self, communicator: Communicator) -> Iterator[None]:
        """A backward runs. An exception in it ends the script only if its generation is healthy: after a loss code of
        the script sees stand-ins, and branches by them. The body runs again then, and a failure of its own recurs."""
        try:
            yield
        except Exception as e:
            if communicator.broken is None or isinstance(e, RanksDiverged):
                # Of a sharded model the parameters may be those of an unfinished forward.
                if isinstance(e, RuntimeError) and not self._strategy.votes:
                    self._world.state.known.check()  # the loss may miss a layer that was replaced
                raise
            log.info("an exception has ended the backward of a step that is discarded", error=repr(e))
            assert self._world.model is not None
            self._world.model.recover()

    def _put_aside(self, step: Step) -> None:
        """The gradients that the parameters have are of earlier backwards, and summed already. Raises ``RuntimeError``
        if gradients of a step before cannot be kept."""
        if not (step.first or step.backwards > 1):
            return  # the micro-batches of a step are added by the strategy
        kept, model = self._world.state.kept, self._world.model
        assert model is not None
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
        if step.counts and (0 < step.kept < step.share.parts or (step.share.learner and step.keeps != (step.kept > 0))):
            raise RanksDiverged(
                f"job.backward(): in step {step.number + 1} some ranks have gradients of a step before, and others do "
                "not: call zero_grad() on all ranks before the same steps: always, or by job.step"
            )
        if step.counts and step.mixed:
            raise RanksDiverged(
                f"job.backward(): in step {step.number + 1} some calls had a count=… and others had none: give it in "
                "each call, on all ranks and for each micro-batch, or in none"
            )
        if step.counts and (model := self._world.model) is not None:
            model.scale_gradients(step.factor)
            self._batch.measure(step, model)
            self._world.state.kept.add()
