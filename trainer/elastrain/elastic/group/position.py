"""Where the script of a rank is among its loops, and how a rank without state gets to where the job is.

A script may have several loops, one for each epoch, say. A rank enters a generation in the loop that the others are in.
The job may leave the loop in which a joiner waits; the joiner's script then goes on, in the same process, through the
code after it to the loop of the job. A script cannot go back: one that has left the job's loop starts anew.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import structlog

from elastrain.api.loops import NO_LOOP, LoopId
from elastrain.data.order import Order
from elastrain.elastic.checkpoint import CheckpointKeeper
from elastrain.elastic.comm import backend
from elastrain.elastic.comm.communicator import Communicator
from elastrain.elastic.comm.header import Kind
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.commit.ledger import Ledger
from elastrain.elastic.encoding.integers import from_integers, to_integers
from elastrain.elastic.group.ending import start_anew
from elastrain.elastic.group.entry import Entry, EntryRow, Outcome
from elastrain.elastic.group.machine.events import CatchesUp, Withdraws
from elastrain.elastic.group.machine.states import State
from elastrain.elastic.group.shell import LoopOver, Session, Withdrawn
from elastrain.elastic.state.data_order import DataOrder
from elastrain.elastic.strategies.strategy import ElasticModule

log = structlog.get_logger(__name__)

STAND_BACK_SECONDS = 30.0
"""Most seconds for which a rank waits for the others to begin a loop, before it tries again to enter a generation."""
_LOOK_SECONDS = 0.2
"""Interval at which it looks."""


class Position:
    """One rank's script among its loops, and its way into the job while it holds no state. For the training thread."""

    def __init__(self, session: Session, keeper: CheckpointKeeper) -> None:
        self.loop = NO_LOOP
        """That the script is in, or was in last."""
        self.order: Order | None = None
        """Of the data of the loop that the script has begun last."""
        self._counted: tuple[Order, int] | None = None
        """The epochs that the script counts by ``job.epochs()``."""
        self.between = False
        """Whether the script is in a call between two steps."""
        self.ledger = Ledger()
        """This rank's votes for steps."""
        self._session, self._keeper = session, keeper
        self._looks = True
        """Whether the next loop begins with a question to the agent. Not each: a script whose code between the loops is
        slow would run behind the job without end; it enters late instead, and the others wait for it once."""
        self._begun = NO_LOOP
        """That the script has begun last."""
        self._ended = Counter[int]()
        """How many of its loops are over on all ranks, by their ends. One that is left by an exception is not: the
        others go on in it, and the script may come back."""
        self._job = NO_LOOP
        """The job is there or later: loops before are over."""
        self._passed = LoopId(-1)
        """The last loop that the script has left without the job."""
        self._start: int | None = None
        self.awaited = False
        """Whether other ranks train, as far as this one knows."""
        self._others = 0
        """Committed steps of the other ranks when this one could not enter their generation."""

    # -- the loops of the script ---------------------------------------------------------------------------------------
    def start(self) -> int:
        """Committed steps of the state with which this process will begin, as far as was known at the first call."""
        if self._start is None:
            self._start = self._locate().end
        return self._start

    @property
    def goal(self) -> int | None:
        """Committed steps at the end of the script's epochs; None: it has not named them."""
        return None if self._counted is None else self._counted[0].steps_per_epoch * self._counted[1]

    def epochs(self, order: Order, epochs: int) -> range:
        """The epochs of a script, without those before the one in which this process joins.

        A state of the end of an epoch belongs into that epoch: the code after it has not run. Raises ``ValueError`` as
        :meth:`behind`.
        """
        self._counted = order, epochs
        self.behind(order, step=None, epochs=epochs)
        first = max(self.start() - 1, 0) // order.steps_per_epoch
        if first:
            self._passed = max(self._passed, LoopId(first * order.steps_per_epoch))
        return range(first, epochs)

    def behind(self, order: Order, *, step: int | None, epochs: int | None) -> Order:
        """``order`` for a loop behind the script's loops before, up to so many ``epochs``, if these are its bound.

        ``step``: committed steps of this rank's state; None: it holds none. Raises ``ValueError`` for epochs that a
        rank could not count which has not run those loops.
        """
        of_epochs, end = self._counted and self._counted[0], self._begun.end
        other = next((o for o in (of_epochs, self.order) if o and o.steps_per_epoch != order.steps_per_epoch), None)
        if other is None or epochs is None:
            return order if other else order.behind(self.order, end)
        if of_epochs or step not in (None, end):
            raise ValueError(
                f"job.steps(epochs={epochs}): this loader has {order.steps_per_epoch} steps an epoch, and others of "
                f"the script {other.steps_per_epoch}: a worker that joins could not count these epochs, since "
                + ("job.epochs() leaves some out" if of_epochs else f"a loop was left at step {step} of {end}")
                + ". Give each loop steps=…"
            )
        return order.behind(self.order, end)

    def next_loop(self, order: Order, end: int) -> LoopId:
        """The loop that the script is about to begin, over data in this order, up to ``end`` committed steps.

        Raises ``ValueError`` if an earlier loop ends later: a joiner waits in that one, and cannot go back.
        """
        if end < (latest := max(self._ended, default=0)):
            raise ValueError(
                f"job.steps(): this loop ends at step {end}, and an earlier loop of the script at step {latest}: a "
                f"worker that joins could not find the job's loop. Give it an end of {latest} steps or more, or put "
                "its steps into the earlier loop"
            )
        self._begun, self.order = LoopId(end, self._ended[end]), order
        return self._begun

    def end_loop(self) -> None:
        """The script has left its loop as all ranks do: at its end, by ``break``, or behind the job."""
        self._ended[self._begun.end] += 1

    def begin_loop(self, loop: LoopId, *, joins: bool) -> bool:
        """The script begins ``loop``. Returns False if the job has left it already.

        ``joins``: this rank holds no state and is in no generation. Raises as of :meth:`Session.rejoin`.
        """
        if joins:
            if self._session.withdrawn:
                self.renew()
            if self._looks:
                self._job, self._looks = max(self._job, self._locate()), False
            if loop < self._job:
                self._passed = max(self._passed, loop)
                return False
        self.loop = loop
        return True

    def look_again(self) -> None:
        """Time has passed since the script began its loop."""
        self._looks = True

    def say_ready(self, model: ElasticModule | None, step: int) -> None:
        """The script waits in its loop: a generation may include this rank. As of :meth:`ElasticModule.offer`."""
        assert model is not None
        self._session.use(model.offer(self._session.welcome.settings.backend), model.device)
        first = self._session.core.state is State.APART
        if first and (unused := backend.unused_accelerator(model.device.type)):
            log.warning(unused)
        self._session.ready(step, self.loop)

    def check(self, communicator: Communicator, step: int) -> None:
        """This rank has loaded a state of ``step`` committed steps. Its process starts anew if its script cannot
        continue from there: it is in a later loop, or in one that was over. What a process that starts is told of the
        job may be a second old, and a checkpoint newer."""
        if self.has_left(step) or step > self.loop.end:
            self.start_anew(communicator, f"the script is in another loop than the state of step {step}")

    def has_left(self, step: int) -> bool:
        """Whether the script cannot continue from a state of ``step`` committed steps: it is in a later loop."""
        return step <= self._passed.end

    def check_end(self, partial_state: str) -> None:
        """The script of a rank without state has ended. Raises ``RuntimeError`` if the others train in a later loop, or
        if its state is ``partial_state``, as of :attr:`Handover.partial_state`."""
        if partial_state:
            raise RuntimeError(f"the script has ended with the state of no step: {partial_state}")
        if self.awaited and self._passed < self._job:
            raise RuntimeError(
                f"the script has ended, and the job is in a loop up to step {self._job.end}: all workers must run the "
                f"same script; its last job.steps() ended at step {self._passed.end}"
            )

    # -- into a generation ---------------------------------------------------------------------------------------------
    def catch_up(self, loop: LoopId) -> NoReturn:
        """The script goes on to ``loop``, which the job is in. Raises :class:`LoopOver`.

        The ranks of the generation that this rank enters, if any, wait for it. If it takes too long, it withdraws.
        """
        self._job, self.awaited = max(self._job, loop), True
        if self.loop < loop:  # else it is between two steps of that loop
            self._passed = max(self._passed, self.loop)
        self._session.feed(CatchesUp())
        log.info("the script goes on to the loop that the job is in", ended=self.loop, until=loop)
        raise LoopOver

    def meet(self, communicator: Communicator, row: Callable[[], EntryRow], data: DataOrder) -> Entry:
        """The entry of a generation whose ranks are all in the same loop. ``row()``: of this rank, at present.

        Raises ``GenerationBroken``; as of :meth:`DataOrder.refuse`; and :class:`LoopOver` or :class:`Withdrawn` if this
        rank's script is elsewhere.
        """
        while True:
            mine = row()
            table = _table(communicator, mine)
            if (verdict := self.ledger.hear(communicator, table)[0]).open:
                log.info(
                    "scripts of ranks end a step whose sum they have missed", ranks=verdict.open, late=verdict.late
                )
                continue
            shards = self._session.welcome.settings.shards
            entry, communicator.step = Entry.of(table, shards), max(row.step for row in table)
            match entry.outcome(communicator.rank, mine.script.loop):
                case Outcome.ENTER:
                    return entry
                case Outcome.AWAIT:
                    log.info("scripts go on to the loop of the others", ranks=entry.late, loop=entry.loop)
                case Outcome.CATCH_UP:
                    self.catch_up(entry.loop)
                case Outcome.REFUSE:
                    data.refuse(communicator, entry.other_data, Kind.ENTRY)
                case Outcome.WITHDRAW:
                    self._others = communicator.step
                    self._session.feed(Withdraws(entry.why_not))
                    raise Withdrawn
                case Outcome.START_ANEW:
                    if entry.partial:
                        self._keeper.kept.drop()
                    self.start_anew(communicator, entry.why_not)
                case Outcome.GIVE_UP:
                    communicator.fail(entry.why_not)

    def hear(self, communicator: Communicator, row: EntryRow) -> Summed | None:
        """The result of this rank's vote, if a rank of this generation has committed its step; else None.

        The others wait for this rank, which enters the generation after its loop body. Raises ``GenerationBroken``.
        """
        return self.ledger.hear(communicator, _table(communicator, row))[1]

    def start_anew(self, communicator: Communicator, why: str) -> NoReturn:
        """Leave a generation, and wait for the end: the agent starts this worker's ranks anew."""
        communicator.abort(why)
        start_anew(self._session, why)

    def stand_back(self) -> None:
        """Return when this rank can try again to enter a generation, after :class:`Withdrawn`: the others have gone on
        from between two loops, where they give no state.

        Raises :class:`LoopOver`, and as of :meth:`Session.rejoin`.
        """
        if not self.renew():
            return
        end = time.monotonic() + STAND_BACK_SECONDS
        while (located := self._session.locate()).training and time.monotonic() < end:
            if located.loop > self.loop:
                self.catch_up(located.loop)
            if located.step > self._others:
                break
            self._session.pause(_LOOK_SECONDS)

    def renew(self) -> bool:
        """This rank is of a new member, which no generation includes. Returns whether it has asked for that."""
        self._looks = True
        return self._session.rejoin()

    def _locate(self) -> LoopId:
        located = self._session.locate()
        self.awaited = located.training
        return max(LoopId(located.step), located.loop) if located.training else LoopId(self._keeper.newest_step())


def _table(communicator: Communicator, mine: EntryRow) -> list[EntryRow]:
    """The rows of all ranks. Raises ``GenerationBroken``."""
    return [from_integers(EntryRow, row) for row in communicator.all_gather_ints(to_integers(mine))]
