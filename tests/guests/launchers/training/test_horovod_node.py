"""The node of a Horovod worker between a scripted agent, a scripted launcher and real processes. Needs no Horovod."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from elastrain.api import messages as m
from elastrain.api import names
from elastrain.etcd import EtcdClient
from elastrain_launchers.horovod.channel import token_key
from elastrain_launchers.horovod.members import Members
from elastrain_launchers.horovod.nodes import Nodes
from elastrain_launchers.horovod.programs import Programs
from scripted_agent import ScriptedAgent, formed

ADDRESS = "127.0.0.1"
PATIENCE = 60
"""Seconds for a process to start, to write a line or to end: its imports take long where all cores are busy."""

PROGRAM = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
print(os.getpid(), os.environ["HOROVOD_RANK"], os.environ["HOROVOD_GLOO_IFACE"], file=(folder / "runs").open("a"))
while not (folder / "end").exists():
    time.sleep(0.01)
sys.exit(int((folder / "end").read_text()))
"""


class Side:
    """One worker's processes and the launcher's way to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens = {"a.0": "first"}
        self.ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.done = threading.Event()
        self.programs = Programs(
            [sys.executable, "-c", PROGRAM, str(folder)],
            1,
            ADDRESS,
            token_of=lambda launcher: self.tokens.get(launcher, ""),
            on_end=lambda code, by_itself: self.ended.put(code) if by_itself else None,
            on_done=self.done.set,
        )
        self.programs.obey("a.0")
        self.members = Members(1)
        self.members.replace({"b.0": (ADDRESS, self.programs.port)})
        self.stop = threading.Event()
        self.results: queue.SimpleQueue[int] = queue.SimpleQueue()

    def request(self, token: str = "first", **variables: str) -> threading.Thread:
        """As the launcher does it; its result arrives in ``results``."""
        nodes = Nodes("a.0", self.members, token)
        variables = {"HOROVOD_RANK": "0", **variables}
        run = lambda: self.results.put(nodes.run("b.0", 0, variables, [self.stop])[0])  # noqa: E731
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def runs(self) -> list[str]:
        path = self.folder / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def end(self, code: int) -> None:
        (self.folder / "end.tmp").write_text(str(code))
        (self.folder / "end.tmp").rename(self.folder / "end")


@pytest.fixture
def side(tmp_path):
    one = Side(tmp_path)
    yield one
    one.stop.set()
    one.programs.close()


def test_a_process_gets_horovods_variables_and_its_exit_code_reaches_launcher_and_node(side, eventually):
    side.request(HOROVOD_RANK="3")
    eventually(side.runs, what="the process to start")
    assert side.runs()[0].split()[1:] == ["3", "lo"]
    side.end(7)
    assert side.results.get(timeout=PATIENCE) == 7
    assert side.ended.get(timeout=PATIENCE) == 7


def test_a_killed_process_is_reported_by_its_signal(side, eventually):
    side.request()
    eventually(side.runs, what="the process to start")
    os.kill(int(side.runs()[0].split()[0]), signal.SIGKILL)
    assert side.results.get(timeout=PATIENCE) == -signal.SIGKILL


def test_nothing_starts_without_the_token(side):
    asks = side.request(token="guessed")
    with socket.create_connection((ADDRESS, side.programs.port)) as connection:
        connection.sendall(b"nonsense\n")
    side.members.replace({})  # the launcher gives up
    asks.join(PATIENCE)
    assert not side.runs() and side.programs.idle


def test_nothing_starts_by_a_launcher_that_is_not_the_first_members(side):
    side.programs.obey("c.0")
    side.tokens["c.0"] = "first"
    asks = side.request()
    side.members.replace({})
    asks.join(PATIENCE)
    assert not side.runs()


def test_a_launcher_may_not_set_other_variables(side):
    asks = side.request(LD_PRELOAD="evil.so")
    side.members.replace({})
    asks.join(PATIENCE)
    assert not side.runs()


def test_the_process_ends_if_the_launcher_hangs_up(side, eventually):
    side.request()
    eventually(side.runs, what="the process to start")
    side.stop.set()
    assert side.results.get(timeout=PATIENCE) == 1
    eventually(lambda: side.programs.idle, PATIENCE, "the process to end")
    assert side.ended.empty(), "an end by request is no failure"


def test_the_process_of_an_earlier_launcher_ends_if_the_next_one_asks(side, eventually):
    side.request()
    eventually(side.runs, what="the process to start")
    side.tokens["a.0"] = "second"
    side.request(token="second")
    eventually(lambda: len(side.runs()) == 2, PATIENCE, "the next launcher's process to start")
    first, second = (int(run.split()[0]) for run in side.runs())
    assert not psutil.pid_exists(first) and psutil.pid_exists(second)


def test_the_launcher_waits_while_the_node_is_paused(side, eventually):
    side.programs.pause(True)
    side.request()
    side.programs.pause(False)
    eventually(side.runs, PATIENCE, "the process to start")


def test_a_process_that_its_node_ended_is_lost_only_if_the_member_is_in_no_generation(side, eventually):
    """Else a launcher that is cut off from etcd would train on alone, beside the next generation."""
    side.request()
    eventually(side.runs, what="the process to start")
    side.programs.stop()
    side.programs.obey("c.0")
    eventually(lambda: side.programs.idle, PATIENCE, "the process to end")
    with pytest.raises(queue.Empty):
        side.results.get(timeout=1)
    side.members.replace({"a.0": (ADDRESS, 1)})
    assert side.results.get(timeout=PATIENCE) == 1


def test_a_process_that_its_node_ended_is_lost_if_the_node_still_obeys(side, eventually):
    side.request()
    eventually(side.runs, what="the process to start")
    side.programs.stop()
    side.programs.obey("a.0")
    assert side.results.get(timeout=PATIENCE) == 1


def test_nodes_are_told_when_training_is_complete(side):
    Nodes("a.0", side.members, "first").report_done()
    assert side.done.wait(PATIENCE)


# ---- the node between agent and launcher -----------------------------------------------------------------------------
LAUNCHER = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
print(os.getpid(), file=(folder / "launchers").open("a"))
for line in sys.stdin:
    if (folder / "code").exists():
        os._exit(int((folder / "code").read_text()))
    with (folder / "members").open("a") as members:
        members.write(line)
"""

NODE = """
import os, sys
from elastrain_launchers.horovod.node import Node
program, launcher = [sys.executable, sys.argv[2] + "/train.py", sys.argv[2]], [sys.executable, "-c", *sys.argv[1:]]
sys.exit(Node(program, 1, launcher).keep(os.environ))
"""


class Agent(ScriptedAgent):
    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(PROGRAM)
        super().__init__(folder, ["-c", NODE, LAUNCHER, str(folder)], **environment)

    def adopts(self, number: int, *workers: str, ended: tuple[int, ...] = ()) -> None:
        self.says(m.Proposed(generation=formed(number, *workers, ended=ended)))
        assert self.hears() == m.Adopted(generation=number, step=0)

    def lines(self, name: str, count: int) -> list[str]:
        """Lines of a file that the launchers write, once there are ``count``."""
        path, deadline = self.folder / name, time.monotonic() + PATIENCE
        while not path.exists() or path.read_text().count("\n") < count:
            assert time.monotonic() < deadline, f"fewer than {count} lines in {name}"
            time.sleep(0.01)
        return path.read_text().splitlines()

    def next_code(self, code: int) -> None:
        """The exit code of a launcher at the next generation."""
        (self.folder / "code").write_text(str(code))


@pytest.fixture
def agent(tmp_path):
    one = Agent(tmp_path, ELASTRAIN_ETCD_ENDPOINTS="127.0.0.1:1")
    yield one
    one.close()


@pytest.fixture
def environment(etcd, job_keys):
    """Of a worker of a job in a real etcd."""
    return {
        names.ENV_ETCD_ENDPOINTS: etcd.endpoint,
        names.ENV_NAMESPACE: job_keys.namespace,
        names.ENV_JOB: job_keys.job,
        names.ENV_JOB_UID: job_keys.uid,
    }


def test_a_leaver_has_left_the_generation_when_its_process_has_ended(environment, tmp_path, eventually):
    agent = Agent(tmp_path, **environment)
    with EtcdClient.from_environment(environment) as client:
        client.put(token_key(environment, "b.0"), b"secret")
    members, stop = Members(1), threading.Event()
    members.replace({"a.0": (ADDRESS, agent.ready.store_port)})
    nodes = Nodes("b.0", members, "secret")
    try:
        agent.adopts(1, "b", "a")
        threading.Thread(target=nodes.run, args=("a.0", 0, {"HOROVOD_RANK": "1"}, [stop]), daemon=True).start()
        process = int(agent.lines("runs", 1)[0].split()[0])
        agent.says(m.Proposed(generation=formed(2, "b")))
        threading.Timer(0.5, stop.set).start()  # Horovod removes it at the others' next commit
        assert agent.hears() == m.Adopted(generation=2, step=0)
        assert stop.is_set() and not psutil.pid_exists(process)
    finally:
        agent.close()


def test_the_launcher_outlives_generations_while_its_member_stays_the_first(agent):
    agent.adopts(1, "a")
    agent.adopts(2, "a", "b")
    agent.adopts(3, "a", "c", ended=(2,))
    members = [sorted(json.loads(line)) for line in agent.lines("members", 3)]
    assert members == [["a.0"], ["a.0", "b.0"], ["a.0", "c.0"]]
    assert len(agent.lines("launchers", 1)) == 1


def test_the_launcher_ends_if_another_member_is_the_first(agent, eventually):
    agent.adopts(1, "a", "b")
    launcher = int(agent.lines("launchers", 1)[0])
    agent.adopts(2, "b", "a")
    assert not psutil.pid_exists(launcher), "two launchers at once"


def test_the_worker_leaves_if_it_is_in_no_generation(agent):
    agent.adopts(1, "b", "a")
    agent.adopts(2, "b")
    agent.says(m.Exit(reason="target: Drain"))
    assert agent.hears() == m.Left(step=0)
    assert agent.process.wait(PATIENCE) == 0


def test_the_launcher_ends_if_its_worker_is_alone_and_may_not_go_on(agent, eventually):
    agent.adopts(1, "a")
    launcher = int(agent.lines("launchers", 1)[0])
    agent.says(m.Abort(generation=1, reason="etcd has not confirmed the lease for 2.0 s"))
    eventually(lambda: not psutil.pid_exists(launcher), PATIENCE, "the launcher to end")
    agent.adopts(2, "a")
    assert len(agent.lines("launchers", 2)) == 2


def test_the_job_has_finished_if_the_launcher_has(agent):
    agent.adopts(1, "a")
    agent.lines("members", 1)
    agent.next_code(0)
    agent.says(m.Proposed(generation=formed(2, "a", "b")))
    assert {agent.hears().type, agent.hears().type} == {"adopted", "finished"}
    assert agent.process.wait(PATIENCE) == 0


def test_a_failure_is_the_workers_if_nothing_explains_it(agent):
    agent.adopts(1, "a")
    agent.lines("members", 1)
    agent.next_code(7)
    agent.adopts(2, "a", "b")
    assert agent.process.wait(PATIENCE) == 7


def test_the_launcher_starts_again_if_a_lost_peer_explains_its_failure(agent, eventually):
    agent.adopts(1, "a", "b")
    launcher = int(agent.lines("launchers", 1)[0])
    agent.lines("members", 1)
    agent.next_code(7)
    agent.adopts(2, "a", "c")
    eventually(lambda: not psutil.pid_exists(launcher), PATIENCE, "the launcher to fail")
    (agent.folder / "code").unlink()
    agent.adopts(3, "a", ended=(2,))
    assert len(agent.lines("launchers", 2)) == 2
    assert agent.process.poll() is None


def test_the_launcher_starts_again_if_a_signal_ended_it(agent):
    agent.adopts(1, "a")
    agent.lines("members", 1)  # else the kill may come before the first one
    os.kill(int(agent.lines("launchers", 1)[0]), signal.SIGKILL)
    assert len(agent.lines("launchers", 2)) == 2
    assert json.loads(agent.lines("members", 2)[-1]).keys() == {"a.0"}


def test_the_remedy_is_named_if_a_worker_has_several_ranks(monkeypatch):
    from elastrain_launchers.horovod.node import Node

    with pytest.raises(RuntimeError, match=r"nprocPerNode: 4.*ELASTRAIN_HOROVOD_SLOTS=4"):
        Node(["true"], 1).keep({"LOCAL_WORLD_SIZE": "4"})
