"""A program for each generation: the keeper between a scripted agent and a real program."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastrain.api import messages as m
from elastrain.api.records import Generation
from elastrain_launchers import keeper, mpi, restart, tensorflow
from scripted_agent import ScriptedAgent, formed

PROGRAM = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"], file=(folder / "runs").open("a"))
while not (folder / "end").exists():
    time.sleep(0.01)
sys.exit(int((folder / "end").read_text()))
"""


class Agent(ScriptedAgent):
    """The agent of a keeper that runs ``PROGRAM``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(folder, ["-m", "elastrain_launchers.restart", sys.executable, "-c", PROGRAM, str(folder)])

    def runs(self, count: int) -> list[str]:
        """The programs' arguments, once ``count`` programs have started."""
        path, deadline = self.folder / "runs", time.monotonic() + 30
        while not path.exists() or path.read_text().count("\n") < count:
            assert time.monotonic() < deadline, f"fewer than {count} runs"
            time.sleep(0.01)
        return path.read_text().splitlines()

    def end(self, code: int) -> None:
        (self.folder / "end.tmp").write_text(str(code))
        (self.folder / "end.tmp").rename(self.folder / "end")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path)
    yield one
    one.close()


def test_the_program_restarts_in_each_generation_and_its_end_is_final(agent):
    assert agent.ready.type == "ready" and agent.ready.store_port
    agent.says(m.Proposed(generation=formed(1, "a")))
    assert agent.hears() == m.Adopted(generation=1, step=0)
    agent.runs(1)
    agent.says(m.Proposed(generation=formed(2, "b", "a")))
    assert agent.hears() == m.Adopted(generation=2, step=0)
    assert agent.runs(2) == ["0 1 9000", "1 2 9000"]
    agent.end(0)
    assert agent.hears() == m.Finished(step=0)
    assert agent.process.wait(30) == 0


def test_the_program_waits_for_a_generation_that_has_a_place_for_it(agent):
    agent.says(m.Proposed(generation=formed(1, "b")))
    assert agent.hears() == m.Adopted(generation=1, step=0)
    agent.says(m.Proposed(generation=formed(2, "a")))
    assert agent.hears() == m.Adopted(generation=2, step=0)
    assert agent.runs(1) == ["0 1 9000"]


def test_a_failure_is_the_peers_if_the_generation_is_over(agent):
    agent.says(m.Proposed(generation=formed(1, "a", "b")))
    agent.hears()
    agent.runs(1)
    agent.end(7)
    agent.says(m.Abort(generation=1, reason="worker b is gone"))
    (agent.folder / "end").unlink(missing_ok=True)
    agent.says(m.Proposed(generation=formed(2, "a")))
    assert agent.hears() == m.Adopted(generation=2, step=0)
    assert agent.runs(2)[-1] == "0 1 9000"


def test_a_failure_is_the_programs_own_if_nothing_explains_it(agent):
    agent.says(m.Proposed(generation=formed(1, "a")))
    agent.hears()
    agent.runs(1)
    agent.end(7)
    assert agent.process.wait(30) == 7


def test_the_program_is_ended_if_the_worker_is_to_leave(agent):
    agent.says(m.Proposed(generation=formed(1, "a")))
    agent.hears()
    agent.runs(1)
    agent.says(m.Exit(reason="target: Drain"))
    assert agent.hears() == m.Left(step=0)
    assert agent.process.wait(30) == 0


def test_the_remedy_is_named_if_there_is_no_agent():
    with pytest.raises(RuntimeError, match="elastrain run job"):
        restart.Restarted(lambda world: (["true"], {})).keep({})


# ---- what programs are told ------------------------------------------------------------------------------------------
def test_tf_config_names_all_workers_in_rank_order():
    both = formed(3, "b", "a")
    config = json.loads(tensorflow.of_tensorflow(restart.World(both, both.members[1]))["TF_CONFIG"])
    assert config == {
        "cluster": {"worker": ["127.0.0.1:9000", "127.0.0.1:9001"]},
        "task": {"type": "worker", "index": 1},
    }


def test_hostfile_and_discovery_script_name_each_host_once(tmp_path):
    mpi.write_hosts(tmp_path, formed(1, "a", "b"), slots=2)
    assert (tmp_path / "hostfile").read_text() == "127.0.0.1 slots=4\n"
    script = subprocess.run([tmp_path / "discover_hosts.sh"], capture_output=True, text=True, check=True)
    assert script.stdout == "127.0.0.1:4\n"


# ---- mpirun's way to the other workers -------------------------------------------------------------------------------
NODE = "127.0.0.2"  # this machine, but for Open MPI another one than 127.0.0.1


@pytest.fixture
def node(tmp_path):
    """A node in a separate process; yields its port."""
    port = keeper.free_port(NODE)
    code = f"import sys; from elastrain_launchers.mpi import serve; sys.exit(serve('{NODE}:{port}', 'secret'))"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    yield port, process
    process.kill()
    process.wait(10)


def test_a_node_starts_requested_commands_until_mpirun_ends(node, tmp_path, eventually):
    port, process = node
    environ = {"ELASTRAIN_MPI_NODES": json.dumps([(NODE, port)]), "ELASTRAIN_MPI_TOKEN": "secret"}
    assert mpi.shell(NODE, ["echo", "started", ">", "here"], environ) == 0
    eventually(lambda: (tmp_path / "here").exists(), what="the command to be started")
    mpi.ask(NODE, port, token="secret", done=True)
    assert process.wait(10) == 0


def test_a_node_ignores_requests_without_the_token(node, tmp_path):
    port, process = node
    mpi.ask(NODE, port, token="guessed", command="touch stolen")
    mpi.ask(NODE, port, token="guessed", done=True)
    with socket.create_connection((NODE, port)) as connection:
        connection.sendall(b"nonsense\n")
    mpi.ask(NODE, port, token="secret", done=True)
    assert process.wait(10) == 0
    assert not (tmp_path / "stolen").exists()


def test_the_remedy_is_named_if_mpirun_requests_an_unknown_host(capsys):
    environ = {"ELASTRAIN_MPI_NODES": json.dumps([("10.0.0.2", 1)]), "ELASTRAIN_MPI_TOKEN": "secret"}
    assert mpi.shell("10.0.0.9", ["orted"], environ) == 1
    assert "10.0.0.9: not a worker of this generation; its workers: 10.0.0.2" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (apt-get install openmpi-bin)")
def test_mpirun_starts_its_processes_on_all_hosts_without_ssh(node, tmp_path):
    port, process = node
    mine, other = formed(1, "a", "b").members
    both = Generation(
        number=1,
        members=(mine, other.model_copy(update={"address": NODE, "store_port": port})),
        reason="Start",
        leader="a.0",
    )
    command = ["mpirun", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE"]
    words, variables = mpi.start_of(command, tmp_path, slots=1)(restart.World(both, mine))
    assert words[-len(command) - 1 :] == ["--first", *command]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    run = subprocess.run(
        command,
        env={**os.environ, **as_root, **variables, "ELASTRAIN_MPI_TOKEN": "secret"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sorted(run.stdout.split("\n")) == ["", "0 of 2", "1 of 2"], run.stderr
    assert process.poll() is None
