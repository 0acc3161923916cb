"""The generation that a rank trains in, and how it gets into the next one with its state.

Everything here happens at a step boundary, on the training thread. Positions are committed steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import structlog

from elastrain.api.job import CheckpointSpec
from elastrain.api.messages import Broken, Ready, Report
from elastrain.api.records import Generation, Rescale
from elastrain.data.order import Order
from elastrain.data.share import Place, Share
from elastrain.elastic.checkpoint import CheckpointVolume
from elastrain.elastic.checkpoint.saver import Saver
from elastrain.elastic.comm import backend
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.membership import tracing
from elastrain.elastic.membership.entry import Entry, Row
from elastrain.elastic.membership.report import Reporter, Switch, Times
from elastrain.elastic.membership.session import Session, close_in_background
from elastrain.elastic.state import capture
from elastrain.elastic.state.capture import Stateful
from elastrain.elastic.state.handover import Handover
from elastrain.elastic.strategies.replicated import ElasticModule

log = structlog.get_logger(__name__)


class World:
    """One rank's place among the others."""

    def __init__(
        self,
        session: Session,
        tracked: dict[str, Stateful],
        spec: CheckpointSpec | None,
        volume: CheckpointVolume | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``tracked`` is shared with the job, which adds to it; ``spec`` and ``volume`` are both there or both None."""
        self.model: ElasticModule | None = None
        self.step = 0
        self.ready = False
        self.communicator: Communicator | None = None
        self._session, self._tracked, self._clock = session, tracked, clock
        self._generation: Generation | None = None
        self._number = 0  # of the newest generation that was adopted, or given up
        self._agreed: int | None = None
        self._broken_at: float | None = None
        self._has_state = False
        self._lineage = ""
        self._volume = volume
        self._saver = Saver(volume, spec) if volume and spec else None
        self._traces = tracing.recorder(lambda: self._place.rank)
        self._reporter = Reporter(on_rescale=self._traces)
        self._place = Place(0, 0, 1)
        self._share = self._place.share
        self._handover = Handover(tracked, self._tree, self._load)
        self.gives_in_passing = False
        """Whether this rank's training goes on, if need be, while others get its state."""
        self._order: Order | None = None
        self._total: int | None = None
        self.stopped = False
        """Whether the last committed step is the last one, because a rank has asked for it."""

    # -- where this rank is ------------------------------------------------------------------------------------------
    @property
    def place(self) -> Place:
        """That in the last generation while in none; rank 0 of 1 before any."""
        return self._place

    @property
    def share(self) -> Share:
        """What this rank computes of the next global batch: its place's share, but for the steps in which joiners get
        their state and look on."""
        return self._share

    @property
    def loss(self) -> float | None:
        """Mean loss over the last committed global batch."""
        return self._reporter.loss

    # -- the loop's side ---------------------------------------------------------------------------------------------
    def say_ready(self) -> None:
        """From now on a generation may include this rank. Raises ``ValueError`` as of :meth:`ElasticModule.offer`."""
        assert self.model is not None
        self._session.use(self.model.offer(), self.model.device, self.model.largest_sum)
        if unused := backend.unused_accelerator(self.model.device.type):
            log.warning(unused)
        self._session.send(Ready(store_port=self._session.serve_store(), step=self.step))
        self.ready = True

    def commit(
        self, order: Order, total_steps: int | None, loss: float, agreed: int | None, *, looking: bool = False
    ) -> None:
        """The step's optimizer has been applied. ``agreed``: the generation that all ranks switch to now; ``looking``:
        in the next one, joiners look on as in this one."""
        self.step += 1
        if not looking:
            self._share = self._place.share
        self._agreed, self._order, self._total = agreed, order, total_steps
        now = self._clock()
        self._reporter.committed(now, loss)
        if self._place.rank != 0:
            return
        if self._saver is not None and self._has_state:
            self._saver.after_step(self.step, self._number, self._lineage, self._tree)
        if self._reporter.due(now) or self.step == total_steps or self.stopped:
            self._report()

    def settle(self) -> None:
        """Return in a healthy generation: at once in the steady state, after a switch that was agreed, or after a loss.

        Raises ``ExitRequested`` if this rank is to leave, ``AgentLost`` if it is an orphan.
        """
        while True:
            if self.communicator is not None and self.communicator.over is not None:
                self._give_up(self.communicator, self.communicator.over)
            if self.communicator is None:
                generation, communicator = self._session.wait_for_generation(self._number)
            elif self._agreed is not None:
                generation, communicator = self._session.take(self._agreed)
            else:
                self._session.discard_superseded()
                return
            self._agreed = None
            if communicator is None:
                self._stop_for(generation)
            else:
                self._enter(generation, communicator)

    def finish(self) -> None:
        """Return when every rank of the generation has committed its last step: until then their state may be needed.

        A rank that never trained returns at once. Raises ``ExitRequested`` if the others have ended already.
        """
        while self._number:
            self.settle()
            assert self.communicator is not None
            try:
                self.communicator.barrier()
            except GenerationBroken:
                continue  # settle() forms the next one
            break
        if self._place.rank == 0:
            self._save_now()

    def begin_step(self) -> None:
        """In a healthy generation, before the step's first loop body: what goes on beside it begins."""
        assert self.communicator is not None and self.model is not None
        self._handover.resume(self._reporter.step_seconds)
        if self._share.looks_on and not self.model.looks_on:
            self._look_on(self.communicator, getting=self._handover.takes)

    def before_update(self) -> bool:
        """The gradients are there: return when the optimizers may change this rank's state, that is when nobody reads
        it, and those who are getting theirs have what comes in this step.

        Returns whether this rank's state is fit for it. One that could not give its own to others has lost nothing, and
        they may have committed the step.
        """
        communicator, takes = self.communicator, self._handover.takes
        assert communicator is not None
        sent_at = self._handover.before_update(communicator)
        self._has_state = not self._handover.takes
        if sent_at is not None:
            self._reporter.transferred(sent_at)
        return not takes or communicator.broken is None

    def complete(self) -> None:
        """There is no further step: return when everybody has the whole state."""
        if self.communicator is not None:
            self._handover.finish(self.communicator)
            self._has_state = not self._handover.takes

    def close(self) -> None:
        """Send what is still to be told of the last rescale; bounded."""
        if self._traces is not None:
            self._traces.close()

    def _look_on(self, communicator: Communicator, *, getting: bool) -> None:
        assert self.model is not None
        connected = frozenset[int]() if getting else self._session.connected()  # no switch before it has everything
        self.model.look_on(communicator, connected, getting=getting)

    # -- changes of generation ---------------------------------------------------------------------------------------
    def _give_up(self, communicator: Communicator, cause: str) -> None:
        log.warning("generation is broken", generation=communicator.generation, step=self.step, cause=cause)
        communicator.abort(cause)
        self._handover.end()
        if self.model is not None:
            self.model.look_away()
        self._broken_at = communicator.broken_at
        self._session.send(Broken(generation=communicator.generation, step=self.step, error=cause))
        self._number = max(self._number, communicator.generation)
        self._leave()

    def _leave(self) -> None:
        old, self.communicator = self.communicator, None
        if self.model is not None:
            self.model.detach()
        if old is not None:
            close_in_background(old)

    def _stop_for(self, generation: Generation) -> None:
        """Adopt a generation that has no place for this rank: keep the state and wait, or be told to exit."""
        # Where everybody stops, the state in memory is all there is. In a healthy generation rank 0 speaks for all;
        # ranks that were stranded by a loss cannot tell who is first, and writing the same step twice is harmless.
        speaks = self.communicator is None or self._place.rank == 0
        if not generation.size and speaks:
            self._save_now()
        self._number = generation.number
        self._leave()
        self._session.adopt(generation.number, self.step)

    def _enter(self, generation: Generation, communicator: Communicator) -> None:
        entered = self._clock()
        try:
            entry = self._synchronise(communicator)
        except GenerationBroken as e:
            self._give_up(communicator, e.cause)  # leaves the previous one, too: its other ranks may be gone from it
            close_in_background(communicator)
            return
        synchronised = self._clock()
        self._leave()  # only now: after the exchange above no peer is still receiving the old generation's last step
        assert self.model is not None
        self.model.attach(communicator, keep=entry.same_layout)
        self.communicator, self._generation = communicator, generation
        self._number = generation.number
        self._place = Place(generation.number, communicator.rank, communicator.world_size)
        self._share = entry.shares.get(communicator.rank, self._place.share)
        if self._saver is not None and self._place.rank != 0:
            self._saver.forget()
        self._session.adopt(generation.number, self.step)
        times = Times(
            last_commit=self._reporter.last_commit,
            broken=self._broken_at,
            heard=self._session.heard_at(generation.number),
            connected=communicator.connected_at,
            entered=entered,
            synchronised=synchronised,
        )
        self._broken_at = None
        lost_steps = max(0, entry.reached - self.step)
        self._reporter.entered(Switch(generation, entry.from_size, self.step, lost_steps, times))
        log.info(
            "generation entered", generation=generation.number, reason=generation.reason, rank=communicator.rank,
            world_size=communicator.world_size, step=self.step, sync_seconds=round(synchronised - entered, 3),
            sums_by=communicator.sums_by, because=communicator.choice.why,
        )  # fmt: skip

    # -- what others see ---------------------------------------------------------------------------------------------
    def _save_now(self) -> None:
        """A durable checkpoint before this rank may end; how it went is reported."""
        if self._saver is not None and self._has_state:
            self._saver.save_now(self.step, self._number, self._lineage, self._tree())
            self._report()

    def _report(self) -> None:
        if self._generation is None or self._order is None:
            return  # nothing was committed by this process
        progress = self._reporter.progress(
            self._generation,
            step=self.step,
            total_steps=self._total,
            epoch=self.step // self._order.steps_per_epoch,
            samples=self._order.samples_before(self.step),
            checkpoint=self._saver.result if self._saver else None,
        )
        self._session.send(Report(progress=progress))

    # -- state -------------------------------------------------------------------------------------------------------
    def _synchronise(self, communicator: Communicator) -> Entry:
        """Make all ranks equal to the furthest one; nothing moves where they are. Raises ``GenerationBroken``."""
        assert self.model is not None
        brings_in = self._brings_in(communicator.of)
        mine = Row(
            step=self.step if self._has_state else -1,
            size=self._place.world_size,
            reached=max(self.step, self._session.welcome.step),
            layout=self.model.layout,
            structure=capture.structure(self._tree()) if self._has_state and brings_in else 0,
            in_passing=int(self.gives_in_passing and not self._is_at_its_end()),
            in_portions=int(brings_in and self._exchanges_in_portions()),
        )
        entry = Entry.of([Row(*row) for row in communicator.all_gather_ints(list(astuple(mine)))])
        if entry.cold and communicator.rank == 0:
            self._cold_start(communicator.generation)
        if communicator.rank in entry.sources and entry.behind:
            self._handover.give(communicator, entry.sources, entry.behind, in_portions=entry.in_portions)
            if not entry.shares:
                self._handover.before_update(communicator)
        elif communicator.rank in entry.behind:
            if entry.shares:
                self._look_on(communicator, getting=entry.in_portions)
            self._handover.take(
                communicator, entry.sources, entry.behind, in_portions=entry.in_portions, keep=self._has_state
            )
        if communicator.broken is not None:
            raise GenerationBroken(communicator.generation, communicator.broken)
        self._has_state = not self._handover.takes
        return entry

    def _is_at_its_end(self) -> bool:
        return self.stopped or (self._total is not None and self.step >= self._total)

    def _exchanges_in_portions(self) -> bool:
        if not self.gives_in_passing:
            return False
        return self._handover.would_give_in_portions() if self._has_state else self._handover.would_take_in_portions()

    def _brings_in(self, generation: Generation) -> bool:
        """Whether it has members that were not in the generation before, as far as this rank knows."""
        if generation.roster is not None:
            return True  # of a large one a rank knows only its own place
        before = {m.id for m in self._generation.members} if self._generation else set()
        return any(m.id not in before for m in generation.members)

    def _cold_start(self, generation: int) -> None:
        """No rank holds state: continue from the newest checkpoint that can be read, or begin with this rank's own.

        Raises ``RuntimeError`` if there is neither.
        """
        volume = self._volume
        for checkpoint in volume.complete() if volume is not None else ():
            assert volume is not None
            try:
                tree = volume.load(checkpoint)
            except Exception as e:  # torch raises many kinds for damaged files
                log.error(
                    "checkpoint cannot be read, trying an older one", path=str(checkpoint.path), error=str(e)[:300]
                )
                continue
            self._load(tree)
            log.info("resumed from checkpoint", path=str(checkpoint.path), step=self.step)
            break
        else:
            if self._handover.torn:
                raise RuntimeError(
                    "the last workers that held the training state were lost while this one was getting it, and there "
                    "is no checkpoint to go on from: set spec.checkpoint"
                )
        if volume is not None:
            self._lineage = volume.begin_lineage(generation)

    def _tree(self) -> dict[str, Any]:
        rescales = [r.model_dump() for r in self._reporter.rescales]
        position = {"step": self.step, "loss": self.loss, "lineage": self._lineage, "rescales": rescales}
        position["stopped"] = self.stopped
        return {"tracked": capture.capture(self._tracked), "position": position}

    def _load(self, tree: dict[str, Any]) -> None:
        capture.restore(self._tracked, tree["tracked"])
        position = tree["position"]
        self.step, self._lineage = position["step"], position["lineage"]
        self._reporter.loss = position.get("loss")  # absent in older checkpoints
        self.stopped = position.get("stopped", False)
        self._reporter.rescales = [Rescale.model_validate(r) for r in position["rescales"]]
