"""The termination records of a worker, one for each way to end. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from elastrain import hints, tracebacks
from elastrain.agent.core.events import RankExited
from elastrain.agent.core.hardware import why_infrastructure
from elastrain.api.names import DIVERGED, EXIT_FINISHED, EXIT_INFRASTRUCTURE
from elastrain.api.records import Outcome, Termination

RECORD_BYTES = 4096
"""Largest part of a termination log that Kubernetes reads."""
MESSAGE_CHARS = 600
TAIL_BYTES = 3000


def finished(step: int, message: str = "") -> Termination:
    """Training is complete."""
    return Termination(outcome=Outcome.FINISHED, step=step, exit_code=EXIT_FINISHED, message=message)


def drained(step: int, message: str = "") -> Termination:
    """The worker left as planned."""
    return Termination(outcome=Outcome.DRAINED, step=step, exit_code=EXIT_FINISHED, message=message)


def script_failed(
    step: int, exited: RankExited, rank: int | None, known: str = "", diverged_by: str = ""
) -> Termination:
    """The training script of a rank ended with an error, its own or the machine's (:mod:`.hardware`).

    ``known``: the error as the rank has reported it, if it has. ``diverged_by``: how it differs from its peers, if so.

    A signal that has ended such a rank is this agent's, and says nothing of the cause.
    """
    if diverged_by:
        return diverged(step, diverged_by, rank, exited.log_tail)
    line = error_line(exited.log_tail, known) or f"the training script exited with {exited.code}"
    machine = why_infrastructure(exited.log_tail)
    ended = replace(exited, code=EXIT_INFRASTRUCTURE if machine else exited.code or 1, signal=0)
    return _failed(step, ended, rank, reason=machine or "ScriptFailed", message=line)


def diverged(step: int, message: str, rank: int | None = None, log_tail: str = "") -> Termination:
    """Ranks have done different things: the job fails, and no worker trains on."""
    return Termination(
        outcome=Outcome.FAILED,
        step=step,
        exit_code=1,
        rank=rank,
        reason=DIVERGED,
        message=message,
        log_tail=log_tail,
    )


def job_over(step: int, diverged_by: str, message: str = "") -> Termination:
    """No further generation is formed: training is complete, or ranks have diverged."""
    return diverged(step, diverged_by) if diverged_by else finished(step, message)


def rank_killed(step: int, exited: RankExited, rank: int | None, leaving: bool) -> Termination:
    """A signal killed a rank, and it is not restarted."""
    name = signal_name(exited.signal)
    if leaving:
        return drained(step, f"local rank {exited.local_rank} was killed by {name} while leaving")
    hint = " (the kernel does this when memory runs out)" if exited.signal == signal.SIGKILL else ""
    message = f"local rank {exited.local_rank} was killed by {name} repeatedly{hint}; no restarts are left"
    return _failed(step, exited, rank, reason="RankKilled", message=message)


def rank_stuck(step: int, exited: RankExited, rank: int | None, hung: str) -> Termination:
    """A rank hung repeatedly, was killed each time, and is not restarted."""
    message = f"{hung} while others waited for it, repeatedly; no restarts are left (its stacks are in the log)"
    return _failed(step, exited, rank, reason="RankStuck", message=message)


def _failed(step: int, exited: RankExited, rank: int | None, *, reason: str, message: str) -> Termination:
    """``rank``: the global one. The exit code is that of a shell: 128 + the signal that killed the rank."""
    return Termination(
        outcome=Outcome.FAILED,
        step=step,
        exit_code=128 + exited.signal if exited.signal else exited.code,
        signal=exited.signal,
        rank=rank,
        reason=reason,
        message=message,
        log_tail=exited.log_tail,
    )


def straggler(step: int, local_ranks: Sequence[int]) -> Termination:
    """Some ranks of the worker left the loop while others still wait in it."""
    return Termination(
        outcome=Outcome.FAILED,
        step=step,
        exit_code=1,
        reason="ScriptFailed",
        message=f"another rank of this worker left the training loop and exited, but local ranks {list(local_ranks)} "
        "still wait in it; all ranks must leave the loop at the same step",
    )


def infrastructure(reason: str, message: str, step: int = 0) -> Termination:
    """The agent could not continue, for a reason outside the script."""
    return Termination(outcome=Outcome.FAILED, step=step, exit_code=EXIT_INFRASTRUCTURE, reason=reason, message=message)


def usage(message: str, exit_code: int) -> Termination:
    """The worker was started with invalid settings or a command that cannot be run."""
    return Termination(outcome=Outcome.FAILED, exit_code=exit_code, reason="Usage", message=message)


def encode(termination: Termination) -> bytes:
    """JSON of less than ``RECORD_BYTES`` bytes: the oldest part of the log is cut, then the end of the message."""
    message = termination.message[:MESSAGE_CHARS]
    tail = termination.log_tail.encode()[-TAIL_BYTES:].decode(errors="ignore")
    while True:
        raw = termination.model_copy(update={"message": message, "log_tail": tail}).encode()
        if len(raw) < RECORD_BYTES:
            return raw
        # JSON escapes make some characters up to six bytes long: cut by the excess, at least one character.
        excess = len(raw) - RECORD_BYTES + 1
        if tail:
            tail = tail[max(1, excess // 6) :]
        else:
            message = message[: -max(1, excess // 6)]


def error_line(log: str, known: str = "") -> str:
    """The exception that ended the process, its place in the script and elastrain's hint, from a Python traceback.

    The place is the innermost one outside of installed packages. Without a traceback, ``known`` or the last line.

    >>> error_line('Traceback (most recent call last):\\n  File "/a/t.py", line 3, in f\\n    x\\nKeyError: 1\\nbye')
    'KeyError: 1 (/a/t.py:3 in f)'
    """
    lines = tracebacks.lines_of(log)
    start = tracebacks.start_of_error(lines)
    if start < 0:
        return known or next((line.strip() for line in reversed(lines) if line.strip()), "")
    where = in_package = ""
    for number, line in enumerate(lines[start + 1 :], start + 1):
        if found := re.match(r'\s+File "(.+)", line (\d+), in (.+)', line):
            place = f" ({found[1]}:{found[2]} in {found[3]})"
            where, in_package = (where, place) if _INSTALLED.search(found[1]) else (place, in_package)
        elif line and not line[0].isspace():
            hint = next((text for text in lines[number + 1 :] if text.startswith(hints.PREFIX)), hints.line_for(line))
            return line.strip() + (where or in_package) + (f"; {hint}" if hint else "")
    return "an exception whose message was not logged" + (where or in_package)


_OWN = re.escape(str(Path(hints.__file__).parent))
_INSTALLED = re.compile(rf"/(site|dist)-packages/|/lib/python3\.\d+/|^<frozen |^{_OWN}(_\w+)?/")
"""Files of the interpreter, of installed packages, and elastrain's own."""


def signal_name(signum: int) -> str:
    """The name of a signal, such as ``SIGKILL``; its number if it has none."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
