"""How a rank is started: by a fork of a process that has already imported torch, or by executing its command.

The training script must not be able to distinguish a fork from an execution. If a command does not guarantee that (a
shell, another interpreter, flags that change what the interpreter does before or after the script), it is executed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastrain.api import names

_PLAIN_FLAGS = frozenset("bBdEIOPqRsu")
"""Flags of the interpreter that are passed to the zygote's interpreter."""
_FLAGS_WITH_VALUE = frozenset("WX")
_OBSERVERS = ("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")
"""Variables that make the interpreter report on its own work or wait for input; a fork would report less."""


@dataclass(frozen=True, slots=True)
class Forked:
    """Start ranks by fork."""

    command: list[str]
    interpreter: list[str]
    """The command's first words: the interpreter as given, and its flags."""
    target: str
    """The path of a script, or the name of a module."""
    is_module: bool
    arguments: list[str]
    """The remaining arguments: ``sys.argv[1:]``."""


@dataclass(frozen=True, slots=True)
class Executed:
    """Start ranks by executing the command."""

    why: str


NO_ZYGOTE = Executed("no zygote was started")


def plan_start(command: Sequence[str], environ: Mapping[str, str], *, own_interpreter: bool) -> Forked | Executed:
    """How to start ``command`` in the environment ``environ``. Pure.

    ``own_interpreter``: whether ``command[0]`` is the Python that runs the agent (:func:`is_own_interpreter`).
    """
    if (switch := environ.get(names.ENV_FORK_RANKS) or "on") != "on":
        return Executed(f"{names.ENV_FORK_RANKS}={switch}")
    if not own_interpreter:
        return Executed(f"{command[0]!r} is not the Python that runs the agent")
    words = list(command[1:])
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] != "-":
        read = _read_option(words)
        if isinstance(read, Executed):
            return read
        used, module = read
        if module is not None:
            plan = Forked([*command], [command[0], *flags], module, True, words[used:])
            break
        flags += words[:used]
        words = words[used:]
    else:
        if not words or not words[0].endswith(".py"):
            what = f"{words[0]!r} is not a .py file" if words else "it names no script"
            return Executed(f"{what}; only scripts and modules (-m) can be forked")
        plan = Forked([*command], [command[0], *flags], words[0], False, words[1:])
    observer = next((name for name in _OBSERVERS if environ.get(name)), None)
    return Executed(f"{observer} is set") if observer else plan


def _read_option(words: list[str]) -> tuple[int, str | None] | Executed:
    """The number of words of the option ``words[0]``, and the module if it is ``-m``. As in the interpreter, letters
    can be combined, and the value of the last one is in the same word or in the next."""
    word = words[0]
    for place, letter in enumerate(word[1:], start=2):
        if letter in _PLAIN_FLAGS:
            continue
        value, used = (word[place:], 1) if word[place:] else (words[1] if len(words) > 1 else "", 2)
        if letter == "m" and value:
            # Flags before the m in the same word ("-um") would be lost; they are rare, so the command is executed.
            return (used, value) if place == 2 else Executed(f"flag {word!r} of the interpreter")
        if letter in _FLAGS_WITH_VALUE and value and not value.startswith("importtime"):
            return used, None
        return Executed(f"flag {word!r} of the interpreter")
    return 1, None


def is_own_interpreter(program: str, environ: Mapping[str, str]) -> bool:
    """Whether ``program``, as found on ``PATH``, is the Python that runs this process: the same file in the same
    environment (every virtual environment has a link to the same file)."""
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None or not sys.executable:
        return False
    ours, theirs = Path(sys.executable), Path(found)
    return ours.parent.resolve() == theirs.parent.resolve() and ours.resolve() == theirs.resolve()


def first_path_entry(plan: Forked) -> str:
    """``sys.path[0]`` of the rank: a script's own directory, links followed; for a module the working directory."""
    return os.getcwd() if plan.is_module else os.path.dirname(os.path.realpath(plan.target))  # noqa: PTH109, PTH120


def rank_environment(base: Mapping[str, str], local_rank: int, nproc: int, socket_path: Path) -> dict[str, str]:
    """The environment of a rank. Pure.

    Variables that describe a fixed world (``RANK``, ``WORLD_SIZE``, ``MASTER_*``) are removed: the generation
    determines them, and a stale value would mislead its readers.
    """
    fixed_world = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", names.ENV_JOINED}
    env = {k: v for k, v in base.items() if k not in fixed_world}
    env[names.ENV_AGENT_SOCKET] = str(socket_path)
    env[names.ENV_LOCAL_RANK] = str(local_rank)
    env["LOCAL_WORLD_SIZE"] = str(nproc)
    env.setdefault("PYTHONUNBUFFERED", "1")  # output goes through a pipe: lines must not wait for a full buffer
    if nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does: ranks of one node would compete for its cores
    return env
