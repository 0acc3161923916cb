"""The zygote: a process that has imported torch and waits; each rank is a fork of it.

``forker.py`` starts it with the rank's own interpreter, flags, environment, working directory and ``sys.path``, so that
it imports the same modules as the rank would. It has one thread and never uses a GPU. It imports only the standard
library: its own imports would also be the rank's.

A rank must be the agent's own child (exit code, signal, death with the agent), so the zygote forks twice: the process
in the middle ends at once, and the kernel reparents the orphan to the nearest subreaper, which is the agent.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import types
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from elastrain.api.names import ENV_VERIFY
from elastrain.tether import EXIT_LATE, die_with_parent

READY = b"ready"
REFUSED = b"refused: "
"""Followed by the reason, for the agent's log."""
GO = b"go"
"""From the agent to a new rank that has sent its pid: the rank may start."""
BOOT = "import sys; sys.flags.safe_path or sys.path.__setitem__(0, sys.argv[1]); {}".format(
    "from elastrain.agent.process.zygote import main; main()"
)
"""The program for the interpreter (``-c``). It corrects the path before any import."""
PRELOAD = ("torch", "torch._dynamo", "elastrain.elastic")
"""``import torch`` leaves out ``torch._dynamo``, but the first optimizer imports it, which takes as long again."""
PRELOAD_FOR_CHECKPOINTS = ("elastrain.elastic.checkpoint.dcp",)

_PR_SET_NAME = 15
_ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_MAX_MESSAGE = 1 << 16


class CannotFork(RuntimeError):
    """A fork of this process would differ from a fresh process."""


@dataclass(frozen=True, slots=True)
class Job:
    """The program of every rank; the zygote's one argument, as JSON."""

    agent: int
    """Pid of the agent: the parent of this process and of every rank."""
    channel: int
    """File descriptor of the socket to the agent, which preserves message boundaries."""
    command: list[str]
    target: str
    is_module: bool
    arguments: list[str]
    preload: list[str]


def main() -> None:
    """Import, report, and fork a rank for every request until the agent closes the channel.

    It also returns in each rank, after the rank's script has ended.
    """
    job = Job(**json.loads(sys.argv[2]))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent handles Ctrl-C at a terminal: it drains
    die_with_parent(signal.SIGKILL, job.agent)
    _be_called(["elastrain-zygote"])
    channel = socket.socket(fileno=job.channel)
    channel.set_inheritable(False)
    try:
        _import(job.preload)
        _settle()
    except Exception as error:
        channel.send(REFUSED + f"{type(error).__name__}: {error}".encode()[:1000])
        raise
    channel.send(READY)
    if _serve(channel, job):
        signal.signal(signal.SIGINT, interrupt)
        _run(job)


# ---- before the forks ----------------------------------------------------------------------------------------------
def _import(modules: list[str]) -> None:
    gc.disable()  # imports create little garbage: collections took a fifth of their time
    # A module may call torch.cuda.is_available() on import: this variable keeps torch from using CUDA's driver.
    unset = _ASK_NVML not in os.environ
    os.environ.setdefault(_ASK_NVML, "1")
    for module in modules:
        importlib.import_module(module)
    if unset:
        del os.environ[_ASK_NVML]
    gc.enable()


def _settle() -> None:
    """Prepare this process for forks. Raises :class:`CannotFork`."""
    # OpenBLAS starts threads when it is loaded, and ends them before a fork: a test fork shows which threads remain.
    # These might hold a lock that is never released in a fork.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(threads) > 1:
        names = [t.name for t in threading.enumerate()]
        raise CannotFork(f"the imported modules have started threads: {sorted(threads)}, of them Python's: {names}")
    if (torch := sys.modules.get("torch")) is not None and (torch.cuda.is_initialized() or _has_called_cuda()):
        raise CannotFork("the imported modules have initialised CUDA, which a fork cannot use")
    gc.collect()
    gc.freeze()  # a collection in a rank then does not touch, and so copy, shared pages


def _has_called_cuda(descriptors: Path = Path("/proc/self/fd")) -> bool:
    """Whether CUDA's driver is in use, by a file that only the driver opens.

    torch does not count ``torch.cuda.is_available()`` as an initialisation of CUDA, but the driver does, and is then
    unusable in a fork.
    """
    for descriptor in descriptors.iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed by now
            if os.readlink(descriptor) == "/dev/nvidia-uvm":  # noqa: PTH115 - only the name is needed
                return True
    return False


# ---- the fork ------------------------------------------------------------------------------------------------------
def _serve(channel: socket.socket, job: Job) -> bool:
    """Wait for requests. True in a new rank, False when the agent has closed the channel."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _MAX_MESSAGE, 3)
        if not request:
            return False
        if _fork_orphan():
            channel.close()
            out, err, agent = descriptors
            _become_rank(job, json.loads(request), out, err, socket.socket(fileno=agent))
            return True
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_orphan() -> bool:
    """Fork a grandchild. Returns True in it, once it has been orphaned."""
    sys.stdout.flush()
    sys.stderr.flush()
    orphaned, hold = os.pipe()
    middle = os.fork()
    if middle:
        os.close(orphaned)
        os.waitpid(middle, 0)
        os.close(hold)
        return False
    try:
        if os.fork():
            os._exit(0)
    except OSError as error:
        os.write(2, f"elastrain: no process for a rank: {error.strerror}\n".encode())
        os._exit(1)
    os.close(hold)
    os.read(orphaned, 1)  # until the process in the middle was reaped, and its child reparented
    os.close(orphaned)
    return True


def _become_rank(job: Job, variables: dict[str, str], out: int, err: int, agent: socket.socket) -> None:
    """Set this process up as an execution would; returns when the agent has acknowledged it."""
    os.setsid()
    die_with_parent(signal.SIGKILL, job.agent)
    with agent:
        try:
            agent.send(str(os.getpid()).encode())
            known = agent.recv(len(GO)) == GO
        except OSError:
            known = False
        if not known:  # the agent has abandoned this start
            os._exit(EXIT_LATE)
    for descriptor, number in ((out, 1), (err, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(variables)
    _be_called(job.command)
    _reseed()
    atexit.register(gc.unfreeze)  # libraries report what the interpreter leaves at its end as leaks


def _be_called(command: list[str]) -> None:
    """Show the command in ``ps`` as if it had been executed: a search for the script's name must find its ranks, but
    not the zygote. The new words overwrite the old ones; :func:`padding` has made room for them."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, os.path.basename(command[0]).encode()[:15], 0, 0, 0)  # noqa: PTH119
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: proc(5), fields 48 and 49
    words = b"\0".join(os.fsencode(word) for word in command)
    if 0 < len(words) < end - start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, words, len(words))


def _reseed() -> None:
    """Reseed all generators that a fresh process seeds randomly. (``random`` reseeds itself.)

    In the runs of ``elastrain verify`` all processes begin alike.
    """
    seed = 0 if ENV_VERIFY in os.environ else None
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.seed() if seed is None else torch.manual_seed(seed)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(seed)
    if seed is not None and (python_random := sys.modules.get("random")) is not None:
        python_random.seed(seed)
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.current_process().authkey = os.urandom(32)


# ---- the script ----------------------------------------------------------------------------------------------------
def _run(job: Job) -> None:
    """Run the script or module as ``__main__``. Raises the exceptions that the interpreter handles: ``SystemExit``."""
    sys.orig_argv = list(job.command)
    sys.argv = ["-m" if job.is_module else job.target, *job.arguments]
    scope = sys.modules["__main__"] = types.ModuleType("__main__")
    scope.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    try:
        if job.is_module:
            run_module: Any = runpy._run_module_as_main  # type: ignore[attr-defined] # what `python -m` itself calls
            run_module(job.target)
        else:
            _run_script(job.target, scope)
    except SystemExit:
        raise
    except BaseException as error:
        _report(error)


def _run_script(target: str, scope: types.ModuleType) -> None:
    path = os.path.join(os.getcwd(), target)  # noqa: PTH109, PTH118 - not normalized, as in the interpreter
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    scope.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    exec(compile(source, path, "exec", dont_inherit=True), scope.__dict__)  # noqa: S102 - it is the user's own script


def _report(error: BaseException) -> NoReturn:
    """End as the interpreter does after an exception: its traceback, without elastrain's frames, and exit code 1."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    error.__traceback__ = traceback
    from elastrain.hints import add_hint  # after an error only: the rank imports what it would without a zygote

    add_hint(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, traceback
    sys.excepthook(type(error), error, traceback)
    if isinstance(error, KeyboardInterrupt):
        sys.excepthook = lambda *_: None
        raise error  # the interpreter then ends itself by SIGINT, as a shell expects
    sys.exit(1)


def padding(boot_words: list[str], command: list[str]) -> str:
    """An additional word for the zygote, so long that ``command`` fits over all words (:func:`_be_called`). Pure."""
    room = sum(len(os.fsencode(word)) + 1 for word in boot_words)
    needed = sum(len(os.fsencode(word)) + 1 for word in command)
    return "." * max(0, needed - room)
