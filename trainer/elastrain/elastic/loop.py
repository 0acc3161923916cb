"""The training loop: how runs of the body of ``for batch in job.steps(...)`` become committed steps.

:meth:`Loop.run` is the loop, :meth:`Loop._train_step` a step, and
:meth:`~elastrain.elastic.body.backward.Backward.run` what ``job.backward()`` does in it.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
import torch

from elastrain.api.loops import LoopId
from elastrain.api.messages import Finished, Left
from elastrain.data.audit import AuditLog
from elastrain.data.draws import Draws
from elastrain.data.loader import ElasticLoader
from elastrain.data.rng import Kept
from elastrain.data.share import Place
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.body.backward import Backward, within_backward
from elastrain.elastic.body.between import Between
from elastrain.elastic.body.bodies import Bodies
from elastrain.elastic.body.learning import Learning, knows_bodies
from elastrain.elastic.body.replica_check import ReplicaCheck
from elastrain.elastic.body.script_sums import ScriptSums
from elastrain.elastic.body.several import SeveralBackwards
from elastrain.elastic.boundary import Act, Boundary
from elastrain.elastic.commit.step import Step
from elastrain.elastic.commit.updates import left_by_break
from elastrain.elastic.contract import Call, Contract, Phase
from elastrain.elastic.group.end import End
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import ExitRequested, LoopOver, Session
from elastrain.elastic.group.world import World
from elastrain.elastic.state import transfer
from elastrain.elastic.strategies.scheduled import Scheduled
from elastrain.elastic.strategies.strategy import Strategy
from elastrain.elastic.undo.leaves import Leaves

log = structlog.get_logger(__name__)

_NO_BACKWARD = (
    "job.steps(): the loop body ended without job.backward(loss), by 'continue' or since it calls loss.backward(): "
    "call job.backward once for each batch; with loss * 0 for one that shall not count"
)


class Drained(SystemExit):
    """Raised out of the training loop when this worker leaves the job: the script ends here, with code 0.

    A ``SystemExit``, so that code after the loop, which may write the final model, runs only when training has ended.
    ``finally`` blocks and context managers run as usual.
    """


class Loop:
    """Executes the steps of one rank. For the training thread."""

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        heartbeat: Heartbeat,
        world: World,
        audit: AuditLog | None,
        *,
        batch: ScriptsBatch,
    ) -> None:
        self.contract = Contract(lambda: self.phase)
        """What the calls of the script do now."""
        self.leaves = Leaves(world.state.tracked)
        """What loop bodies change."""
        self.bodies = Bodies(world, heartbeat, batch, audit, self.leaves, rules=self.contract, together=strategy.votes)
        """What becomes of the steps."""
        self.several = SeveralBackwards(self.leaves, self.contract, self.bodies.in_body, self._allow_several_backwards)
        self._session, self._strategy = session, strategy
        self._heartbeat, self._world = heartbeat, world
        self._audit, self.batch, self.draws = audit, batch, Draws()
        self._loader: ElasticLoader | None = None
        self._learning = Learning(world, heartbeat)
        self._check = ReplicaCheck(world)
        self.sums = ScriptSums()
        self._backward = Backward(
            session, strategy, heartbeat, world,
            learning=self._learning, batch=batch, check=self._check, sums=self.sums,
        )  # fmt: skip
        self._warmed_by: ElasticLoader | None = None
        """The data of the last warm-up."""
        self._left = False
        self._over = False
        """Whether the script has left the job: a generator of :meth:`run` may end later."""
        self._returned: torch.Tensor | None = None
        """What the last ``job.backward()`` of the loop body has returned."""
        self.end = End(world, session, self.leaves)
        self.between = Between(world, heartbeat, self.settle)
        """The script between its steps."""

    @property
    def step(self) -> Step | None:
        """The step that is being computed."""
        return self.bodies.step

    @property
    def phase(self) -> Phase:
        """Where the training thread is."""
        if self._left:
            return Phase.LEAVING
        if self.bodies.running and self.step is not None:
            return self.step.phase
        if self._world.state.changes.running:
            return Phase.FRESH
        if self._world.state.pauses.running:
            return Phase.PAUSE
        return Phase.SETUP if self._loader is None else self.between.phase

    @property
    def place(self) -> Place:
        """This rank's place in the generation in force."""
        return self._world.place

    # -- called by the script ----------------------------------------------------------------------------------------
    def run(
        self, loader: ElasticLoader, total: int, *, several_backwards: bool, warm_up: Callable[[Any], object] | None
    ) -> Iterator[Any]:
        """Yield the data of each loop body until ``total`` steps are committed. Raises :class:`Drained`.

        ``warm_up``: as of :meth:`Job.steps`.
        """
        self.contract.acts(Call.STEPS)
        self._loader = loader
        self.draws.announced |= several_backwards
        self.between.asked = warm_up is not None
        if several_backwards and not self.several.allowed:
            self._allow_several_backwards()
        loop = self._world.position.next_loop(loader.order, total)
        with self.draws.loop(loader.randomness, lambda: total if self.between.passed else self._world.step):
            try:
                self._begin_loop(loader, loop)
                if self._world.joins:
                    transfer.header_of(self._world.state.tree())  # refused here, and not by the first joiner
                    if self._world.position.awaited and self._warmed_by is not loader:
                        bodies = self._warm_up(loader)
                        if warm_up is None:
                            yield from bodies
                        else:
                            deque(map(warm_up, bodies))
                        self._world.position.look_again()
                        self._begin_loop(loader, loop)
                    self._world.say_ready()
                while True:
                    self.settle()  # an agreed switch, or the next generation after a loss
                    boundary = self._world.boundary
                    if self.between.asked:
                        yield from self.between.stand()
                    elif boundary.act is Act.STEP:
                        yield from self._train_step(loader)
                    elif self._pause(boundary):
                        if boundary.act is Act.END:
                            break
                        if self.between.passed:
                            self._begin_loop(loader, loop)
                            self._world.say_ready()
            except LoopOver:
                self.between.leave_behind()
            self._world.position.end_loop()

    def _pause(self, boundary: Boundary) -> bool:
        """The loop pauses, or ends, on all ranks. Returns False if the generation broke before: settle, and retry."""
        if not (self._check.at_boundary() and self._world.leave_loop()):
            return False
        self._heartbeat.outside()
        self.batch.interrupt()
        if boundary.act is Act.END:
            self.leaves.begin(whole=self._world.place.rank > 0, body=False)  # it may have to run that code again
        self._world.state.pauses.run(boundary.due)
        return True

    def _begin_loop(self, loader: ElasticLoader, loop: LoopId) -> None:
        """Raises :class:`LoopOver`."""
        self.between.passed = False
        self.batch.begin_loop(loader.order)
        self._world.state.known.begin_loop()
        self._world.state.kept.begin_loop()
        if not self._world.begin_loop(loader.order, loop):
            raise LoopOver

    @property
    def loss(self) -> float | None:
        """As of :attr:`Job.loss`."""
        return self._world.state.reporter.loss if self._returned is None else self._returned.item()

    def backward(
        self, loss: torch.Tensor | Scheduled, unscaled: torch.Tensor, count: int | None = None, *, retain_graph: bool
    ) -> torch.Tensor:
        """As of :meth:`Job.backward`. ``unscaled``: the loss before a scaler multiplied it."""
        step, value = self.step, unscaled.detach()
        acts = self.contract.acts(Call.BACKWARD)
        if acts and step is not None and step.done == step.begun:
            self.several.check(step, "a further job.backward() in a loop body")
        model = self._world.model
        assert model is not None
        if not acts:
            model.stand_in_gradients()
            self._returned = value
            return value
        assert step is not None
        self.draws.samples()
        part = step.take(count)
        if step.warm_up:
            self._world.state.kept.put_aside(first=step.first)
            with within_backward(step):
                loss.backward(retain_graph=retain_graph)
        else:
            self._backward.run(step, part, loss, unscaled, self.leaves, retain_graph=retain_graph)
            if step.complete and not step.counts:
                model.stand_in_gradients()
        if step.complete:
            self.draws.summed()
        if step.complete and step.counts:
            value = torch.tensor(step.loss, dtype=torch.float64)
        self._returned = value
        return value

    def on_commit(self, callback: Callable[[], None]) -> None:
        """As of :meth:`Job.on_commit`."""
        self.bodies.callbacks.append(
            self.draws.of_step("commit", callback, lambda: self.step.number if self.step else 0)
        )

    def every(self, steps: int, function: Callable[[], None]) -> None:
        """As of :meth:`Job.every`."""
        self.contract.acts(Call.SET_UP, "job.every()")
        self._world.state.pauses.add(steps, self.draws.of_step("every", function, lambda: self._world.step))

    def at(self, step: int, change: Callable[[], None]) -> None:
        """As of :meth:`Job.at`."""
        self.contract.acts(Call.SET_UP, "job.at()")
        self._world.state.changes.add(step, self.draws.of_step("at", change, lambda: step))

    def stop(self) -> None:
        """As of :meth:`Job.stop`. A learner's body does not run on samples that count: it cannot end training."""
        if self.contract.acts(Call.STOP) and not (self.step is not None and self.step.share.learner):
            self._backward.stop_asked = True

    def step_with(self, step: Callable[..., Any], closure: Callable[[], Any], *, once: bool) -> Any:
        """As of :class:`StepWith`."""
        value = self.several.step_with(step, self.draws.closure(closure), once=once)
        self.draws.updated()
        return value

    def finish(self) -> None:
        """End together: no rank ends before all have committed the last step, since its state may be needed.

        Raises :class:`Drained` if this rank has left, and the script has caught it.
        """
        if self._left:
            raise Drained(0)
        try:
            self.bodies.conclude()
            self.end.finish()
        except ExitRequested as e:
            if not e.finished:
                raise self.drained(str(e)) from None
            log.info("the job has finished", step=self._world.step)
        self._session.send(Finished(step=self._world.step))

    def fails(self, error: BaseException) -> None:
        """As of :meth:`Bodies.fails`. Raises :class:`Drained` if this rank has to leave."""
        try:
            self.bodies.fails(error, self._session)
        except ExitRequested as e:
            raise self.drained(str(e)) from None

    def close(self) -> None:
        """The script has left the job."""
        self._over = True
        if self._audit is not None:
            self._audit.close()

    def _allow_several_backwards(self) -> None:
        self.several.allowed = True
        self._world.model = self._strategy.several_backwards()
        self._world.overlaps_transfer = False

    # -- a step --------------------------------------------------------------------------------------------------------
    def _warm_up(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of the loop body that leaves no trace.

        It warms allocator, threads and kernels: without it a joiner's first step would hold up all ranks.
        """
        mine = self._learning.warm_share = Place(0, 0, self._session.expected_world_size(), self._strategy.shape).share
        if (learner := self._world.wrapped.learner) is not None:
            learner.outputs.forget()
        self._world.state.kept.begin_step()
        self.leaves.begin(whole=True)
        with Kept():
            first, *_ = loader.begin(loader.order.first_step, mine, self.batch.single)
            cut = loader.order.in_micro_batches or self.batch.small is not None
            step = self.bodies.step = Step(0, self._world.place, mine, (first,), warm_up=True, in_micro_batches=cut)
            batch = loader.load()
            self._world.wrapped.warms_up = True
            with self._body(step):
                yield batch
            self._world.wrapped.warms_up = False
        self.leaves.end()
        self.bodies.drop_gradients()
        self._world.wrapped.detach()
        self._warmed_by = loader
        if step.backwards > 1 or step.closures:
            self._allow_several_backwards()
        self.bodies.step = None
        if lost := self.leaves.restore():
            raise RuntimeError(
                f"the loop body changes {', '.join(lost[:3])} in the warm-up of each process, and it cannot be put "
                "back: change it under 'if job.committed:', or in a function given to job.on_commit()"
            )
        knows_bodies(self._world, self.leaves.tensors.changing)

    def _train_step(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of a step, in this order:

        data, body, gradients summed, vote, decide, update applied, committed; then its boundary: :meth:`settle`.

        The body calls :meth:`backward`, which sums the gradients, votes and decides (:meth:`Backward.run`), and then
        its optimizers, which apply the update if the step counts. It runs once for each micro-batch of this rank, as
        long as the generation is healthy. A step that does not count is discarded in :meth:`settle`, and repeated.
        """
        step = self.bodies.step = self._begin_step(loader)
        for part in step.parts:
            communicator = self._world.communicator
            if communicator is None or communicator.over is not None:
                return
            try:
                with self.draws.kept():
                    batch = loader.load()
                    with self._strategy.body(part, communicator), self._learning.outputs(), self._body(step):
                        yield batch
            except GeneratorExit:
                if not self._over and self.step is step:
                    self.bodies.leave(step, finished=left_by_break(sys._getframe(1)))
                raise
            if step.done < step.begun:
                if self.bodies.void(step):
                    return  # the script has decided by stand-ins
                raise RuntimeError(_NO_BACKWARD)
        if step.counts:
            self.bodies.commit(step)

    @contextmanager
    def _body(self, step: Step) -> Iterator[None]:
        """Around the loop body on the next micro-batch of ``step``."""
        part, self._returned = step.parts[step.begun], None
        step.begun += 1
        self.bodies.updates.begin()
        try:
            with self.bodies.body(step), self.draws.body(step.number, part):
                yield
        finally:
            self._returned = None
        self.bodies.updates.end()

    def _begin_step(self, loader: ElasticLoader) -> Step:
        """The next step, cut into this rank's micro-batches."""
        place, number, state = self._world.place, self._world.step, self._world.state
        share = state.shares.of(self._world.share)
        self.bodies.executions += 1
        state.known.begin_step()
        state.replicas.begin_step(place.generation, possible=not state.calls.count, holds=not share.learner)
        self._world.begin_step()  # first: a learner's state may be completed
        spans = self.batch.begin_step(self._world.position.loop.end, state.pauses.intervals)
        if state.changes.before_step(number):
            loader.renew()  # they may have changed what worker processes have a copy of
        parts, order = self._learning.parts(loader, share, spans), loader.order
        self.bodies.order, span = order, spans.at(number, order.left(number))
        state.backwards = self.draws.knows(state.backwards)
        if state.backwards > 1 and not self.several.allowed:
            self._allow_several_backwards()
        self.leaves.begin(whole=self.several.allowed)
        self._strategy.begin_step()
        state.kept.begin_step()
        self.contract.waiting.clear()
        self._heartbeat.body(place.generation, place.world_size)
        step = Step(number, place, share, parts, unit=1 / (span * order.global_batch_size), span=span)
        step.in_micro_batches = order.in_micro_batches or self.batch.small is not None
        step.samples = order.samples_before(number + span) - order.samples_before(number)
        return step

    # -- between steps -------------------------------------------------------------------------------------------------
    def settle(self, *, between: bool = False) -> None:
        """Return in a healthy generation, at a step boundary. As of :meth:`World.settle`; raises :class:`Drained`."""
        if self._left:
            raise Drained(0)  # the script has caught the first one
        self._heartbeat.runtime()
        self.bodies.conclude()
        try:
            self._world.settle(between=between)
        except ExitRequested as e:
            raise self.drained(str(e)) from None

    def drained(self, reason: str) -> Drained:
        """What a rank raises that leaves the job."""
        log.info("leaving the job", step=self._world.step, reason=reason)
        self._left = True
        self._session.send(Left(step=self._world.step))
        return Drained(0)
