"""The agent's process: one queue in, the core in the middle, effects out. Decides nothing itself."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import structlog

from elastrain import tracing
from elastrain.agent import endings, logs, pulse, trace
from elastrain.agent.core import Config, Core
from elastrain.agent.events import (
    Effect,
    End,
    Event,
    Fenced,
    KillRank,
    KillRanks,
    Leave,
    PrintStacks,
    Publish,
    PublishProgress,
    Pulse,
    RankExited,
    Registered,
    Reincarnate,
    Seen,
    Send,
    Signalled,
    StartRanks,
    Tick,
)
from elastrain.agent.forker import Zygote
from elastrain.agent.plan import NO_ZYGOTE, Executed
from elastrain.agent.pulse import Pages
from elastrain.agent.settings import BadSettings, Settings
from elastrain.agent.socket import RankServer
from elastrain.agent.supervisor import Supervisor, become_reaper
from elastrain.agent.tether import EXIT_NO_COMMAND
from elastrain.api import names, roster
from elastrain.api.keys import JobKeys
from elastrain.api.records import Termination
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdDenied, EtcdError, EtcdUnavailable
from elastrain.rendezvous import events as rendezvous
from elastrain.rendezvous.membership import Membership
from elastrain.rendezvous.probe import ProbeServer
from elastrain.rendezvous.view import View

ETCD_SECONDS = 60.0
"""How long an agent tries to reach etcd at its start."""
REGISTER_SECONDS = 10.0
LOOK_SECONDS = 0.2
"""How often the job's records are looked at when nothing happens; news that matter wake the agent at once."""
FLUSH_SECONDS = 30.0
"""How long the last worker tries to tell etcd that the job has finished."""
LAST_WORDS_SECONDS = 2.0
"""How long any other worker tries to write the progress that its rank 0 last reported."""
HANGUP_SECONDS = 1.0

log = structlog.get_logger()


def main(
    command: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    zygote: Zygote | Executed = NO_ZYGOTE,
) -> int:
    """Run ``command`` as the ranks of a member, forks of ``zygote`` if there is one; returns the exit code. Call it
    from the process's main thread."""
    termination_log = Path(environ.get(names.ENV_TERMINATION_LOG) or names.DEFAULT_TERMINATION_LOG)
    try:
        logs.configure(environ)
        settings = Settings.from_environment(environ)
        etcd = EtcdConfig.from_environment(environ)
    except (BadSettings, ValueError, OSError) as error:
        return _end(endings.usage(str(error), names.EXIT_USAGE), termination_log)
    if shutil.which(command[0], path=environ.get("PATH")) is None:
        why = f"command: {command[0]!r} is not an executable file on PATH"
        return _end(endings.usage(why, EXIT_NO_COMMAND), termination_log)
    with tempfile.TemporaryDirectory(prefix="elastrain-") as directory:
        try:
            ending = Agent(settings, etcd, command, environ, Path(directory), zygote=zygote).run()
        except Exception as error:
            log.exception("the agent failed")  # a fault of ours: say so where the operator reads
            ending = endings.infrastructure("AgentFailed", f"{type(error).__name__}: {error}")
        return _end(ending, termination_log)


def _end(termination: Termination, path: Path) -> int:
    """Write the termination record. A place that cannot be written must not change how the worker ends."""
    log.info("ends", **termination.model_dump(mode="json", exclude={"log_tail"}, exclude_defaults=True))
    try:
        path.write_bytes(endings.encode(termination))
    except OSError as error:
        log.warning("termination record not written", path=str(path), error=str(error))
    return termination.exit_code


@dataclass(frozen=True, slots=True)
class _ChildChanged:
    """SIGCHLD, or news of the zygote."""


@dataclass(frozen=True, slots=True)
class _News:
    """The membership has something to say."""

    event: rendezvous.MembershipEvent


class _NewsQueue(queue.Queue[rendezvous.MembershipEvent]):
    """Where a membership puts its events: straight into the agent's one queue."""

    def __init__(self, inbox: queue.SimpleQueue[Event | _ChildChanged | _News]) -> None:
        super().__init__()
        self._inbox = inbox

    def put(self, item: rendezvous.MembershipEvent, block: bool = True, timeout: float | None = None) -> None:
        self._inbox.put(_News(item))


class Agent:
    """One run of an agent."""

    def __init__(
        self,
        settings: Settings,
        etcd: EtcdConfig,
        command: Sequence[str],
        environ: Mapping[str, str],
        directory: Path,
        *,
        zygote: Zygote | Executed,
    ) -> None:
        """``directory``: private and empty, with a short path (a Unix socket's holds 107 bytes)."""
        self._settings = settings
        self._client = EtcdClient(etcd)
        self._directory = directory
        # SimpleQueue may be put to from a signal handler that interrupts its own get().
        self._inbox: queue.SimpleQueue[Event | _ChildChanged | _News] = queue.SimpleQueue()
        self._core = Core(
            Config(
                worker=settings.worker,
                address=settings.address,
                nproc=settings.nproc,
                lease_ttl=settings.lease_ttl,
                drain_timeout=settings.drain_timeout,
                health=settings.health,
            )
        )
        self._supervisor = Supervisor(
            command, environ, settings.nproc, zygote, wake=lambda: self._inbox.put(_ChildChanged())
        )
        self._server: RankServer | None = None
        self._pages = Pages(settings.health.look_seconds)
        self._membership: Membership | None = None
        self._view: View | None = None
        self._ended: Termination | None = None
        self._notes = trace.Notes()
        who = {"elastrain.worker": settings.worker, "elastrain.job": settings.job}
        self._tracer = tracing.from_environment(environ, "elastrain-agent", **who)
        self._unwritten = False
        """Progress was published that etcd may not have yet."""

    def run(self) -> Termination:
        """Until the worker's work is done, one way or another."""
        become_reaper()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        signal.signal(signal.SIGCHLD, self._on_child)
        member_id = ""
        host = "127.0.0.1" if self._settings.address == "127.0.0.1" else ""
        probes = ProbeServer(lambda: self._membership.id if self._membership else member_id, host)
        try:
            failed = self._register(probes.port)
            if failed is not None:
                return failed
            while self._ended is None:
                self._take(self._next())
            return self._ended
        finally:
            if self._membership is not None:
                self._membership.leave()
            if self._server is not None:
                self._server.close()
            probes.close()
            self._client.close()
            if self._tracer is not None:
                self._tracer.close()

    # ---- events in -------------------------------------------------------------------------------------------------
    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._inbox.put(Signalled(signum))

    def _on_child(self, _signum: int, _frame: FrameType | None) -> None:
        self._inbox.put(_ChildChanged())

    def _next(self) -> Event | _ChildChanged | _News:
        deadline = self._core.deadline()
        wait = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            return self._inbox.get(timeout=wait)
        except queue.Empty:
            return Tick()

    def _take(self, item: Event | _ChildChanged | _News) -> None:
        match item:
            case _ChildChanged():
                self._reap()
            case _News(event=rendezvous.Fenced(seconds=seconds)):
                self._handle(Fenced(seconds))
            case _News(event=event):
                _log_news(event)
            case Signalled(signum=signum):
                log.info("told to stop", signal=signal.Signals(signum).name)
                self._handle(item)
            case _:
                self._handle(item)
        self._look()
        if (beats := self._pages.due(time.monotonic())) is not None:
            current = self._membership is not None and self._membership.reachable
            self._handle(Pulse(self._core.incarnation, beats, current))

    def _look(self) -> None:
        """Pass the job's records on if they have changed."""
        if self._membership is None or self._ended is not None:
            return
        view = self._membership.view
        if view is not self._view and view.revision:  # revision 0: nothing has been read yet
            self._view = view
            self._handle(seen(view))

    def _reap(self) -> None:
        for ended in self._supervisor.reap():
            if self._server is not None:
                self._server.wait_hangup(ended.local_rank, HANGUP_SECONDS)
            # Behind all that the rank had said, which is in the queue by now.
            self._inbox.put(
                RankExited(self._core.incarnation, ended.local_rank, ended.code, ended.signal, ended.log_tail)
            )

    def _handle(self, event: Event) -> None:
        now = time.monotonic()
        effects = self._core.handle(event, now)
        for effect in effects:
            self._execute(effect)
        if self._tracer is not None and (told := self._notes.note(event, effects, now)):
            self._tracer.emit(self._settings.job_uid, *told)

    # ---- effects out -----------------------------------------------------------------------------------------------
    def _execute(self, effect: Effect) -> None:
        assert self._membership is not None or isinstance(effect, End | Leave)
        match effect:
            case Send(local_rank=local_rank, message=message):
                if self._server is not None:
                    self._server.send(local_rank, message)
            case Publish():
                self._publish(effect)
            case PublishProgress(progress=progress):
                self._publish_progress(effect, final=progress.finished)
            case StartRanks(incarnation=incarnation):
                self._start_ranks(incarnation)
            case KillRanks(signum=signum, why=why):
                log.warning("stopping the ranks", signal=signal.Signals(signum).name, why=why)
                self._supervisor.kill(signum)
            case PrintStacks(local_rank=local_rank, pid=pid):
                log.warning("a rank hangs; its stacks follow in its output", local_rank=local_rank, pid=pid)
                pulse.print_stacks(pid)
            case KillRank(local_rank=local_rank, why=why):
                log.warning("killing a rank", local_rank=local_rank, why=why)
                self._supervisor.kill(signal.SIGKILL, local_rank)
            case Reincarnate():
                if self._membership is not None:
                    self._inbox.put(
                        Registered(self._membership.reincarnate(health="", health_message="", health_rank=None).id)
                    )
            case Leave():
                self._leave()
            case End(termination=termination):
                self._ended = termination

    def _publish(self, record: Publish) -> None:
        assert self._membership is not None
        log.info("member", id=self._membership.id, phase=record.phase, generation=record.generation, step=record.step)
        if record.health != self._membership.record.health:
            log.warning("health", health=record.health or "ok", why=record.health_message)
        self._membership.update(
            phase=record.phase,
            generation=record.generation,
            step=record.step,
            broken=record.broken,
            store_port=record.store_port,
            health=record.health,
            health_message=record.health_message,
            health_rank=record.health_rank,
        )

    def _publish_progress(self, effect: PublishProgress, *, final: bool) -> None:
        assert self._membership is not None
        self._membership.publish(effect.progress)
        self._unwritten = True
        if final:
            self._flush(FLUSH_SECONDS)

    def _leave(self) -> None:
        if self._membership is None:
            return
        if self._unwritten:  # progress is written once a second; the last of it would be lost
            self._flush(LAST_WORDS_SECONDS)
        self._membership.leave()

    def _flush(self, seconds: float) -> None:
        assert self._membership is not None
        self._unwritten = False
        try:
            if not self._membership.flush(seconds):
                log.error("the last progress was not written: etcd does not answer", seconds=seconds)
        except EtcdError as error:
            log.error("the last progress was not written", error=str(error))

    def _start_ranks(self, incarnation: int) -> None:
        if self._server is not None:
            self._server.close()
        self._server = RankServer(self._directory, incarnation, self._inbox.put)
        self._supervisor.start(self._server.path)
        self._pages.of(self._server.path, self._settings.nproc)

    def _register(self, agent_port: int) -> Termination | None:
        """Become a member; the ending if that is impossible. Bounded by ``ETCD_SECONDS``."""
        end = time.monotonic() + ETCD_SECONDS
        while True:
            membership = self._new_membership(agent_port)
            try:
                membership.start(REGISTER_SECONDS)
            except EtcdDenied as error:
                return endings.infrastructure("EtcdDenied", str(error))
            except EtcdUnavailable as error:
                log.warning("etcd does not answer, trying again", error=str(error))
                if time.monotonic() >= end:
                    return endings.infrastructure("EtcdUnreachable", f"{error}; tried for {ETCD_SECONDS:g} s")
            except EtcdError as error:
                return endings.infrastructure("EtcdRefused", str(error))
            else:
                self._membership = membership
                log.info("registered", id=membership.id)
                self._handle(Registered(membership.id))
                return None
            try:
                item = self._inbox.get(timeout=1.0)
            except queue.Empty:
                continue
            if isinstance(item, Signalled):
                return endings.drained(0, "told to stop before etcd could be reached")

    def _new_membership(self, agent_port: int) -> Membership:
        settings = self._settings
        return Membership(
            self._client,
            JobKeys(settings.namespace, settings.job, settings.job_uid),
            worker=settings.worker,
            address=settings.address,
            node=settings.node,
            slots=settings.nproc,
            agent_port=agent_port,
            lease_ttl=settings.lease_ttl,
            events=_NewsQueue(self._inbox),
        )


def seen(view: View) -> Seen:
    """The part of a membership's view that the core asks about. Pure."""
    return Seen(
        target=view.target,
        members={m.id: m.record for m in view.alive.values()} if view.complete else None,
        generation=roster.seen_by(view.generation, view.self_id) if view.generation else None,
        ended=view.told,
        finished=view.finished,
        step=view.step,
    )


def _log_news(event: rendezvous.MembershipEvent) -> None:
    match event:
        case rendezvous.EtcdLost(error=error):
            log.warning("etcd is away; training goes on", error=str(error))
        case rendezvous.EtcdBack():
            log.info("etcd is back")
        case rendezvous.NewGeneration(generation=g):
            workers = [m.worker for m in g.members] if g.roster is None else g.size
            log.info("generation", number=g.number, reason=g.reason, workers=workers, world_size=g.world_size)
        case rendezvous.GenerationEnded(number=number, reason=reason):
            log.warning("generation ended", number=number, reason=reason)
        case rendezvous.JobEnded(reason=reason):
            log.info("the job has ended", reason=reason)
        case _:
            log.debug("news", news=repr(event))
