"""The keeper of a program that cannot change its world: it takes the place of a rank beside the agent.

It uses the rank's side of ``api/messages.py``. Agent, operator and rendezvous treat it as an ordinary member.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.messages import Exit, Left, Ready
from elastrain.link import AgentLink

log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
"""Seconds from SIGTERM to SIGKILL, for an orderly end of the program."""
BLAME_SECONDS = 5.0
"""Seconds beyond the lease's TTL that a failed program waits for the report of a lost peer, which would explain the
failure. Without a report the failure is its own."""


class Keeper:
    """Runs in the main thread. Everything that happens arrives in one queue.

    A subclass says what it does with a message (:meth:`handle`), and how all its programs end (:meth:`stop`).
    """

    link: AgentLink

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """The agent's messages (None: the agent is gone; an error: no message can be read any more), and what the
        subclass adds."""
        self.blamed: tuple[int, float] | None = None
        """The exit code of a failure that nothing explains yet, and its time."""

    def keep(self, environ: Mapping[str, str]) -> int:
        """Run until the program has finished or failed, or the worker is to leave; returns the exit code.

        Raises ``RuntimeError`` if no agent started this process, or if its messages cannot be read.
        """
        self.link = link_to_agent(environ, self.inbox)
        with contextlib.closing(self.link), self.opened(environ) as port:
            self.link.start()
            self.link.send(Ready(store_port=port))
            try:
                return self._follow()
            finally:
                self.stop()

    def opened(self, environ: Mapping[str, str]) -> AbstractContextManager[int]:
        """What this worker offers to others while it is kept, as a port of its address; here a port that is free."""
        return contextlib.nullcontext(free_port(self.link.welcome.address))

    def handle(self, message: Any) -> int | None:
        """React to a message; returns the exit code if the keeper is to end."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all programs of this worker; does nothing if there is none."""
        raise NotImplementedError

    @property
    def patience(self) -> float:
        """Seconds that a failure waits for the report of a lost peer."""
        return self.link.welcome.lease_ttl + BLAME_SECONDS

    def _follow(self) -> int:
        while True:
            try:
                wait = None if self.blamed is None else max(0.0, self.blamed[1] + self.patience - time.monotonic())
                message = self.inbox.get(timeout=wait)
            except queue.Empty:
                assert self.blamed is not None
                return self.blamed[0]
            match message:
                case Exit(reason=reason):
                    log.info("leaving the job", reason=reason)
                    self.stop()
                    self.link.send(Left(step=0))
                    return 0
                case Exception():
                    raise message
                case None:
                    return names.EXIT_INFRASTRUCTURE  # the agent that could report it is gone
                case _ if (code := self.handle(message)) is not None:
                    return code


def link_to_agent(environ: Mapping[str, str], inbox: queue.SimpleQueue[Any]) -> AgentLink:
    """This process's connection to its agent, as the worker's only rank; not started.

    Raises ``RuntimeError`` if no agent started this process.
    """
    path = environ.get(names.ENV_AGENT_SOCKET)
    if not path:
        raise RuntimeError(
            f"${names.ENV_AGENT_SOCKET} is not set, so no agent started this process. "
            "Run it by 'elastrain run job.yaml', or on a cluster by 'kubectl apply -f job.yaml'."
        )
    return AgentLink(path, 0, inbox.put)


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


def command_of(arguments: Sequence[str], module: str) -> list[str]:
    """The command in the arguments of one of these modules. Ends the process if there is none."""
    command = [*arguments[1:]] if arguments[:1] == ["--"] else [*arguments]
    if not command:
        sys.stderr.write(f"usage: python -m elastrain_launchers.{module} [--] CMD...\n")
        sys.exit(names.EXIT_USAGE)
    return command
