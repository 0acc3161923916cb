"""The warm process: it has imported what programs import, and runs them as forks.

Run by :class:`elastrain_verify.forks.Warm` with the file descriptor of a socket, and the modules to import. A request
is JSON with two file descriptors: the program's output, and a socket that gets the pid and then the exit code. Without
descriptors it is the name of a further module. A fork equals an execution: own session, environment, working directory,
``sys.argv``. The zygote of an agent does the same, and its code is used here.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from elastrain.agent.process import forker, zygote
from elastrain.tether import die_with_parent


class ForkedZygote:
    """Replaces ``subprocess.Popen`` in an agent: the zygote is also a fork, with all imports done."""

    def __init__(self, words: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            boot = list(words).index("-c")
            settle(["-c", *words[boot + 2 :]], env, keep=pass_fds)
            sys.path[0] = words[boot + 2]
            end_after(zygote.main)  # it returns in a rank whose script has ended

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def end_after(program: Callable[[], None]) -> NoReturn:
    """Run ``program``, and end as the interpreter does, but without freeing what was imported: that touches all pages
    that the fork shares, and so takes 0.3 s of CPU time."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a broken pipe, or a stream that the program has closed
            stream.flush()
    os._exit(code & 0xFF)


def settle(argv: list[str], env: Mapping[str, str], keep: Sequence[int] = ()) -> None:
    """Become like a new process: no inherited descriptors, no signal handlers."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 - names are enough
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(descriptor)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = argv


def become(asked: dict[str, Any], out: int) -> Callable[[], None]:
    """Prepare a new fork; returns the function that runs the program."""
    os.setsid()
    die_with_parent(signal.SIGKILL, asked["server"])
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(asked["cwd"])
    command = asked["command"]
    settle(command[1:], asked["env"])
    is_module = command[1] == "-m"
    target, arguments = (command[2], command[3:]) if is_module else (command[1], command[2:])
    for folder in asked["env"].get("PYTHONPATH", "").split(os.pathsep):
        if os.path.exists(file := os.path.join(folder, "sitecustomize.py")):  # noqa: PTH110, PTH118
            runpy.run_path(file)  # a new interpreter would import it; forks of this process inherit its effect
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))  # noqa: PTH109, PTH120
    forker.subprocess = type("subprocess", (), {"Popen": ForkedZygote, "DEVNULL": -3})  # type: ignore[attr-defined, assignment]
    zygote._reseed()
    job = zygote.Job(os.getppid(), -1, command, target, is_module, arguments, [])
    return lambda: zygote._run(job)


def serve(channel: socket.socket) -> Callable[[], None] | None:
    """Fork for every request, and report every end, until the client disconnects. Returns the program in a fork."""
    children: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            while children and (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                with children.pop(ended[0]) as status:
                    status.send(str(os.waitstatus_to_exitcode(ended[1])).encode())
        if channel.fileno() in readable:
            request, descriptors, _, _ = socket.recv_fds(channel, 1 << 18, 2)
            if not request:
                return None
            if not descriptors:  # a module that the next forks have imported
                importlib.import_module(request.decode())
                channel.send(zygote.READY)
                continue
            out, status = descriptors[0], socket.socket(fileno=descriptors[1])
            pid = os.fork()
            if pid == 0:
                return become(json.loads(request), out)
            os.close(out)
            status.send(str(pid).encode())
            children[pid] = status


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)
    zygote._import(sys.argv[2:])
    zygote._settle()
    link.send(zygote.READY)
    if (program := serve(link)) is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_after(program)
    os._exit(0)  # to free what was imported takes 1 s of CPU time
