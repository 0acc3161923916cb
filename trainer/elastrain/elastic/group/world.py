"""The generation that a rank trains in, and the way into the next one with its state.

Everything here happens at a step boundary, on the training thread. Positions are committed steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import structlog

from elastrain.api.loops import LoopId
from elastrain.api.messages import Report
from elastrain.api.records import Generation
from elastrain.data.order import Order
from elastrain.data.share import Place
from elastrain.elastic.boundary import Act, Boundary
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm.communicator import Communicator, GenerationBroken
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit.step import Step
from elastrain.elastic.group.copies import WholeCopies
from elastrain.elastic.group.ending import Once, ends_this_rank
from elastrain.elastic.group.entry import Entry, EntryRow, Script, has_joiners, smaller
from elastrain.elastic.group.machine import events as e
from elastrain.elastic.group.position import Position
from elastrain.elastic.group.rank_state import RankState
from elastrain.elastic.group.report import Switch
from elastrain.elastic.group.saving import Saving
from elastrain.elastic.group.shell import LoopOver, Session, Withdrawn
from elastrain.elastic.reshard.restore import FRESH, ShardRef
from elastrain.elastic.state import capture
from elastrain.elastic.state.handover import Handover
from elastrain.elastic.strategies.strategy import ElasticModule, Strategy

log = structlog.get_logger(__name__)

Enter = Callable[[Generation, Communicator], None]
"""Meets the ranks of a generation. Raises ``GenerationBroken``."""


class World:
    """One rank's place among the others."""

    def __init__(
        self,
        session: Session,
        strategy: Strategy,
        keeper: CheckpointKeeper,
        *,
        state: RankState,
        position: Position,
        copies: WholeCopies,
    ) -> None:
        """``copies``: how the ranks hold the model."""
        self.model: ElasticModule | None = None
        self.state, self.position = state, position
        """Of this rank's script among its loops."""
        self.place = Place(0, 0, 1)
        """In the generation in force, or in the last one; rank 0 of 1 before any."""
        self.share = self.place.share
        """This rank's share of the next global batch: its place's share, except in steps with learners."""
        self.overlaps_transfer = False
        """Whether this rank can train while others receive its state."""
        self.once = Once()
        self._session, self.strategy, self._keeper, self._copies = session, strategy, keeper, copies
        self._held = False  # the state, except for shards
        self._reporter = state.reporter
        self._tree = partial(state.tree, emptied=copies.apart)
        self._handover = Handover(state.tracked, self._tree, state.load)
        self.saving = Saving(keeper, state.tracked, state.tree, together=strategy.votes, shape=strategy.shape)

    @property
    def communicator(self) -> Communicator | None:
        """Of the generation in force; None while this rank is in none."""
        return self._session.communicator

    @property
    def generation(self) -> Generation | None:
        """The generation in force, or the last one."""
        return self._session.core.last

    @property
    def wrapped(self) -> ElasticModule:
        """The model, once there is one."""
        assert self.model is not None
        return self.model

    @property
    def step(self) -> int:
        """Committed steps."""
        return self.state.step

    @property
    def boundary(self) -> Boundary:
        """The step boundary at which this rank is."""
        return self.state.boundary(self.position.loop.end)

    @property
    def receiving(self) -> bool:
        """Whether a part of this rank's state has not arrived yet."""
        return self._handover.receiving

    @property
    def partial_state(self) -> str:
        """As of :attr:`Handover.partial_state`."""
        return self._handover.partial_state

    @property
    def has_state(self) -> bool:
        """Whether this rank holds the state."""
        return self._held and self._copies.holds

    @property
    def joins(self) -> bool:
        """Whether this rank holds no state and is in no generation."""
        return self.communicator is None and not self.has_state

    # -- called by the loop, in this order -----------------------------------------------------------------------------
    def begin_loop(self, order: Order, loop: LoopId) -> bool:
        """``loop`` of the script begins. Returns False if the job has left it already.

        The code after such a loop mostly runs before this rank is ready, so that no other rank waits for it.
        """
        if not self.position.begin_loop(loop, joins=self.joins):
            self.place = Place(0, -1, 1)
            return False
        self.state.data.begin_loop(order, loop.end)
        if self.communicator is not None:
            if self.place.rank == 0:
                self._report()  # joiners wait in this loop from now on
            self._copies.begin_loop()
        return True

    def say_ready(self) -> None:
        """From now on a generation may include this rank. Raises ``ValueError`` as of :meth:`ElasticModule.offer`."""
        self.position.say_ready(self.model, self.step)

    def settle(self, *, between: bool = False) -> None:
        """Return in a healthy generation: at once in the steady state, after an agreed switch, or after a loss.

        ``between``: the script is in a call between two steps. Raises :class:`LoopOver` if it has to go on to the step
        that the others are in, ``ExitRequested`` if it has to leave, ``AgentLost`` or ``MessageFailed`` if its agent
        sends no more messages that it can read.
        """
        self.position.between = between
        try:
            while not self.follow(self._enter, loop=self.position.loop):
                pass
        except LoopOver:
            self.place, self._held = Place(0, -1, 1), False  # a state of that loop is of no use any more
            raise

    def follow(self, enter: Enter, *, loop: LoopId | None = None) -> bool:
        """Execute the machine's next instruction. Returns whether it is to train.

        ``enter(generation, communicator)``: meets the ranks of a generation. ``loop``: of the script, if the
        script can go on to a later one. Raises as of :meth:`settle`.
        """
        try:
            match self._session.boundary(holds=self.has_state, loop=loop):
                case e.Train():
                    return True
                case e.GiveUp(number=number, why=why):
                    self._give_up(self._session.communicator_of(number), why)
                case e.StopFor(generation=g, agreed=agreed):
                    if not agreed or self._hand_over(None):
                        self._stop_for(g)
                case e.Enter(generation=g, agreed=agreed):
                    self._meet(g, enter, agreed=agreed)
                case e.StandBack():
                    raise Withdrawn
                case e.GoOn(loop=later):
                    self.position.catch_up(later)
        except Withdrawn:
            self.position.stand_back()
            self.say_ready()
        return False

    def begin_step(self) -> None:
        """The step's first loop body follows, in a healthy generation: begin the transfers that run beside it."""
        assert self.communicator is not None
        self.communicator.step = self.step
        self._handover.resume(self._reporter.step_seconds)
        if self.share.learner and (learner := self.wrapped.learner) is not None and not learner.active:
            learner.begin(self.communicator, receiving=self._handover.receiving)
        self._handover.before_body(self.communicator)
        self._note_state()

    def before_update(self) -> bool:
        """The gradients are there: return when the optimizers may change this rank's state.

        Then no thread reads the state, and a learner has received the portions of this step. Returns whether this
        rank's state can be updated. A rank that could not send its state has lost nothing, and its peers may have
        committed the step.
        """
        communicator, receiving = self.communicator, self._handover.receiving
        assert communicator is not None
        sent_at = self._handover.before_update(communicator)
        self._note_state()
        if sent_at is not None:
            self._reporter.transferred(sent_at)
        return not receiving or communicator.broken is None

    def commit(self, step: Step) -> None:
        """The optimizer of ``step`` has been applied. :meth:`committed` follows."""
        result = step.result
        self.state.commit(self.step + step.span, result.by, stops=result.stops)
        if not result.learning:
            self.share = self.place.share
        self._session.feed(e.Agreed(result.agreed))
        self._reporter.committed(time.monotonic(), step.loss, step.span)

    def committed(self, saves: int = 0) -> None:
        """The state is that of the committed step: save and report it if it is time. ``saves``: the ranks' votes."""
        self.saving.after_step(saves, self.step, holds=self.has_state)
        if self.place.rank == 0:
            ends = self.state.stopped or self.step == self.position.loop.end
            if self._reporter.due(time.monotonic()) or ends:
                self._report()
        self._copies.committed(self.wrapped.copying, switches=self._session.core.agreed is not None)

    def leave(self, why: str, *, void: bool) -> None:
        """Leave the generation: peers may be a step ahead. ``void``: this rank's state is that of no step."""
        if self.communicator is not None:
            self.communicator.abort(why)
        if void:
            self._held, self._handover.partial_state = False, why

    def complete(self) -> None:
        """There is no further step: return when every rank has the whole state."""
        if self.communicator is not None and self.communicator.broken is None:
            self._handover.finish(self.communicator)
            self._note_state()
        self._copies.complete()

    def leave_loop(self) -> bool:
        """Wait until all ranks have committed the last step of the loop; returns whether the generation has held.

        A rank that left the loop earlier could run the code after it, and then give a peer, which is a step behind, a
        state in which that code has run already.
        """
        self.complete()
        if self.exchange(Kind.BARRIER) is None:
            return False
        ends = self.boundary.act is Act.END and self.place.rank > 0
        self.once.begins(self.generation, self.state.digest(anew=True) if ends else 0)
        self._reporter.left_loop()
        return True

    def exchange(self, kind: Kind, mine: bytes = b"") -> list[bytes] | None:
        """As of :meth:`Calls.attempt`. None: the generation broke; settle, and call it again."""
        assert self.communicator is not None
        self.communicator.step = self.step
        possible = smaller(self.generation, map(self._session.proposal, self._session.connected()))
        result, agreed = self.state.calls.attempt(self.communicator, kind, mine, possible)
        self._session.feed(e.Agreed(agreed))
        return result

    def fails(self, error: BaseException) -> None:
        """The script ends by ``error``: peers and agent need not wait for the end of its process."""
        if self._session.fails(error) and self.communicator is not None:
            self.communicator.fail_here(error)

    def close(self) -> None:
        """Finish a running save, and send the outstanding traces of the last rescale; both bounded."""
        self._keeper.finish()
        self.state.known.close()
        if self._reporter.tracer is not None:
            self._reporter.tracer.close()

    # -- changes of generation ---------------------------------------------------------------------------------------
    def _give_up(self, communicator: Communicator, cause: str) -> None:
        """Leave a broken generation. Raises :class:`RanksDiverged` if the next one would break in the same way, and
        the error by which this rank itself has failed, if any."""
        if communicator.diverged is not None:
            raise self._session.diverged(communicator.diverged)
        if communicator.failure is not None:
            raise communicator.failure
        log.warning("generation is broken", generation=communicator.generation, step=self.step, cause=cause)
        communicator.abort(cause)
        self._handover.end()
        if self.model is not None and self.model.learner is not None:
            self.model.learner.cancel()
        self._reporter.broken_at = communicator.broken_at
        if self.model is not None:
            self.model.detach()
        self._session.gave_up(communicator, self.step, cause)

    def _stop_for(self, generation: Generation) -> None:
        """Adopt a generation without a place for this rank: keep the state, save it if all stop, and wait."""
        lost = self.communicator is None and generation.size > 0
        if lost and self._copies.may_be_needed(generation, complete=self.has_state):
            return
        if not generation.size and not self.state.calls.count:  # outside of a loop code may have changed the state
            self.save_now(healthy=self.communicator is not None)
        if self.model is not None:
            self.model.detach()
        self._session.feed(e.Stopped(generation.number, self.step))

    def _hand_over(self, communicator: Communicator | None) -> bool:
        """All ranks leave the generation in force; None: this one enters no other. False: it broke meanwhile."""
        try:
            self._copies.hand_over(self.communicator, stays=communicator is not None)
        except GenerationBroken as broken:
            for left in filter(None, (self.communicator, communicator)):
                self._give_up(left, broken.cause)
            return False
        return True

    def _meet(self, generation: Generation, enter: Enter, *, agreed: bool) -> None:
        communicator = self._session.communicator_of(generation.number)
        if agreed and not self._hand_over(communicator):
            return
        if not agreed:
            self.once.check(generation)
        try:
            with ends_this_rank(communicator):
                enter(generation, communicator)
        except GenerationBroken as broken:
            self._give_up(communicator, broken.cause)  # leaves the previous one too: its other ranks may have left it

    def _enter(self, generation: Generation, communicator: Communicator) -> None:
        entered, agreed = time.monotonic(), self.communicator is not None
        entry = self._synchronise(communicator)
        synchronised = time.monotonic()
        self.wrapped.detach()
        self.wrapped.attach(communicator, keep=entry.same_layout)
        self.once.enters(generation, agreed=agreed, calls=self.state.calls.count)
        self.place = Place(generation.number, communicator.rank, communicator.world_size, self.strategy.shape)
        self.share = entry.shares.get(communicator.rank, self.place.share)
        self.state.trained.enter(agreed=bool(entry.shares))  # without learners, the first step compares the sets
        self.saving.enter(entry.shards, self.place)
        # Closes the old connections, only now: after _synchronise() no peer still receives its last step over them.
        self._session.entered(communicator, self.step, complete=self.has_state)
        proposed_at, between = self._session.proposed_at(generation.number), self.state.calls.count > 0
        times = self._reporter.times(proposed_at, communicator.connected_at, entered, synchronised, between=between)
        lost, rank = max(0, entry.reached - self.step), self.place.rank
        self._reporter.entered(Switch(generation, rank, entry.from_size, self.step, lost, times))
        if between:
            self._reporter.resumed(time.monotonic())

    def _synchronise(self, communicator: Communicator) -> Entry:
        """Bring all ranks to the newest state; equal ones send nothing. Raises as of :meth:`Position.meet`."""
        kept = self.joins and self.saving.take_kept(*self._copies.placement, self.state.load)
        self._held |= kept
        entry = self.position.meet(communicator, lambda: self.entry_row(communicator.of), self.state.data)
        resume = partial(self.saving.resume, load=self.state.load, partial_state=self._handover.partial_state)
        entry = self._copies.begin(entry, communicator, resume)
        if entry.cold:
            self.strategy.whole().agree(communicator)
        if (entry.cold or kept) and communicator.rank in entry.sources:
            self.position.check(communicator, self.step)
        transfer = entry.transfer(communicator.rank)
        if communicator.rank in entry.sources and transfer.receivers:
            self._handover.send(communicator, transfer, in_rounds=entry.in_rounds)
            if not entry.shares:
                self._handover.before_update(communicator)
        elif communicator.rank in entry.receivers:
            self.state.changes.before_receive(entry.changes, keep=self.has_state)
            if entry.shares:
                assert self.wrapped.learner is not None
                self.wrapped.learner.begin(communicator, receiving=entry.in_rounds)
            self._handover.receive(communicator, transfer, in_rounds=entry.in_rounds, keep=self.has_state)
        if communicator.broken is not None:
            raise GenerationBroken(communicator.generation, communicator.broken)
        self._held = not self._handover.receiving
        self.state.enter(communicator, entry)
        return self._copies.enter(entry, communicator)

    def entry_row(self, generation: Generation) -> EntryRow:
        """This rank's contribution to the entry of ``generation``."""
        state, position, joined = self.state, self.position, has_joiners(self.generation, generation)
        overlaps, permits = self.overlaps_transfer, self._handover.permits_rounds
        row = EntryRow(
            live=ShardRef(state.step if self.has_state else FRESH, *self._copies.placement, state.by),
            size=self.place.world_size,
            reached=state.step,
            told=self._session.welcome.step,
            saved_step=self._session.welcome.saved_step,
            structure=capture.structure(self._tree()) if self.has_state and joined else 0,
            layout=self.wrapped.layout,
            trained=state.trained.digest,
            overlaps=overlaps,
            in_rounds=joined and overlaps and permits(holds=self.has_state) and not state.kept.present,
            script=Script(position.loop, state.calls.count, position.between, self.boundary.act is Act.STEP),
            order=state.data.digest,
            changes=state.changes.seen,
            voted=position.ledger.voted,
            counted=position.ledger.counted(state.step),
            back=state.replicas.back,
            pace=state.shares.pace,
            ceiling=state.shares.ceiling(lost=self.communicator is None),
        )
        return self._copies.contribution(row, generation)

    # -- state and reports -------------------------------------------------------------------------------------------
    def _note_state(self) -> None:
        if not self.has_state and not self._handover.receiving:
            self._held = True
            assert self.communicator is not None
            self._session.entered(self.communicator, self.step, complete=True)

    def save_now(self, *, healthy: bool) -> None:
        """Save before this rank may end, and report the result. As of :meth:`Saving.save_now`."""
        healthy_one = self.communicator if healthy else None
        if self.has_state and self.saving.save_now(self.step, healthy_one) and not (healthy and self.place.rank):
            self._report()

    def _report(self) -> None:
        if self.generation is None or (order := self.position.order) is None:
            return  # this process has committed nothing
        progress = self._reporter.progress(
            self.generation, step=self.step, order=order, loop=self.position.loop, goal=self.position.goal,
            checkpoint=self._keeper.result, shares=self.state.shares.reported,
        )  # fmt: skip
        self._session.send(Report(progress=progress))
