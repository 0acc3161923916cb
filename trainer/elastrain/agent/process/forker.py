"""The agent's side of its zygote (``zygote.py``): starts it first, requests ranks, and abandons it if it fails.

A failure here costs only time: the supervisor then executes the command.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum, auto
from pathlib import Path

from elastrain import threads
from elastrain.agent.process import zygote
from elastrain.agent.process.launch import (
    Executed,
    Forked,
    first_path_entry,
    is_own_interpreter,
    plan_start,
    rank_environment,
)
from elastrain.api import names

WARM_SECONDS = 300.0
"""Seconds for the imports. Ranks wait for them, as they would for their own; after this time ranks are executed. On a
starved machine or a slow disk imports take more than a minute, and executed ranks would repeat them."""
FORK_SECONDS = 5.0
"""Seconds for a fork, which takes 20 ms; the agent is blocked meanwhile."""
CLOSE_SECONDS = 1.0


class State(Enum):
    """The state of the zygote."""

    WARMING = auto()
    READY = auto()
    GONE = auto()


class ForkFailed(RuntimeError):
    """The zygote did not start a rank; the message names the cause."""


class Zygote:
    """A running zygote. For one thread, which must live as long as the ranks: the kernel binds the zygote's life to
    it."""

    def __init__(self, plan: Forked, environment: Mapping[str, str]) -> None:
        """Start it. ``environment``: common to all ranks, without rank-specific variables. Raises ``OSError``."""
        self.environment = dict(environment)
        self.state = State.WARMING
        self.why_gone = ""
        self._deadline = time.monotonic() + WARM_SECONDS
        self._waiter: threads.Thread | None = None
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                _words(plan, theirs.fileno(), environment),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def watch(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, from another thread, when the state may have changed (:meth:`refresh`)."""
        self._waiter = threads.start(self._wait, changed, name="zygote")

    def _wait(self, changed: Callable[[], None]) -> None:
        select.select([self._channel], [], [], max(0.0, self._deadline - time.monotonic()))
        changed()

    def refresh(self) -> State:
        """The present :attr:`state`. Does not block."""
        if self.state is not State.WARMING:
            return self.state
        try:
            said = self._channel.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if time.monotonic() >= self._deadline:
                self._give_up(f"the zygote's imports took longer than {WARM_SECONDS:g} s")
            return self.state
        except OSError as error:
            said = zygote.REFUSED + str(error.strerror).encode()
        if said == zygote.READY:
            self.state = State.READY
        else:  # it ends by itself and prints the traceback
            self.state = State.GONE
            reason = said.removeprefix(zygote.REFUSED).decode(errors="replace")
            self.why_gone = f"the zygote cannot be used: {reason or 'it ended while it imported'}"
        return self.state

    def fork(self, variables: Mapping[str, str], out: int, err: int) -> int:
        """Start a rank that writes to ``out`` and ``err``; returns the pid of the running child of this process.

        ``variables`` are added to the environment. Blocks for ``FORK_SECONDS`` at most. Raises :class:`ForkFailed`.
        """
        if self.state is not State.READY:
            raise ForkFailed(self.why_gone or "the zygote is not ready")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.settimeout(FORK_SECONDS)
            try:
                with theirs:
                    request = json.dumps(dict(variables)).encode()
                    socket.send_fds(self._channel, [request], [out, err, theirs.fileno()], socket.MSG_DONTWAIT)
                if pid := int(ours.recv(32) or 0):
                    ours.send(zygote.GO)
                    return pid
                why = "the zygote ended, or could not start a process"
            except TimeoutError:
                why = f"the zygote did not answer within {FORK_SECONDS:g} s"
            except OSError as error:
                why = f"the zygote ended: {error.strerror}"
        self._give_up(why)  # a rank forked too late ends by itself: it receives no GO
        raise ForkFailed(why)

    def reaped(self, pid: int, exit_code: int) -> bool:
        """Note that ``pid`` was reaped. Returns whether it was the zygote."""
        if pid != self._process.pid:
            return False
        self._process.returncode = exit_code
        self._give_up(f"the zygote ended with {exit_code}")
        return True

    def close(self) -> None:
        """End it. Ranks are not affected."""
        self._give_up("the zygote was ended")
        self._process.wait()
        if self._waiter is not None:
            self._waiter.join(CLOSE_SECONDS)
        self._channel.close()

    def _give_up(self, why: str) -> None:
        self._process.kill()
        if self.state is not State.GONE:
            self.state, self.why_gone = State.GONE, why


def launch(command: Sequence[str], environ: Mapping[str, str]) -> Zygote | Executed:
    """Start a zygote for ``command`` if its ranks can be forked. Returns at once."""
    plan = plan_start(command, environ, own_interpreter=is_own_interpreter(command[0], environ))
    if isinstance(plan, Executed):
        return plan
    try:
        environment = rank_environment(environ, 0, int(environ.get(names.ENV_NPROC) or 1), Path())
        for name in (names.ENV_AGENT_SOCKET, names.ENV_LOCAL_RANK):
            del environment[name]
        return Zygote(plan, environment)
    except (OSError, ValueError) as error:
        return Executed(f"no zygote: {error}")


def _words(plan: Forked, channel: int, environment: Mapping[str, str]) -> list[str]:
    asked = [module.strip() for module in environment.get(names.ENV_PRELOAD, "").split(",")]
    saves = '"checkpoint"' in environment.get(names.ENV_RANK_SETTINGS, "")  # not validated yet; a guess is enough here
    for_checkpoints = zygote.PRELOAD_FOR_CHECKPOINTS if saves else ()
    job = zygote.Job(
        agent=os.getpid(),
        channel=channel,
        command=plan.command,
        target=plan.target,
        is_module=plan.is_module,
        arguments=plan.arguments,
        preload=[*zygote.PRELOAD, *for_checkpoints, *(module for module in asked if module)],
    )
    boot = [*plan.interpreter, "-c", zygote.BOOT, first_path_entry(plan), json.dumps(asdict(job))]
    return [*boot, zygote.padding(boot, plan.command)]
