"""Ranks as forks of a zygote: indistinguishable from executed ones; if the zygote fails, they are executed."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

AGENT = Path(__file__).with_name("forking_agent.py")
LOOK = """
import json, os, random, signal, sys
from pathlib import Path
def read(name): return Path("/proc/self", name).read_bytes()
def of_interest(line):  # SigQ counts the signals of all processes of this user
    return line.startswith((b"Sig", b"Shd", b"Threads", b"NoNewPrivs")) and not line.startswith(b"SigQ")
look = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "executable": sys.executable, "flags": sys.flags,
    "name": __name__, "file": __file__, "package": __package__, "globals": sorted(globals()),
    "main": sys.modules["__main__"].__dict__ is globals(), "environment": dict(os.environ), "cwd": os.getcwd(),
    "stdin": sys.stdin.read(), "buffers": [sys.stdout.write_through, sys.stderr.write_through],
    "files": sorted(os.listdir("/proc/self/fd")), "leads": os.getsid(0) == os.getpgrp() == os.getpid(),
    "cmdline": read("cmdline").decode().rstrip("\\0"), "comm": read("comm").decode(),
    "status": [line.decode() for line in read("status").splitlines() if of_interest(line)],
    "interrupt": str(signal.getsignal(signal.SIGINT)), "parent": os.getppid() == int(Path("agent").read_text()),
}
print(json.dumps(look))
"""
ENDS = """
import atexit, os, sys
atexit.register(print, "at exit")
print("out")
def inner(): {}["key"]
match int(os.environ["LOCAL_RANK"]):
    case 0: sys.exit(3)
    case 1: sys.exit("what went wrong")
    case 2:
        try: inner()
        except KeyError as error: raise ValueError("too bad") from error
    case 3: raise KeyboardInterrupt
    case 4: os.kill(os.getpid(), 11)
    case 5: sys.excepthook = lambda *_: print("the script's own hook", file=sys.stderr); inner()
    case 6:
        class Odd(BaseException): pass
        raise Odd
"""


class Agent:
    def __init__(self, directory: Path, log: Path, asked: dict) -> None:
        self._log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(AGENT), json.dumps(asked)],
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                bufsize=1,
            )
        self.zygote: int | None = self._answer()["zygote"]

    def _answer(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log
        return json.loads(line)

    def tell(self, word: str) -> dict:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        return self._answer()

    def start(self) -> list[int]:
        return self.tell("start")["pids"]

    def reap(self) -> list[dict]:
        return self.tell("reap")["ended"]

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def agent(tmp_path) -> Iterator[Callable[..., Agent]]:
    """``agent("train.py", "x", code=..., preload=["torch"], NAME=value)``: started in ``tmp_path``, where ``train.py``
    is."""
    agents: list[Agent] = []

    def start(
        *words: str,
        code: str,
        nproc: int = 1,
        preload: tuple[str, ...] = (),
        warm_seconds: float = 60,
        fork_seconds: float = 20,
        **variables: str,
    ) -> Agent:
        (tmp_path / "train.py").write_text(code)
        asked = {
            "command": [sys.executable, *words],
            "nproc": nproc,
            "preload": preload,
            "warm_seconds": warm_seconds,
            "fork_seconds": fork_seconds,
            "variables": {"ELASTRAIN_FORK_RANKS": "on", **variables},
        }
        agents.append(Agent(tmp_path, tmp_path / f"{len(agents)}.log", asked))
        return agents[-1]

    yield start
    for a in agents:
        a.process.kill()
        a.process.communicate()


def gone(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 10)[0])


@pytest.mark.parametrize(
    "words", [["./train.py", "--lr", "1"], ["-u", "-m", "train", "-x"], ["-I", "-Wdefault", "train.py", "x" * 2000]]
)
def test_a_fork_sees_what_an_executed_rank_sees(agent, words, tmp_path):
    looks = []
    for fork in ("on", "off"):
        a = agent(*words, code=LOOK, ELASTRAIN_FORK_RANKS=fork)
        (tmp_path / "agent").write_text(str(a.process.pid))
        a.start()
        (ended,) = a.reap()
        assert ended["code"] == 0, ended["log_tail"]
        looks.append(json.loads(ended["log_tail"]))
        del looks[-1]["environment"]["ELASTRAIN_FORK_RANKS"]
        assert (a.zygote is not None) == (fork == "on")
    assert looks[0] == looks[1]
    assert looks[0]["parent"] and looks[0]["leads"]


def test_a_fork_ends_as_an_executed_rank_ends(agent):
    forked, executed = (agent("train.py", code=ENDS, nproc=7, ELASTRAIN_FORK_RANKS=fork) for fork in ("on", "off"))
    for a in (forked, executed):
        a.start()
    assert forked.zygote and not executed.zygote
    ends, others = forked.reap(), executed.reap()
    for end in (*ends, *others):  # the two streams are two pipes: their relative order is random
        end["log_tail"] = sorted(end["log_tail"].splitlines())
    assert ends == others
    assert [(e["code"], e["signal"]) for e in ends] == [(3, 0), (1, 0), (1, 0), (0, 2), (0, 11), (1, 0), (1, 0)]


def test_a_fork_frees_at_its_end_what_an_executed_rank_frees(agent, tmp_path):
    """Libraries print what is left then: behind the traceback of a failed script, and in place of its reason."""
    freed = "def __del__(self, write=__import__('os').write): write(1, b'freed\\n')"
    cycle = f"class Kept:\n    {freed}\none = Kept()\none.other = one\n"
    (tmp_path / "heavy.py").write_text(cycle)
    preloaded, code = ("torch", "torch._dynamo", "heavy"), "import torch, torch._dynamo, heavy\n{}['key']"
    ends = []
    for fork in ("on", "off"):
        a = agent("train.py", code=code, preload=preloaded, ELASTRAIN_FORK_RANKS=fork, PYTHONUNBUFFERED="1")
        a.start()
        ends += a.reap()
        ends[-1]["log_tail"] = sorted(ends[-1]["log_tail"].splitlines())
    assert ends[0] == ends[1]
    assert "freed" in ends[0]["log_tail"] and not any("leaked" in line for line in ends[0]["log_tail"])


@pytest.mark.parametrize(
    ("words", "code"), [(["train.py"], "def f(:\n    pass\n"), (["no-such.py"], ""), (["-m", "no_such"], "")]
)
def test_a_fork_reports_a_script_that_cannot_run_as_the_interpreter_does(agent, words, code):
    tails = []
    for fork in ("on", "off"):
        a = agent(*words, code=code, ELASTRAIN_FORK_RANKS=fork)
        a.start()
        tails += a.reap()
    assert tails[0] == tails[1]
    assert tails[0]["code"] in (1, 2)


def test_every_fork_draws_different_random_numbers(agent):
    code = (
        "import torch, numpy, random, os, multiprocessing\n"
        "assert torch.get_num_threads() == 2\n"
        "a = numpy.ones((300, 300)); assert (a @ a)[0, 0] == 300  # OpenBLAS has to start its threads again\n"
        "assert float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()) == 300 ** 3\n"
        "print(float(torch.rand(1)), numpy.random.rand(), random.random(), multiprocessing.current_process().authkey)"
    )
    a = agent("train.py", code=code, nproc=2, preload=("torch",), OMP_NUM_THREADS="2")
    a.start()
    ends = a.reap()
    assert [e["code"] for e in ends] == [0, 0], ends
    first, second = (e["log_tail"].split(maxsplit=3) for e in ends)
    assert all(x != y for x, y in zip(first, second, strict=True))
    assert "how=forked" in a.log


def test_zygote_and_ranks_die_with_their_agent(agent):
    a = agent("train.py", code="import time; time.sleep(600)")
    watched = [os.pidfd_open(pid) for pid in [*a.start(), a.zygote]]
    a.process.kill()
    assert all(gone(pidfd) for pidfd in watched)
    for pidfd in watched:
        os.close(pidfd)


def test_the_next_ranks_are_executed_if_the_zygote_is_killed(agent):
    a = agent("train.py", code="print('hello')")
    a.start()
    assert a.reap()[0]["log_tail"] == "hello"
    os.kill(a.zygote, signal.SIGKILL)
    a.start()
    assert a.reap()[0]["log_tail"] == "hello"
    first, _, second = a.log.partition("ranks are executed")
    assert "how=forked" in first
    assert "the zygote ended" in second
    assert "how=executed" in second


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True, name='mine').start()",
            "mine",
        ),
        ("raise RuntimeError('no licence')", "no licence"),
    ],
)
def test_ranks_are_executed_if_a_preloaded_module_prevents_a_fork(agent, tmp_path, module, why):
    (tmp_path / "heavy.py").write_text(module)
    a = agent("train.py", code="print('hello')", ELASTRAIN_PRELOAD=" heavy,")
    a.start()
    assert a.reap()[0]["log_tail"] == "hello"
    assert why in a.log
    assert "how=executed" in a.log


def test_ranks_are_executed_if_the_zygote_does_not_answer(agent):
    a = agent("train.py", code="print('hello')", fork_seconds=0.3)
    a.start()
    a.reap()
    os.kill(a.zygote, signal.SIGSTOP)
    a.start()
    assert a.reap()[0]["log_tail"] == "hello"
    assert "did not answer within 0.3 s" in a.log


def test_ranks_are_executed_if_the_imports_take_too_long(agent, tmp_path):
    os.mkfifo(tmp_path / "never")
    (tmp_path / "heavy.py").write_text("open('never').read()")
    a = agent("train.py", code="print('hello')", warm_seconds=0.3, ELASTRAIN_PRELOAD="heavy")
    a.start()
    assert a.reap()[0]["log_tail"] == "hello"
    assert "imports took longer than 0.3 s" in a.log


def test_ranks_that_wait_for_the_zygote_can_be_killed(agent, tmp_path):
    os.mkfifo(tmp_path / "never")
    (tmp_path / "heavy.py").write_text("open('never').read()")
    a = agent("train.py", code="print('hello')", nproc=2, ELASTRAIN_PRELOAD="heavy")
    assert a.tell("start and kill") == {"pids": []}
    assert [(e["code"], e["signal"]) for e in a.reap()] == [(0, signal.SIGTERM)] * 2


@pytest.mark.parametrize(
    ("opened", "calls_cuda"),
    [
        (["/dev/null"], False),
        (["/dev/null", "/dev/nvidiactl", "/dev/nvidia0"], False),  # NVML, which is harmless for forks
        (["/dev/nvidiactl", "/dev/nvidia-uvm"], True),
    ],
)
def test_no_rank_is_forked_once_cudas_driver_was_called(opened, calls_cuda, tmp_path):
    from elastrain.agent.process.zygote import _has_called_cuda

    for number, name in enumerate(opened):
        (tmp_path / str(number)).symlink_to(name)
    assert _has_called_cuda(tmp_path) is calls_cuda
