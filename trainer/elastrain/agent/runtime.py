"""The agent's process: one queue in, the core in the middle, effects out. It makes no decisions."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import structlog

from elastrain.agent import logs
from elastrain.agent.core import endings
from elastrain.agent.core import events as e
from elastrain.agent.core.machine import Core
from elastrain.agent.core.vouching import Vouching
from elastrain.agent.directory import places, private_directory
from elastrain.agent.presence import Presence
from elastrain.agent.process import pages
from elastrain.agent.process.forker import Zygote
from elastrain.agent.process.launch import NO_ZYGOTE, Executed
from elastrain.agent.process.pages import Pages, VouchPage
from elastrain.agent.process.supervisor import Supervisor, become_reaper
from elastrain.agent.settings import BadSettings, Settings
from elastrain.agent.socket import RankServer
from elastrain.api import names
from elastrain.api.records import Termination
from elastrain.etcd import EtcdConfig
from elastrain.tether import EXIT_NO_COMMAND

LOOK_SECONDS = 0.2
"""Interval at which the job's records are checked without an event; relevant changes wake the agent at once."""
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
    try:
        private = private_directory(places(environ))
    except OSError as error:
        return _end(endings.usage(str(error), names.EXIT_USAGE), termination_log)
    with private as directory:
        try:
            ending = Agent(settings, etcd, command, environ, Path(directory), zygote=zygote).run()
        except Exception as error:
            log.exception("the agent failed")  # a bug: the termination record reports it to the operator
            ending = endings.infrastructure("AgentFailed", f"{type(error).__name__}: {error}")
        shutil.rmtree(Path(names.node_memory(settings.job_uid)) / settings.worker, ignore_errors=True)
        return _end(ending, termination_log)


def _end(termination: Termination, path: Path) -> int:
    """Write the termination record. An unwritable file must not change how the worker ends."""
    log.info("ends", **termination.model_dump(mode="json", exclude={"log_tail"}, exclude_defaults=True))
    try:
        path.write_bytes(endings.encode(termination))
    except OSError as error:
        log.warning("termination record not written", path=str(path), error=str(error))
    return termination.exit_code


@dataclass(frozen=True, slots=True)
class _ChildChanged:
    """SIGCHLD arrived, or the zygote's state changed."""


@dataclass(frozen=True, slots=True)
class _JobChanged:
    """The membership has a new view of the job, or etcd was lost or has returned."""


_Item = e.Event | _ChildChanged | _JobChanged


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
        """``directory``: private and empty, with a short path (at most 107 bytes for a Unix socket)."""
        self._settings = settings
        self._directory = directory
        # SimpleQueue permits put() in a signal handler that interrupts its own get().
        self._inbox: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._core = Core(settings)
        self._supervisor = Supervisor(
            command, environ, settings.nproc, zygote, wake=lambda: self._inbox.put(_ChildChanged())
        )
        self._server: RankServer | None = None
        self._pages = Pages(settings.health.look_seconds)
        self._vouching = Vouching(settings.lease_ttl)
        self._vouch_page: VouchPage | None = None
        self._presence = Presence(settings, etcd, on_change=lambda: self._inbox.put(_JobChanged()))
        self._ended: Termination | None = None

    def run(self) -> Termination:
        """Run until the worker ends; returns its ending."""
        become_reaper()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        signal.signal(signal.SIGCHLD, self._on_child)
        try:
            failed = self._presence.register(self._asked_to_stop)
            if failed is not None:
                return failed
            self._handle(e.Registered(self._presence.id))
            while self._ended is None:
                self._take(self._next())
            return self._ended
        finally:
            self._presence.close()
            if self._server is not None:
                self._server.close()

    # ---- events in -------------------------------------------------------------------------------------------------
    def _on_signal(self, signum: int, _frame: FrameType | None) -> None:
        self._inbox.put(e.Signalled(signum))

    def _on_child(self, _signum: int, _frame: FrameType | None) -> None:
        self._inbox.put(_ChildChanged())

    def _asked_to_stop(self) -> bool:
        try:
            return isinstance(self._inbox.get(timeout=1.0), e.Signalled)
        except queue.Empty:
            return False

    def _next(self) -> _Item:
        deadline = self._core.deadline()
        wait = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            return self._inbox.get(timeout=wait)
        except queue.Empty:
            return e.Tick()

    def _take(self, item: _Item) -> None:
        match item:
            case _ChildChanged():
                self._reap()
            case _JobChanged():
                pass  # handled below
            case e.Signalled(signum=signum):
                log.info("asked to stop", signal=signal.Signals(signum).name)
                self._handle(item)
            case _:
                self._handle(item)
        if self._ended is None:
            for change in self._presence.look():
                self._handle(change)
            self._vouch()
        if (beats := self._pages.due(time.monotonic())) is not None:
            self._handle(e.Pulse(self._core.incarnation, beats, self._presence.reachable))

    def _vouch(self) -> None:
        """Tell the ranks until when they may commit. After the look: a generation that has ended is known by then."""
        lease, now, vouched = self._presence.lease, time.monotonic(), self._vouching.vouch.leased
        newest = self._core.seen.generation.number if self._core.seen and self._core.seen.generation else 0
        alone = self._vouching.look(lease, newest, away=not self._presence.reachable, now=now)
        if alone is not None:
            self._handle(e.Fenced(now - vouched + self._settings.lease_ttl, alone))
        if self._vouch_page is not None:
            self._vouch_page.write(self._vouching.vouch)

    def _reap(self) -> None:
        for ended in self._supervisor.reap():
            if self._server is not None:
                self._server.wait_hangup(ended.local_rank, HANGUP_SECONDS)
            # After all messages of the rank, which are in the queue by now.
            self._inbox.put(
                e.RankExited(self._core.incarnation, ended.local_rank, ended.code, ended.signal, ended.log_tail)
            )

    def _handle(self, event: e.Event) -> None:
        for effect in self._core.handle(event, time.monotonic()):
            self._execute(effect)

    # ---- effects out -----------------------------------------------------------------------------------------------
    def _execute(self, effect: e.Effect) -> None:
        match effect:
            case e.Send(local_rank=local_rank, message=message):
                if self._server is not None:
                    self._server.send(local_rank, message)
            case e.Publish():
                self._presence.publish(effect)
            case e.PublishProgress() | e.CloseJob():
                self._presence.publish_of_job(effect)
            case e.StartRanks(incarnation=incarnation, local_ranks=None):
                self._start_ranks(incarnation)
            case e.StartRanks(local_ranks=[*some]):
                self._start_again(some)
            case e.KillRanks(signum=signum, why=why):
                log.warning("stopping the ranks", signal=signal.Signals(signum).name, why=why)
                self._supervisor.kill(signum)
            case e.PrintStacks(local_rank=local_rank, pid=pid):
                log.warning("a rank hangs; its stacks follow in its output", local_rank=local_rank, pid=pid)
                pages.print_stacks(pid)
            case e.KillRank(local_rank=local_rank, why=why):
                log.warning("killing a rank", local_rank=local_rank, why=why)
                self._supervisor.kill(signal.SIGKILL, local_rank)
            case e.Reincarnate(restarts=restarts):
                self._inbox.put(e.Registered(self._presence.reincarnate(restarts=restarts)))
            case e.Leave():
                self._presence.leave()
            case e.End(termination=termination):
                self._ended = termination

    def _start_ranks(self, incarnation: int) -> None:
        if self._server is not None:
            self._server.close()
        self._server = RankServer(self._directory, incarnation, self._inbox.put)
        self._vouch_page = VouchPage(self._server.path)
        self._vouch_page.write(self._vouching.vouch)
        self._supervisor.start(self._server.path)
        self._pages.of(self._server.path, self._settings.nproc)

    def _start_again(self, local_ranks: Sequence[int]) -> None:
        """Start some ranks beside those that run."""
        assert self._server is not None
        for local_rank in local_ranks:
            self._server.forget(local_rank)
        self._supervisor.start(self._server.path, local_ranks)
