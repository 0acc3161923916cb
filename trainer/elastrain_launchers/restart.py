"""Runs programs that cannot change their world: one process per generation (restart semantics).

A :class:`Keeper` takes the place of a rank: it uses the rank's side of ``api/messages.py`` and starts the program with
the world of each generation. The next generation ends and restarts the program, which resumes from its last checkpoint.
Agent, operator and rendezvous treat it as an ordinary member.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from elastrain.agent.process.supervisor import split_exit_code
from elastrain.api import names
from elastrain.api.messages import Abort, Adopted, AgentMessage, Exit, Finished, Left, Proposed, Ready
from elastrain.api.records import Generation, GenerationMember
from elastrain.link import AgentLink, MessageFailed
from elastrain.tether import tethered

log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""Seconds from SIGTERM to SIGKILL, for an orderly end of the program."""
BLAME_SECONDS = 5.0
"""Seconds beyond the lease's TTL that a failed program waits for the report of a lost peer, which would explain the
failure. Without a report the failure is its own."""


@dataclass(frozen=True, slots=True)
class World:
    """The generation's parameters for a program."""

    generation: Generation
    place: GenerationMember
    """Id of the member that runs the program."""

    @property
    def rank(self) -> int:
        """Rank of the member, from 0; the program counts as one process per member."""
        return [m.id for m in self.generation.members].index(self.place.id)

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of each member, in rank order: a port that its keeper found free for the program."""
        return [f"{m.address}:{m.store_port}" for m in self.generation.members]


Start = Callable[[World], tuple[Sequence[str], Mapping[str, str]]]
"""The command of a world, and the variables that the program gets in addition to the keeper's own."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A program ended by itself, or was killed by another process."""

    generation: int
    code: int
    signum: int


@dataclass
class Keeper:
    """Runs in the main thread.

    ``inbox`` holds the agent's messages (None: the agent is gone; an error: no message can be read any more) and the
    program's end.
    """

    start: Start
    inbox: queue.SimpleQueue[AgentMessage | _Ended | Exception | None] = field(default_factory=queue.SimpleQueue)
    _program: subprocess.Popen[bytes] | None = None
    _world: World | None = None
    _adopted: int = 0

    def keep(self, environ: Mapping[str, str]) -> int:
        """Run until the program has finished or failed, or the worker is to leave; returns the exit code.

        Raises ``RuntimeError`` if no agent started this process, or if its messages cannot be read.
        """
        link = link_to_agent(environ, self.inbox.put)
        link.start()
        link.send(Ready(store_port=free_port(link.welcome.address)))
        try:
            return self._follow(link, link.welcome.lease_ttl + BLAME_SECONDS)
        finally:
            self._stop()
            link.close()

    def _follow(self, link: AgentLink, patience: float) -> int:
        failed: _Ended | None = None
        failed_at = 0.0
        while True:
            try:
                wait = None if failed is None else max(0.0, failed_at + patience - time.monotonic())
                message = self.inbox.get(timeout=wait)
            except queue.Empty:
                assert failed is not None
                return failed.code or 128 + failed.signum
            match message:
                case Proposed(generation=generation) if generation.number > self._adopted:
                    failed = None
                    self._enter(generation, link)
                case Abort(generation=number) if number == self._adopted:
                    log.info("generation is over", generation=number, why=message.reason)
                    failed = None
                    self._stop()
                case _Ended(generation=number) if number == self._adopted and self._world is not None:
                    if message.code == message.signum == 0:
                        link.send(Finished(step=0))
                        return 0
                    log.warning("the program failed", code=message.code, signal=message.signum)
                    failed, failed_at = message, time.monotonic()
                case Exit() | Exception() | None:
                    return leave(message, link, self._stop)

    def _enter(self, generation: Generation, link: AgentLink) -> None:
        self._stop()
        place = generation.member(link.welcome.member)
        self._adopted = generation.number
        link.send(Adopted(generation=generation.number, step=0))
        if place is None:
            return
        self._world = World(generation, place)
        command, variables = self.start(self._world)
        log.info("starting the program", generation=generation.number, rank=self._world.rank, world=generation.size)
        self._program = subprocess.Popen(
            tethered(command, signal.SIGKILL), env={**os.environ, **variables}, start_new_session=True
        )
        threading.Thread(target=self._await, args=(self._program, generation.number), daemon=True).start()

    def _await(self, program: subprocess.Popen[bytes], generation: int) -> None:
        code = program.wait()
        exited, signum = split_exit_code(code)
        self.inbox.put(_Ended(generation, exited, signum))

    def _stop(self) -> None:
        """End the program and all its children; does nothing if there is none."""
        program, self._program, self._world = self._program, None, None
        if program is not None:
            end(program)


def link_to_agent(
    environ: Mapping[str, str], deliver: Callable[[AgentMessage | MessageFailed | None], None]
) -> AgentLink:
    """This process's connection to its agent, as the worker's only rank; not started.

    Raises ``RuntimeError`` if no agent started this process.
    """
    path = environ.get(names.ENV_AGENT_SOCKET)
    if not path:
        raise RuntimeError(
            f"${names.ENV_AGENT_SOCKET} is not set, so no agent started this process. "
            "Run it by 'elastrain run job.yaml', or on a cluster by 'kubectl apply -f job.yaml'."
        )
    return AgentLink(path, 0, deliver)


def leave(last: Exit | Exception | None, link: AgentLink, stop: Callable[[], None]) -> int:
    """The exit code after the last message for this worker's program, which ``stop()`` ends. Raises an error that is
    in the place of a message."""
    match last:
        case Exit(reason=reason):
            log.info("leaving the job", reason=reason)
            stop()
            link.send(Left(step=0))
            return 0
        case Exception():
            raise last
        case None:
            return names.EXIT_INFRASTRUCTURE  # the agent that could report it is gone


def end(program: subprocess.Popen[bytes]) -> None:
    """End a program that leads a process group, and its group: by SIGTERM and, after ``STOP_SECONDS``, SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        program.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def free_port(address: str) -> int:
    """A currently unused port of ``address``."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def of_torch(world: World) -> dict[str, str]:
    """The variables for ``torch.distributed.init_process_group("env://")``, for a program of one process per member."""
    first = world.generation.members[0]
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.generation.size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.store_port),
    }


def command_of(arguments: Sequence[str], module: str) -> list[str]:
    """The command in the arguments of one of these modules. Ends the process if there is none."""
    command = [*arguments[1:]] if arguments[:1] == ["--"] else [*arguments]
    if not command:
        sys.stderr.write(f"usage: python -m elastrain_launchers.{module} [--] CMD...\n")
        sys.exit(names.EXIT_USAGE)
    return command


def main() -> int:
    """Run a program of one process per member that reads torch's environment."""
    command = command_of(sys.argv[1:], "restart")
    return Keeper(lambda world: (command, of_torch(world))).keep(os.environ)


if __name__ == "__main__":
    sys.exit(main())
