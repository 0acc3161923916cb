"""The real code of ranks in threads of the test, beside agents and a leader that are played.

A rank is a :class:`elastrain.Job` with its own connections; only the process around it is missing. Its end is that of a
process that is killed: all connections close, and nothing else is said. A world takes tens of milliseconds, and events
hit a named point of a named rank.
"""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from bench_harness import played_ranks
from elastrain.api import messages as m
from elastrain.api.pages import heartbeat
from elastrain.api.settings import RankSettings
from elastrain.data.audit import AuditLog
from elastrain.elastic.assemble import strategy_for
from elastrain.elastic.group.heartbeat import Heartbeat
from elastrain.elastic.group.shell import Session
from elastrain.elastic.job import Job

KILLED = -9
_NUMBERS = itertools.count(1 << 20)


class Killed(BaseException):
    """The rank's process has ended here."""


Script = Callable[[Job, "RankThread"], Any]
"""Trains; returns what the process would write at its end. Torch's random numbers are the process's: it draws none."""


class RankThread:
    """One rank, with the interface of ``subprocess.Popen``."""

    def __init__(self, script: Script, socket_path: str, worker: str, audit: Path, log: BinaryIO) -> None:
        self.worker, self.pid = worker, next(_NUMBERS)
        self.final: Any = None
        """What the script has returned."""
        self.error: BaseException | None = None
        """How it has ended, if not so."""
        self.points: dict[str, int] = {}
        """Where the rank is, for the test: committed steps by the name of a point."""
        self.on_point: Callable[[RankThread, str, int], None] = lambda *_: None
        """Called at each; it may wait, or call :meth:`die`."""
        self.job: Job | None = None
        self._returncode: int | None = None
        self._log, self._audit = log, audit
        self._thread = threading.Thread(target=self._run, args=(script, socket_path), name=worker, daemon=True)
        self._thread.start()

    # -- for the script ------------------------------------------------------------------------------------------------
    def at(self, point: str) -> None:
        """The script is at a point."""
        assert self.job is not None
        self.points[point] = self.job.step
        self.on_point(self, point, self.job.step)

    def body(self) -> None:
        """A loop body of a step begins; that of the warm-up is none."""
        step = self.job._loop.step
        if step is not None and not step.warm_up:
            self.at("body")

    def die(self) -> None:
        """End as a process that is killed."""
        self._end_connections()
        raise Killed

    # -- for the test ------------------------------------------------------------------------------------------------
    def poll(self) -> int | None:
        return self._returncode

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        assert self._returncode is not None, f"{self.worker} has not ended within {timeout} s"
        return self._returncode

    def send_signal(self, _signum: int, /) -> None:
        """Each of them kills."""
        if self._returncode is None and self.job is not None:
            self._end_connections()

    def kill(self) -> None:
        self.send_signal(KILLED)

    # -- the thread ----------------------------------------------------------------------------------------------------
    def _run(self, script: Script, socket_path: str) -> None:
        torch.set_num_threads(1)
        try:
            session = Session(socket_path, 0)
            beat = Heartbeat(heartbeat.path_of(socket_path, 0))
            with Job(session, strategy_for("exact", session), beat) as self.job:
                audit = AuditLog(self._audit, self.worker, 0, self.pid)
                self.job.at_exit = lambda _: session.close()
                self.job._audit = self.job._loop._audit = self.job._loop.bodies._audit = audit
                self._instrument(self.job)
                self.final = script(self.job, self)
            self._returncode = 0
        except Killed:
            self._returncode = KILLED
        except SystemExit as e:
            self.error = e
            self._returncode = KILLED if self.job is None or self.job._audit is None else int(e.code or 0)
        except BaseException as e:
            self.error = e
            killed = self.job is not None and self.job._audit is None
            self._log.write(traceback.format_exc().encode())
            self._log.flush()
            self._returncode = KILLED if killed else 1

    def _end_connections(self) -> None:
        job = self.job
        assert job is not None
        job._audit = job._loop._audit = job._loop.bodies._audit = None
        session = job._session
        with session._changed:
            open_ones = [*session._communicators.values()]
        with suppress(OSError):  # a rank that ends by itself at this moment has closed it
            session._link._socket.shutdown(2)
        for communicator in open_ones:
            communicator.abort("killed")
        session._connector.close()

    def _instrument(self, job: Job) -> None:
        """Points inside of the runtime, before and after calls."""
        world, handover = job._world, job._world._handover
        for owner, name in ((world, "leave_loop"), (world, "exchange"), (world, "_synchronise"), (handover, "receive")):
            setattr(owner, name, self._between_points(name.strip("_"), getattr(owner, name)))

    def _between_points(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def between(*args: Any, **kwargs: Any) -> Any:
            self.at(f"before {name}")
            result = call(*args, **kwargs)
            self.at(f"after {name}")
            return result

        return between


class Threads:
    """Starts ranks as threads (:class:`bench_harness.played_ranks.Starter`)."""

    def __init__(self, script: Script, audit: Path) -> None:
        self.script, self._audit = script, audit
        self.on_point: Callable[[RankThread, str, int], None] = lambda *_: None

    def start(self, command: Sequence[str], env: Mapping[str, str], output: BinaryIO) -> RankThread:
        rank = RankThread(self.script, env["ELASTRAIN_AGENT_SOCKET"], env["ELASTRAIN_WORKER"], self._audit, output)
        rank.on_point = lambda *at: self.on_point(*at)
        return rank


class ThreadWorld(played_ranks.World):
    """The ranks of one test and the leader's part."""

    def __init__(self, folder: Path, script: Script, settings: RankSettings | None = None) -> None:
        self.threads = Threads(script, folder / "audit")
        super().__init__(folder, self.threads)
        self.settings = settings or RankSettings()
        self.allowed = 1 << 30
        """Ranks begin the loop body of no step from this one on."""
        self.kills: dict[str, tuple[str, int]] = {}
        """By worker: the point at which it is killed, and its committed steps there, at least."""
        self.members: tuple[str, ...] = ()
        """Of the newest generation."""
        self.leaving: set[str] = set()
        """Ranks that a generation has left out."""
        self._changed = threading.Condition()
        self.threads.on_point = self._on_point

    # -- ranks -------------------------------------------------------------------------------------------------------
    def train(self, *ranks: str) -> None:
        """Start them, and a generation of them."""
        self.begin(*ranks)
        self.propose(*ranks)

    def begin(self, *ranks: str) -> None:
        """Start ranks; return when they are ready."""
        for name in ranks:
            saved, shard = self._saved_step(), self._shard(name)
            self.ranks[name] = played_ranks.Rank(
                self.threads, name, self.folder, [], {}, self.located, saved, self.settings, shard
            )
        self.ready(*ranks)

    def _shard(self, rank: str) -> int:
        return 0 if self.settings.shards == 1 else int(rank[1:])

    def whole(self, ranks: Sequence[str]) -> list[str]:
        """Those of whole groups: with shards, the ranks a0, a1 … are group a."""
        if self.settings.shards == 1:
            return list(ranks)
        return [r for r in ranks if all(f"{r[0]}{shard}" in ranks for shard in range(int(self.settings.shards)))]

    def thread(self, rank: str) -> RankThread:
        thread = self.ranks[rank].process
        assert isinstance(thread, RankThread)
        return thread

    def result(self, rank: str) -> Any:
        return self.thread(rank).final

    def error(self, rank: str) -> BaseException | None:
        return self.thread(rank).error

    def alive(self, *ranks: str) -> list[str]:
        return [r for r in ranks or self.ranks if self.ranks[r].process.poll() is None]

    def _saved_step(self) -> int:
        return max((r.saved_step() for r in self.ranks.values()), default=0)

    def _on_point(self, rank: RankThread, point: str, step: int) -> None:
        if rank.worker in self.kills:
            where, least = self.kills[rank.worker]
            if where == point and step >= least:
                rank.die()
        if point == "body":
            with self._changed:
                self._changed.wait_for(lambda: step < self.allowed, played_ranks.PATIENCE)

    def allow(self, steps: int) -> None:
        """Ranks may begin the loop bodies of the first ``steps`` steps."""
        with self._changed:
            self.allowed = steps
            self._changed.notify_all()

    def hold(self, *ranks: str, step: int) -> None:
        """Return when all of them are in the loop body of ``step``, where they stay."""
        self.wait(f"{ranks} in step {step}", lambda: all(self.thread(r).points.get("body") == step for r in ranks))

    # -- the leader --------------------------------------------------------------------------------------------------
    def propose(self, *ranks: str, reason: str = "Test") -> int:
        self.leaving |= set(self.members) - set(ranks)
        self.members = ranks
        return super().propose(*ranks, reason=reason)

    def serve(self, *ranks: str) -> None:
        """Propose a generation of all ``ranks`` whenever one has broken, until they have ended."""

        def all_ended() -> bool:
            if any(self.ranks[r].has("broken", generation=self.number) for r in ranks):
                self.propose(*ranks, reason="Broken")
            return not self.alive(*ranks)

        self.wait(f"{ranks} end", all_ended)

    def connected(self, *ranks: str) -> None:
        """Return when all of them could switch to the newest proposal."""
        number = self.number

        def all_are() -> bool:
            jobs = [self.thread(r).job for r in ranks]
            return all(job is not None and number in job._session.connected() for job in jobs)

        self.wait(f"{ranks} to be connected to generation {number}", all_are)

    def lead(self) -> None:
        """Form generations as a leader does, until all ranks have ended: without those that were lost, with those that
        are ready. A rank that the newest generation does not include, and that stands by, is drained."""
        drained: set[str] = set()
        deadline = time.monotonic() + played_ranks.PATIENCE
        while self.alive():
            assert time.monotonic() < deadline, f"{self.alive()} have not ended: {self.story()}"
            self.wait("a moment", lambda: True)  # a rank that failed fails the test
            self._lead_once(drained)
            time.sleep(0.002)

    def _lead_once(self, drained: set[str]) -> None:
        alive = self.alive()
        for name in alive:
            if self.ranks[name].has("kept"):  # its process would end, and its script run its tail from this state
                self.thread(name).kill()
            if name in self.leaving - drained and self.ranks[name].has("adopted", generation=self.number):
                drained.add(name)
                self.ranks[name].send(m.Exit(reason="drained"))
        mine = [name for name in self.members if name in alive]
        number = self.number
        settled = [n for n in mine if self.ranks[n].has("broken", generation=number)]
        ended = any(self.ranks[n].has("finished") for n in self.members)
        able = [n for n in alive if n not in self.leaving and self.ranks[n].is_ready()]
        if len(mine) < len(self.members) and not ended:
            for name in mine:  # the agents' detection of a loss
                if name not in settled and not self.ranks[name].has("adopted", generation=number):
                    self.ranks[name].send(m.Abort(generation=number, reason="a worker is lost"))
        if mine and settled and len(settled) == len(mine):
            self.propose(*self.whole([*[n for n in mine if n in able], *[n for n in able if n not in mine]]))
        elif not settled and len(mine) == len(self.members) and not ended:
            adopted = all(self.ranks[n].has("adopted", generation=number) for n in mine)
            more = self.whole([*mine, *[n for n in able if n not in mine]])
            if adopted and set(more) > set(mine):
                self.propose(*more)

    def story(self) -> str:
        said = {n: [f"{x.type} {getattr(x, 'generation', '')}" for x in r.received[-6:]] for n, r in self.ranks.items()}
        points = {n: self.thread(n).points for n in self.ranks}
        return f"generation {self.number} of {self.members}; last messages: {said}; points: {points}"

    def close(self) -> None:
        self.allow(1 << 30)
        for rank in self.ranks.values():
            rank.process.kill()
        for rank in self.ranks.values():
            rank.stop()


@contextmanager
def thread_world(folder: Path, script: Script, settings: RankSettings | None = None) -> Iterator[ThreadWorld]:
    world = ThreadWorld(folder, script, settings)
    try:
        yield world
    finally:
        world.close()
