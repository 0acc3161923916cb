"""The training loop from inside: how runs of the body of ``for batch in job.steps(...)`` become steps that count::

loop body starts     a micro-batch of this rank's part of the global batch; most often there is one, all of it
backward(loss)       with the last micro-batch gradients are summed over the generation, and with them travels who
                     is ready for the next generation
optimizer.step()     applied after the last micro-batch, unless the collective failed: then this and every tracked
                     step() does nothing
loop body ends       after the last micro-batch the step is committed, or discarded, and then comes again as a whole
boundary             a switch that was agreed, or a new generation after a loss, happens here and nowhere else
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import structlog
import torch

from elastrain.api.messages import Finished, Left
from elastrain.data.audit import AuditLog
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order
from elastrain.data.rng import Kept
from elastrain.data.share import Share
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.membership import control
from elastrain.elastic.membership.control import Summed
from elastrain.elastic.membership.heartbeat import Heartbeat
from elastrain.elastic.membership.session import ExitRequested, Session
from elastrain.elastic.membership.world import World
from elastrain.elastic.state import memory, transfer
from elastrain.elastic.state.buffers import Buffers
from elastrain.elastic.step import Step
from elastrain.elastic.strategies.gradients import Gradients

log = structlog.get_logger(__name__)


class Drained(SystemExit):
    """Raised out of the training loop when this worker leaves the job: the script ends here, with code 0.

    It is a ``SystemExit`` so that code after the loop, which may write the final model, runs only where training has
    really ended. ``finally`` blocks and context managers run as usual.
    """


class Loop:
    """Executes the steps of one rank. Training thread only."""

    def __init__(
        self,
        session: Session,
        gradients: Gradients,
        heartbeat: Heartbeat,
        world: World,
        audit: AuditLog | None,
    ) -> None:
        self.step: Step | None = None
        """The step that is being computed."""
        self._session = session
        self._gradients = gradients
        self._heartbeat = heartbeat
        self._world = world
        self._audit = audit
        self._order: Order | None = None
        self._total: int | None = None
        self._buffers: Buffers | None = None
        self._on_commit: list[Callable[[], None]] = []
        self._wants_to_stop = False

    def on_commit(self, callback: Callable[[], None]) -> None:
        """As of :meth:`Job.on_commit`."""
        self._on_commit.append(callback)

    def stop(self) -> None:
        """As of :meth:`Job.stop`."""
        self._wants_to_stop = True

    def may_clear(self) -> bool:
        """Gradients may be cleared before the first micro-batch of a step has added to them, and after the last."""
        return self.step is None or self.step.done == 0 or self.step.complete

    def run(self, loader: ElasticLoader, total: int) -> Iterator[Any]:
        """Yield what the loop body runs on until ``total`` steps are committed. Raises :class:`Drained`."""
        self._order, self._total = loader.order, total
        if not self._world.ready:
            assert self._world.model is not None
            keeps = self._world.model.needs_bytes > 0 and memory.keep_freed(os.environ)
            yield from self._warm_up(loader)
            self._world.say_ready()
            if keeps:  # while the others hear of it: what this rank needs from the switch on is not to be new then
                memory.touch(self._world.model.needs_bytes)
            self._world.model.detach()
        while True:
            self._settle()
            if self._world.stopped or self._world.step >= total:
                self._world.complete()
                self._heartbeat.outside()
                return
            yield from self._compute(loader)

    def backward(self, loss: torch.Tensor) -> None:
        """As of :meth:`Job.backward`."""
        step = self.step
        if step is None:
            raise RuntimeError("job.backward(): only inside 'for batch in job.steps(...)'")
        if step.done == step.begun:
            raise RuntimeError("job.backward(): called twice for one batch")
        part = step.parts[step.done]
        step.done += 1
        if step.warm_up:
            loss.backward()
            return
        communicator = self._world.communicator
        assert communicator is not None
        heard: Summed | None
        if step.looks_on:
            heard = self._looked_on(communicator)
        else:
            self._heartbeat.backward(loss)
            heard = self._gradients.backward(
                loss,
                part,
                self._session.connected,
                self._heartbeat.share(),
                communicator,
                stop=self._wants_to_stop,
                last=step.complete,
            )
        counts = communicator.broken is None  # now: what may break while others get this rank's state is not the sums
        if heard is None or not self._world.before_update() or not counts:
            self._heartbeat.resumed(None)
            return
        self._heartbeat.resumed(heard.sums[control.COMPUTE])
        step.take(heard, communicator.generation)

    def finish(self) -> None:
        """End together: nobody goes before all have committed the last step, since its state may be needed."""
        try:
            self._world.finish()
        except ExitRequested:
            log.info("the job has finished", step=self._world.step)
        self._session.send(Finished(step=self._world.step))

    # -- inside ------------------------------------------------------------------------------------------------------
    def _looked_on(self, communicator: Communicator) -> Summed:
        """While this rank got its state the others have computed the whole batch: it takes the gradients from them.

        The loss of the loop body is nobody's, and what its forward left in the model's buffers goes.
        """
        assert self._world.model is not None and self._buffers is not None
        self._heartbeat.looks_on()
        self._buffers.restore()
        return self._world.model.looked_on(communicator)

    def _warm_up(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of the loop body that leaves nothing behind.

        It makes allocator, threads and kernels ready: without it a joiner's first step would hold up the whole world.
        """
        assert self._world.model is not None
        self._buffers = Buffers(self._world.model.module)
        cut = Share(0, max(self._session.expected_world_size(), 1))
        with Kept():
            batch, part = loader.fetch(0, *cut)
            self.step = Step(0, (part,), self._world.place, self._world.share, cut, warm_up=True)
            self._enter_body(loader, self.step)
            yield batch
        self.step = None
        self._gradients.check_warm_up(self._buffers.after_warm_up())
        # What forward changes cannot be given away while training goes on, unless it is packed beforehand.
        self._world.gives_in_passing = self._world.model.can_look_on and self._buffers.largest < transfer.SMALL_BYTES

    def _compute(self, loader: ElasticLoader) -> Iterator[Any]:
        """One execution of a step: all micro-batches of this rank, as far as the generation holds."""
        order, place = loader.order, self._world.place
        step = self.step = Step.of(order, self._world.step, place, self._world.share)
        at = (step.number, *step.cut)
        assert self._buffers is not None
        self._buffers.save()
        self._world.begin_step()
        self._gradients.begin(order.leaves(*at) if order.micro_batches else None)
        self._heartbeat.body(place.generation, place.world_size)
        for micro, part in enumerate(step.parts):
            communicator = self._world.communicator
            if communicator is None or communicator.over is not None:
                return  # discarded; _settle() enters the next generation and the same step comes again
            # One who looks on runs no backward: its forward must not have DDP expect one, or the gradients of the next
            # micro-batch would be summed over the ranks.
            last = micro == len(step.parts) - 1 and not step.looks_on
            try:
                with _kept(loader):
                    batch, _ = loader.fetch(*at, micro)
                    with self._gradients.body(part, communicator, last=last):
                        self._enter_body(loader, step)
                        yield batch
            except GeneratorExit:  # the script broke out of the loop; its optimizer may have been applied
                if step.ok:
                    self._commit(step)
                self._world.complete()
                raise
            if step.done < step.begun:
                raise RuntimeError("job.steps(): the loop body must call job.backward(loss) once per batch")
        if step.ok:
            self._commit(step)

    def _enter_body(self, loader: ElasticLoader, step: Step) -> None:
        if loader.randomness is not None:
            loader.randomness.seed_body(step.number, step.parts[step.begun])
        step.begun += 1

    def _commit(self, step: Step) -> None:
        assert self._order is not None
        self._heartbeat.committed()
        self.step = None
        self._log(step, "commit")
        self._world.stopped = step.stops
        self._world.commit(self._order, self._total, step.loss, step.agreed, looking=step.looking)
        self._tell_committed()

    def _tell_committed(self) -> None:
        for callback in self._on_commit:
            callback()

    def _settle(self) -> None:
        """Be in a healthy generation at a step boundary. Raises :class:`Drained`."""
        self._heartbeat.runtime()
        unfinished, self.step = self.step, None
        if unfinished is not None and self._world.model is not None and self._buffers is not None:
            self._world.model.zero_grad(set_to_none=True)  # what its micro-batches have added up is void
            self._buffers.restore()
        try:
            self._world.settle()
        except ExitRequested as e:
            log.info("leaving the job", step=self._world.step, reason=str(e))
            self._session.send(Left(step=self._world.step))
            raise Drained(0) from None
        if unfinished is not None and unfinished.number < self._world.step:
            self._log(unfinished, "adopted")
            self._tell_committed()

    def _log(self, step: Step, kind: str) -> None:
        if self._audit is not None and self._order is not None:
            indices = tuple(i for part in step.parts for i in part.indices)
            self._audit.write(kind, step.number, indices, self._order, place=step.place, share=step.share)


def _kept(loader: ElasticLoader) -> AbstractContextManager[object]:
    """Around the loading of a micro-batch and its loop body: once for both, since keeping a state costs a copy."""
    return loader.randomness.kept if loader.randomness is not None else nullcontext()
