"""What becomes of a step when its loop body has ended, or was left: committed, discarded, or taken from a peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import structlog

from elastrain.data.audit import AuditLog
from elastrain.data.order import Order
from elastrain.elastic.batching import ScriptsBatch
from elastrain.elastic.body.learning import knows_bodies
from elastrain.elastic.comm.peer import GroupLost
from elastrain.elastic.comm.transport import described
from elastrain.elastic.commit.decide import End, left
from elastrain.elastic.commit.step import Step
from elastrain.elastic.commit.updates import Updates
from elastrain.elastic.contract import Contract
from elastrain.elastic.group.ending import start_anew
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import Session
from elastrain.elastic.group.world import World
from elastrain.elastic.undo.leaves import Leaves

log = structlog.get_logger(__name__)


class Body(NamedTuple):
    """Which loop body runs, on this rank."""

    step: int
    """From 0."""
    execution: int
    """Of the step, counted over all executions that this process has begun: the micro-batches of one share it."""
    micro_batch: int
    """From 0."""
    warm_up: bool
    """The step is never committed."""
    samples: int = 0
    """That it computes, and that count."""


class Bodies:
    """The loop bodies of one rank's script. For the training thread."""

    def __init__(
        self,
        world: World,
        heartbeat: Heartbeat,
        batch: ScriptsBatch,
        audit: AuditLog | None,
        leaves: Leaves,
        *,
        rules: Contract,
        together: bool,
    ) -> None:
        """``leaves``: of the tracked objects. ``together``: a forward needs other ranks, and sees stand-ins for what a
        lost one would have given."""
        self.step: Step | None = None
        """The step that is being computed."""
        self.executions = 0
        """How many this process has begun."""
        self.running = False
        """Whether code of the script runs, from the beginning of a loop body to the end of its commit."""
        self.order: Order | None = None
        """Of the data of the loop."""
        self.updates = Updates()
        """Those that bodies have made."""
        self.callbacks: list[Callable[[], None]] = []
        """Those given to ``job.on_commit()``."""
        self.after_commit: Callable[[Step], None] = lambda _: None
        """Called with each step that was committed here, after the script's callbacks."""
        self._world, self._heartbeat, self._batch, self._audit = world, heartbeat, batch, audit
        self._leaves, self._rules, self._together = leaves, rules, together
        self._applied = False
        """Whether the last body was left by an exception after all of its update: the step counts if the script goes
        on."""
        self.lost = ""
        """Why the error by which the script has left a loop body is none of the script: a peer was lost while the body
        ran, and it has computed on stand-ins since; empty: it may be."""
        self._unfinished: Step | None = None
        """The last step, if it was discarded and its peers may have committed it."""
        world.state.on_adopt = self._adopt

    def in_body(self) -> Step | None:
        """The step whose loop body runs."""
        return self.step if self.running else None

    @property
    def present(self) -> Body | None:
        """The loop body that runs, or in whose commit the script runs."""
        if (step := self.in_body()) is None:
            return None
        number = max(step.begun - 1, 0)
        return Body(step.number, self.executions, number, step.warm_up, len(step.parts[number].indices))

    @contextmanager
    def body(self, step: Step) -> Iterator[None]:
        """Around code of the script that belongs to ``step``."""
        self.running, self._batch.span = True, step.span
        try:
            yield
        finally:
            self.running, self._batch.span = False, 1

    def commit(self, step: Step) -> None:
        """The step is over, with the script's callbacks: only then is the state that of a committed step.

        A rank whose update is void takes its peers' state in the next generation.
        """
        if void := self._world.wrapped.void:
            log.warning("the update of this rank is void; it takes its peers' state", step=step.number + 1, cause=void)
            step.leave()
            self._world.leave(void, void=bool(self._discard(step)))
            return
        if self._leaves.end():
            knows_bodies(self._world, self._leaves.tensors.changing)
        self._rules.check_applied(step.number)
        self._heartbeat.committed()
        self._log(step, "commit")
        self._world.commit(step)
        self._batch.commit(step)
        self._world.state.shares.commit(step.result.summed.of_shares, learning=step.result.learning)
        if not step.incomplete:
            try:
                self._call_back(step)
            except BaseException:
                self._world.leave("a function given to job.on_commit() has failed", void=True)
                raise
        self.after_commit(step)
        self.step = None
        self._world.committed(step.result.saves)

    def leave(self, step: Step, *, finished: bool) -> None:
        """The script has left the loop body: by ``break`` (``finished``), or by an exception that it may catch. Where a
        variable holds the iterator, it goes on, and so it is ``break`` if no exception is under way.

        The step counts only if its update was applied. Otherwise this rank is out of date, and its peers may have
        committed the step: it leaves the generation, and takes their state in the next one.
        """
        self.lost = self.void(step) if not finished else ""
        applied = self.updates.applied(finished=finished)
        end = left(step.outcome, applied, begun=step.done > 0, finished=finished)
        self._applied = end is End.WAITS
        if end is End.COMMITS:
            self.commit(step)
        elif end is End.LEAVES:
            step.leave()
            lost = self._discard(step)
            why = f"the loop body of step {step.number + 1} was left before its update was complete"
            self._world.leave(why, void=bool(lost))
        if finished:
            self._world.position.end_loop()
            self._world.complete()

    def void(self, step: Step) -> str:
        """Why the body of ``step`` sees other numbers than those of the step, and is discarded; empty: it does not.

        The body of a replicated model sees its peers' numbers behind its backward only.
        """
        communicator = self._world.communicator
        if communicator is None or communicator.broken is None or step.warm_up or step.counts:
            return ""
        if communicator.failure is not None or communicator.diverged is not None:
            return ""
        return communicator.broken if step.done or self._together else ""

    def fails(self, error: BaseException, session: Session) -> None:
        """The script ends by ``error``.

        It has not failed if the error has left a loop body that is discarded and has computed on stand-ins: then the
        ranks of this worker start anew, and an error of the script's own recurs. Raises as of
        :func:`start_anew`.
        """
        if self.running and self.step is not None:  # a variable of the script holds the iterator
            self.leave(self.step, finished=False)
        if isinstance(error, GroupLost):
            start_anew(session, str(error))
        if self.lost and isinstance(error, Exception):
            log.warning("an error has left a discarded loop body; this worker's ranks start anew", exc_info=error)
            start_anew(session, f"{described(error)} in a discarded loop body: {self.lost}")
        self._world.fails(error)

    def conclude(self) -> None:
        """A step boundary: what becomes of a step that is not committed."""
        if self.running and self.step is not None:  # a variable of the script holds the iterator that it has left
            self.leave(self.step, finished=sys.exception() is None)
            self.running = False
        self._unfinished, self.lost = None, ""
        if (step := self.step) is None:
            return
        if self._applied:
            self._applied = False
            self.commit(step)
        else:
            lost = self._discard(step)
            if lost and self._world.has_state:
                log.warning("a discarded loop body cannot be put back: this rank is out of date", entries=lost)
                why = (
                    f"no copy of {', '.join(lost[:3])}, which the discarded body of step {step.number + 1} has changed"
                )
                self._world.leave(why, void=True)
            self._unfinished = step
        self.step = None

    def _discard(self, step: Step) -> list[str]:
        """Put the state back to the one with which the step began, once. Returns as of :meth:`Leaves.restore`."""
        if step.discarded:
            return []
        step.discarded = self._world.state.replicas.suspect = True
        self.drop_gradients()
        return self._leaves.restore()

    def drop_gradients(self) -> None:
        """The gradients are those with which the step began; of the warm-up as of a discarded one."""
        kept = self._world.state.kept
        if kept.begun and self._world.model is not None:
            self._world.model.drop_gradients()
        kept.restore()

    def _adopt(self) -> None:
        """The state that is about to be loaded is that of the step which this rank has discarded, and peers committed.

        Callbacks run before it is loaded: it contains what they have done to tracked objects.
        """
        step = self._unfinished
        if step is not None and step.number < self._world.step:
            self._log(step, "adopted")
            step.adopt()
            self._call_back(step)

    def _call_back(self, step: Step) -> None:
        self.step = step
        try:
            with self.body(step):
                for callback in self.callbacks:
                    callback()
        finally:
            self.step = None

    def _log(self, step: Step, kind: str) -> None:
        if self._audit is not None and self.order is not None:
            indices = tuple(i for part in step.parts for i in part.indices)
            self._audit.write(
                kind, step.number, indices, self.order, place=step.place, share=step.share, span=step.span
            )
            self._world.state.reporter.audit_error = self._audit.error
