"""The agent's state machine: events in, effects out. Pure; ``agent/runtime.py`` feeds it and executes the effects.

The state is small (a mode, each rank's messages, the job's records), and every reaction is computed from all of it: the
order of events is irrelevant, and a lost or repeated event is harmless.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from enum import Enum, auto

from elastrain.agent.core import endings, restart
from elastrain.agent.core import events as e
from elastrain.agent.core.bounds import FAILING_SECONDS, KILL_SECONDS, STAND_BY_SECONDS, Bounds, passed
from elastrain.agent.core.checkup import Checkup, Situation, stragglers
from elastrain.agent.core.outbox import RankContext, messages_for
from elastrain.agent.core.places import Places
from elastrain.agent.core.published import PublishedRecord, final_progress, record_of, why_unfit
from elastrain.agent.core.rank import Rank
from elastrain.agent.core.restart import awaited, script_over, why_repeat
from elastrain.agent.settings import Settings
from elastrain.api.messages import Diverged, Exit, Hello, Misplaced, RankMessage, Report
from elastrain.api.records import Phase, Progress, Termination
from elastrain.rendezvous.view import MAX_FAULTS


class Mode(Enum):
    """The phase of the agent's own life."""

    STARTING = auto()
    """Not registered, or etcd not read yet: no rank runs."""
    RUNNING = auto()
    RESTARTING = auto()
    """The ranks are being reaped, then all restart as a new member."""
    ENDING = auto()
    """The outcome is known; the ranks are being reaped."""
    ENDED = auto()


class Core:
    """The agent's state machine. Call :meth:`handle` with each event, execute the effects in order."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.mode = Mode.STARTING
        self.incarnation = 1
        self.ranks: list[Rank] = []
        self.seen: e.JobSnapshot | None = None
        self.places = Places()
        self.progress: Progress | None = None
        self.published = PublishedRecord()
        self.restarts: list[float] = []
        self.kept = False
        """Whether the memory of the node has the final state of this worker's last processes."""
        self.checkup = Checkup(settings.health)
        self.resigned = ""
        """Why this worker leaves without a request; empty: it stays."""
        self.bounds = Bounds()
        self.termination: Termination | None = None

    @property
    def member_id(self) -> str | None:
        """None while the agent is not a member."""
        return self.places.me

    @property
    def _drain_timeout(self) -> float:
        limit, target = self.settings.drain_timeout, self.seen.target if self.seen else None
        return limit if target is None or target.drain is None else min(limit, target.drain)

    # ---- events ----------------------------------------------------------------------------------------------------
    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """Update the state by ``event``; returns the effects to execute. ``now``: monotonic seconds."""
        effects = list(self._note(event, now))
        effects += self._react(now)
        return effects

    def deadline(self) -> float | None:
        """When :class:`Tick` is due without another event; None: never."""
        if self.mode is Mode.ENDING:
            return self.bounds.kill
        if self.mode is not Mode.RUNNING:
            return None
        deadlines = [self.bounds.first(), self._report_broken_at()]
        return min((d for d in deadlines if d is not None), default=None)

    def _note(self, event: e.Event, now: float) -> Iterator[e.Effect]:
        match event:  # others are of an earlier incarnation, or a tick
            case e.Registered(member_id=member_id):
                self.places.me, self.published = member_id, PublishedRecord()
            case e.Fenced(seconds=seconds, alone=alone):
                self.places.fence(seconds, alone=alone)
            case e.JobSnapshot():
                self._note_seen(event)
            case e.RankSaid(incarnation=self.incarnation, local_rank=local_rank, message=message):
                if local_rank < len(self.ranks):
                    yield from self._note_message(self.ranks[local_rank], message)
            case e.RankHungUp(incarnation=self.incarnation, local_rank=local_rank):
                if local_rank < len(self.ranks):
                    self.ranks[local_rank].hung_up()
            case e.RankExited(incarnation=self.incarnation, local_rank=local_rank):
                self.ranks[local_rank].hung_up()
                self.ranks[local_rank].exited = event
            case e.Signalled():
                first = self.bounds.drain is None
                self.bounds.drain = now + self._drain_timeout if first else now
            case e.Pulse(incarnation=self.incarnation):
                yield from self._note_pulse(event, now)

    def _note_seen(self, seen: e.JobSnapshot) -> None:
        self.seen = seen
        if seen.generation is not None:
            self.places.learn(seen.generation, oldest=self.adopted)

    def _note_message(self, rank: Rank, message: RankMessage) -> Iterator[e.Effect]:
        rank.received(message, self.places)
        if isinstance(message, Diverged):
            yield e.CloseJob(message.why)
        elif isinstance(message, Hello):
            rank.welcomed = False
            rank.proposed.clear()
        elif isinstance(message, Report) and self.places.rank(message.progress.generation, rank.local_rank) == 0:
            self.progress = message.progress.model_copy(
                update={"stragglers": stragglers(self.seen.members)} if self.seen and self.seen.members else {}
            )
            yield e.PublishProgress(self.progress)
        elif isinstance(message, Misplaced) and not message.ahead and message.member == self.places.me:
            # The other ranks of this worker are in the same place; all receive a Welcome.
            self.places.me, self.ranks = None, [r.renewed() for r in self.ranks]
            yield e.Reincarnate(restarts=False)

    def _note_pulse(self, pulse: e.Pulse, now: float) -> Iterator[e.Effect]:
        """Judge the heartbeat pages. A hanging rank is killed; its exit follows as a separate event."""
        if self.mode is not Mode.RUNNING or self.seen is None or self.member_id is None:
            return
        running = {r.local_rank for r in self.ranks if r.exited is None}
        beats = {rank: beat for rank, beat in pulse.beats.items() if rank in running}
        situation = self._situation(self.member_id, self.seen, pulse.current)
        verdict = self.checkup.look(beats, situation, now)
        for rank in verdict.dump:
            yield e.PrintStacks(rank, self.ranks[rank].pid)
        for rank, why in verdict.restart:
            if not self.ranks[rank].hung:
                self.ranks[rank].hung = why
                yield e.KillRank(rank, why)
        why_resign = self.checkup.why_resign(situation, now)
        if why_resign is not None and not self.leaving:
            self.resigned, self.bounds.drain = why_resign, now + self._drain_timeout

    def _situation(self, me: str, seen: e.JobSnapshot, current: bool) -> Situation:
        unbroken = all(r.broken < r.adopted and r.adopted not in r.aborted for r in self.ranks)
        return Situation(
            me=me,
            members=seen.members or {},
            current=current and seen.members is not None,
            target=seen.target,
            generation=self.places.generation(self.adopted),
            trains=unbroken and self.places.mine(self.adopted) is not None,
            idle=self.phase is Phase.READY and not seen.finished,
        )

    # ---- reactions -------------------------------------------------------------------------------------------------
    def _react(self, now: float) -> Iterator[e.Effect]:
        match self.mode:
            case Mode.STARTING:
                yield from self._start()
            case Mode.RUNNING:
                yield from self._run(now)
            case Mode.RESTARTING:
                if self._reaped():
                    yield from self._restart(now)
            case Mode.ENDING:
                yield from self._end(now)

    def _start(self) -> Iterator[e.Effect]:
        if self.bounds.drain is not None:
            yield from self._ended(endings.drained(0, "asked to leave before its ranks started"))
        elif self.member_id is None or self.seen is None:
            return
        elif self.seen.finished:
            over = endings.job_over(0, self.seen.diverged, "the job had finished before this worker started")
            yield from self._ended(over)
        elif self.leaving:
            yield from self._ended(endings.drained(0, "asked to leave before its ranks started"))
        else:
            yield from self._start_ranks()

    def _start_ranks(self) -> Iterator[e.Effect]:
        self.mode = Mode.RUNNING
        self.checkup = Checkup(self.settings.health)
        self.ranks = [Rank(i) for i in range(self.settings.nproc)]
        yield e.StartRanks(self.incarnation)

    def _restart(self, now: float) -> Iterator[e.Effect]:
        if self.leaving:
            yield from self._ended(endings.drained(self.step, "a rank was killed; not restarted while leaving"))
            return
        self.incarnation += 1
        yield from self._start_ranks()

    def _run(self, now: float) -> Iterator[e.Effect]:
        failed = next((r.exited for r in self.ranks if r.exited and (r.exited.code or r.exited.signal)), None)
        misplaced = next((r.misplaced for r in self.ranks if r.misplaced), "")
        repeats = why_repeat(self.ranks, self.places, self.seen)
        if repeats and not self.leaving and restart.may_restart(self.restarts, now) and not self._reaped():
            yield from self._keep(repeats, now)
        elif misplaced and not self.leaving and not any(r.exited for r in self.ranks):
            yield from self._start_anew(misplaced, now)  # no failure of theirs: it does not count as one
        elif failed is not None:
            yield from self._rank_failed(failed, now)
        elif self._reaped():
            yield from self._all_ended()
        elif (why := restart.in_vain(self.ranks, self.bounds, now)) and not self.leaving:
            yield from self._start_anew(why, now)
        elif (late := self._overdue(now)) is not None:
            yield from self._stop(late, signal.SIGTERM, now + KILL_SECONDS, now)
        elif self.leaving and any(not r.ready and not r.exited for r in self.ranks):
            # It was in no generation, so it holds no state to save.
            grace = self.bounds.drain or now + self._drain_timeout
            ending = endings.drained(self.step, "asked to leave before its ranks were ready")
            yield from self._stop(ending, signal.SIGTERM, grace, now)
        else:
            self._watch_stragglers(now)
            yield from self._end_failing(now)
            yield from self._talk(repeats, now)
            yield from self._publish(now)

    def _rank_failed(self, exited: e.RankExited, now: float) -> Iterator[e.Effect]:
        rank = self.ranks[exited.local_rank]
        place = self.places.rank(rank.adopted, rank.local_rank)
        if exited.signal == 0 or rank.failing or rank.diverged:
            ending = endings.script_failed(self.step, exited, place, known=rank.failing, diverged_by=rank.diverged)
            yield from self._stop(ending, signal.SIGKILL, now + KILL_SECONDS, now)
        elif rank.ended == "finished" and place != 0 and not rank.told_repeat:
            # Its loop had finished and only rank 0 writes results: a crash during its exit counts as a normal end.
            rank.exited = e.RankExited(exited.incarnation, exited.local_rank)
            yield from self._run(now)
        elif self.leaving or not restart.may_restart(self.restarts, now):
            if rank.hung and not self.leaving:
                ending = endings.rank_stuck(self.step, exited, place, rank.hung)
            else:
                ending = endings.rank_killed(self.step, exited, place, self.leaving)
            yield from self._stop(ending, signal.SIGKILL, now + KILL_SECONDS, now)
        else:
            if not rank.stands_by:  # otherwise it had the same cause as the restart that it stands by for
                self.restarts.append(now)
            why = rank.hung or f"rank {exited.local_rank} was killed by signal {exited.signal}"
            dead = restart.to_start_again(self.ranks)
            yield from self._start_again(dead, now) if dead else self._start_anew(why, now)

    def _end_failing(self, now: float) -> Iterator[e.Effect]:
        """A process that does not end after its own failure (a thread of the script runs on, say) is killed."""
        failing = [r for r in self.ranks if r.failing and not r.exited]
        self.bounds.watch_failing(bool(failing), now)
        if failing and passed(self.bounds.failing, now):
            self.bounds.failing = now + FAILING_SECONDS
            for rank in failing:
                yield e.KillRank(rank.local_rank, f"it has not ended {FAILING_SECONDS:g} s after: {rank.failing}")

    def _keep(self, why: str, now: float) -> Iterator[e.Effect]:
        """All ranks start again when they have kept the final state, to run their scripts to the end."""
        self.bounds.watch_keeping(True, now)
        if awaited(self.ranks) and not passed(self.bounds.keep, now):
            yield from self._talk(why, now)
            yield from self._publish(now)
            return
        self.bounds.watch_keeping(False, now)
        self.kept = restart.hold_all(self.ranks, self.settings.ranks.shards)
        if any(r.exited and r.exited.signal for r in self.ranks):
            self.restarts.append(now)
        yield from self._start_anew(why, now)

    def _start_again(self, dead: tuple[int, ...], now: float) -> Iterator[e.Effect]:
        """The dead ranks start again; the others keep process and state, and stand by as ranks of a new member."""
        self.places.me, self.bounds.stand_by = None, now + STAND_BY_SECONDS
        self.ranks = [Rank(r.local_rank) if r.local_rank in dead else r.renewed(stands_by=True) for r in self.ranks]
        yield e.Reincarnate()
        yield e.StartRanks(self.incarnation, dead)

    def _start_anew(self, why: str, now: float) -> Iterator[e.Effect]:
        """All ranks start again, as a new member."""
        self.mode, self.places.me, self.bounds.stand_by = Mode.RESTARTING, None, None
        yield e.Reincarnate()
        yield e.KillRanks(signal.SIGKILL, why)
        if self._reaped():
            yield from self._restart(now)

    def _all_ended(self) -> Iterator[e.Effect]:
        finished = self.seen is not None and self.seen.finished
        if any(r.told_exit and r.ended != "finished" for r in self.ranks) and not finished:
            unfit = endings.infrastructure("CannotConnect", self.unfit, self.step) if self.unfit else None
            yield from self._ended(unfit or endings.drained(self.step, self.resigned))
            return
        early = any(r.joined and r.ended is None and not r.told_exit for r in self.ranks)
        if self.places.rank(self.adopted, 0) == 0 and not finished:
            yield e.PublishProgress(final_progress(self.progress, self.places[self.ranks[0].adopted], self.step))
        why = self.seen.diverged if self.seen else ""
        yield from self._ended(endings.job_over(self.step, why, "the script left its training loop early" * early))

    def _overdue(self, now: float) -> Termination | None:
        """The ending if a deadline of the leave has passed."""
        if passed(self.bounds.drain, now):
            return endings.drained(
                self.step, "its ranks did not stop in time (or a second signal came) and were killed"
            )
        if passed(self.bounds.exit, now):
            ending = endings.finished if self.seen and self.seen.finished else endings.drained
            return ending(self.step, "its ranks were asked to exit, did not end in time and were killed")
        if passed(self.bounds.stragglers, now):
            return endings.straggler(self.step, [r.local_rank for r in self.ranks if not r.exited])
        return None

    def _watch_stragglers(self, now: float) -> None:
        deserted = any(r.exited and r.joined and r.ended is None for r in self.ranks)
        waiting = any(r.listens and not r.told_exit for r in self.ranks)
        self.bounds.watch_stragglers(deserted and waiting, now)

    # ---- to the ranks ----------------------------------------------------------------------------------------------
    def _talk(self, repeats: str, now: float) -> Iterator[e.Effect]:
        """``repeats``: why the scripts run again; empty: they do not."""
        if self.member_id is None or self.seen is None:
            return
        context = RankContext(
            me=self.member_id, settings=self.settings, places=self.places, seen=self.seen, why_leave=self.why_leave,
            why_repeat=repeats, script_over=script_over(self.ranks, self.places),
        )  # fmt: skip
        for rank in self.ranks:
            for message in messages_for(rank, context):
                if isinstance(message, Exit):
                    self.bounds.exit = self.bounds.exit or now + self._drain_timeout
                yield e.Send(rank.local_rank, message)

    # ---- to etcd ---------------------------------------------------------------------------------------------------
    @property
    def step(self) -> int:
        """Committed steps of the furthest rank."""
        return max((r.step for r in self.ranks), default=0)

    @property
    def adopted(self) -> int:
        """The oldest generation that a rank is in; 0: one is in none."""
        return min((r.adopted for r in self.ranks), default=0)

    @property
    def leaving(self) -> bool:
        """Whether the worker leaves: by a signal, by the target, or by its own decision."""
        return self.why_leave is not None

    @property
    def why_leave(self) -> str | None:
        """None: this worker stays."""
        if self.bounds.drain is not None:
            return self.resigned or "asked to stop"
        target = self.seen.target if self.seen else None
        if target is not None and (target.desired == 0 or self.settings.worker in target.leaving):
            return f"target: {target.reason or 'leave'}"
        return self.unfit or None

    @property
    def unfit(self) -> str:
        """Why no generation can include this worker: it broke several by itself, and one was formed without it."""
        outside = self.adopted and self.places.mine(self.adopted) is None
        return why_unfit(self.ranks) if outside and max(r.faults for r in self.ranks) >= MAX_FAULTS else ""

    @property
    def phase(self) -> Phase:
        if self.ranks and all(r.ended == "finished" for r in self.ranks):
            return Phase.FINISHED
        if self.leaving or any(r.failing for r in self.ranks):
            return Phase.LEAVING
        if self.ranks and all(r.can_connect for r in self.ranks):
            return Phase.READY
        return Phase.WARMING

    def _publish(self, now: float) -> Iterator[e.Effect]:
        if self.member_id is None:
            return
        kept = self.kept and self.places.mine(self.adopted) is None
        record = record_of(self.ranks, self.phase, self.checkup, self.settings.ranks.shards, kept=kept)
        self.published.note(record.broken, now)
        place = self.places.mine(record.generation)
        if (due := self.published.next(record, place, self._report_broken_at(), now)) is not None:
            yield due

    def _report_broken_at(self) -> float | None:
        return self.published.report_broken_at(self.seen, self.places, self.adopted)

    # ---- endings ---------------------------------------------------------------------------------------------------
    def _reaped(self) -> bool:
        return all(r.exited for r in self.ranks)

    def _stop(self, ending: Termination, signum: int, kill_at: float, now: float) -> Iterator[e.Effect]:
        """Stop the ranks that still run, then end with ``ending``."""
        self.mode, self.termination, self.bounds.kill = Mode.ENDING, ending, kill_at
        if not self._reaped():
            yield e.KillRanks(signum, ending.message or ending.outcome)
        yield e.Leave()
        yield from self._end(now)

    def _end(self, now: float) -> Iterator[e.Effect]:
        assert self.termination is not None
        if self._reaped():
            yield from self._ended(self.termination)
        elif passed(self.bounds.kill, now):
            self.bounds.kill = None
            yield e.KillRanks(signal.SIGKILL, "they did not end when requested")

    def _ended(self, ending: Termination) -> Iterator[e.Effect]:
        self.mode, self.termination = Mode.ENDED, ending
        self.bounds = Bounds()
        yield e.Leave()
        yield e.End(ending)
