"""Dependencies of members fail: etcd, name lookups, synchronized clocks. A healthy generation continues (promise 7)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest


def test_the_switch_completes_if_etcd_restarts_during_it(job) -> None:
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    pids = {w: job[w].rank_pid for w in "ab"}
    job.want(3)
    job.start("c")
    job.wait("the next generation to be proposed", lambda: job.generation().number > first)
    job.etcd.kill()
    job.etcd.start()
    job.together("a", "b", "c", after=first)
    verdict = job.verdict()
    assert {w: verdict.pids[w] for w in "ab"} == {w: (p,) for w, p in pids.items()}, "a rank restarted"


@pytest.mark.parametrize("seconds", [pytest.param(5, id="5s"), pytest.param(60, id="60s", marks=pytest.mark.nightly)])
def test_training_continues_if_etcd_is_away_and_a_kill_is_healed_afterwards(job, seconds) -> None:
    job.want(2)
    job.start("a", "b")
    first = job.together("a", "b")
    survivor = job["a"].rank_pid
    job.etcd.kill()
    end = time.monotonic() + seconds  # more than two TTLs: every lease has expired
    while time.monotonic() < end:
        job.steps(5)
    assert max(x["generation"] for x in job.commits()) == first  # an earlier generation may have had `a` alone
    job["b"].kill_rank()
    job.wait("a to see the loss, which nobody can tell it", lambda: "generation is broken" in job["a"].out())
    before = job.last_step()
    job.etcd.start()
    job.together("a", "b", after=first)
    verdict = job.verdict()
    assert verdict.pids["a"] == (survivor,), "the survivor's process changed"
    assert job.last_step() > before


CLOCK = """
import os, sys, time
shift, now, now_ns = float(os.environ["CLOCK_SHIFT"]), time.time, time.time_ns
def shifted():
    # gRPC hands absolute times to its C part, which reads the machine's clock by itself: the two must agree.
    grpc = sys._getframe(1).f_globals.get("__name__", "").startswith("grpc")
    return now() + (0 if grpc else shift)
time.time, time.time_ns = shifted, lambda: now_ns() + int(shift * 1e9)
with open(os.environ["CLOCK_SHOWN"], "w") as file:
    file.write(str(time.time()))
"""


@pytest.mark.nightly
def test_losses_are_found_and_healed_if_clocks_differ_by_an_hour(job) -> None:
    (job.folder / "site").mkdir()
    (job.folder / "site" / "sitecustomize.py").write_text(CLOCK)
    path = os.pathsep.join([str(job.folder / "site"), os.environ.get("PYTHONPATH", "")])
    job.want(3)
    for worker, shift in (("a", "3600"), ("b", "-3600"), ("c", "0")):
        job.start(worker, PYTHONPATH=path, CLOCK_SHIFT=shift, CLOCK_SHOWN=str(job.folder / f"{worker}.clock"))
    first = job.together("a", "b", "c")
    shown = {w: float((job.folder / f"{w}.clock").read_text()) for w in "abc"}
    assert shown["a"] > shown["c"] + 3000 > shown["b"] + 6000, "the clocks do not differ"
    job["b"].kill_rank()  # found by its agent
    second = job.together("a", "b", "c", after=first)
    job.want(2)
    job["a"].signal(signal.SIGKILL)  # the oldest, an hour ahead: found by its lease, and another leads
    job.together("b", "c", after=second)
    job.verdict()


class Nameserver:
    """A nameserver that never answers, and records the requested names."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.97", 53))
        self.questions: list[bytes] = []
        self._socket.settimeout(0.2)
        self._closing = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closing:
            with contextlib.suppress(TimeoutError):
                self.questions.append(self._socket.recv(512))

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._socket.close()


ASK = "import socket; socket.getaddrinfo('a.name.to.look.up', 80)"
WITHOUT_NAMES = """
mount --make-rprivate / && mount --bind {0}/resolv.conf /etc/resolv.conf &&
mount --bind {0}/hosts /etc/hosts && exec "$@"
"""


@pytest.fixture
def without_names(tmp_path: Path):
    """A nameserver that never answers, and a command prefix that allows no other one and no hosts file."""
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.97\noptions timeout:1 attempts:1\n")
    (tmp_path / "hosts").write_text("")
    prefix = ["unshare", "-m", "sh", "-c", WITHOUT_NAMES.format(tmp_path), "sh"]
    try:
        server = Nameserver()
    except PermissionError:
        pytest.skip("port 53 needs CAP_NET_BIND_SERVICE")
    try:
        asked = subprocess.run([*prefix, sys.executable, "-c", ASK], capture_output=True, check=False, text=True)
        if not server.questions:
            pytest.skip(f"no mount namespace of one's own here: {asked.stderr[-200:]}")
        server.questions.clear()
        yield server, prefix
    finally:
        server.close()


@pytest.mark.nightly
def test_no_name_is_looked_up_if_dns_is_gone(job, without_names) -> None:
    server, prefix = without_names
    job.want(2)
    script = Path(__file__).with_name("train_faults.py")
    job.start("a", "b", command=[*prefix, sys.executable, str(script), str(job.folder), "0.05"])
    first = job.together("a", "b")
    job["b"].signal(signal.SIGKILL)
    job.together("a", after=first)
    assert not server.questions, f"{len(server.questions)} lookups, such as {server.questions[0]!r}"
