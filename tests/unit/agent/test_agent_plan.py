"""Which commands are started by fork."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elastrain.agent.process.launch import (
    Executed,
    Forked,
    first_path_entry,
    is_own_interpreter,
    plan_start,
    rank_environment,
)
from elastrain.agent.process.zygote import padding


def plan(command: str, **environ: str) -> Forked | Executed:
    return plan_start(command.split(), environ, own_interpreter=command.startswith("python"))


@pytest.mark.parametrize(
    ("command", "interpreter", "target", "arguments"),
    [
        ("python train.py", "python", "train.py", ""),
        ("python3.11 /a/train.py --lr 0.1 -m x", "python3.11", "/a/train.py", "--lr 0.1 -m x"),
        ("python -u -Wignore -X dev train.py -v", "python -u -Wignore -X dev", "train.py", "-v"),
        ("python -uBW error train.py", "python -uBW error", "train.py", ""),
        ("python -OO -I ./train.py", "python -OO -I", "./train.py", ""),
    ],
)
def test_a_script_of_the_agents_own_python_is_forked(command, interpreter, target, arguments):
    assert plan(command) == Forked(command.split(), interpreter.split(), target, False, arguments.split())


@pytest.mark.parametrize("command", ["python -u -m pkg.train --lr 0.1", "python -u -mpkg.train --lr 0.1"])
def test_a_module_is_forked(command):
    assert plan(command) == Forked(command.split(), ["python", "-u"], "pkg.train", True, ["--lr", "0.1"])


@pytest.mark.parametrize(
    ("command", "environ", "why"),
    [
        ("sh -c ./train.sh", {}, "'sh' is not the Python that runs the agent"),
        ("/other/venv/bin/python train.py", {}, "'/other/venv/bin/python' is not the Python that runs the agent"),
        ("python", {}, "it names no script; only scripts"),
        ("python -u", {}, "it names no script; only scripts"),
        ("python -", {}, "'-' is not a .py file"),
        ("python train", {}, "'train' is not a .py file"),  # it could be a directory or a zip archive
        ("python -c pass", {}, "flag '-c' of the interpreter"),
        ("python -i train.py", {}, "flag '-i' of the interpreter"),
        ("python -um train", {}, "flag '-um' of the interpreter"),
        ("python -m", {}, "flag '-m' of the interpreter"),
        ("python -X importtime train.py", {}, "flag '-X' of the interpreter"),
        ("python --version", {}, "flag '--version' of the interpreter"),
        ("python train.py", {"PYTHONINSPECT": "1"}, "PYTHONINSPECT is set"),
        ("python train.py", {"ELASTRAIN_FORK_RANKS": "off"}, "ELASTRAIN_FORK_RANKS=off"),
    ],
)
def test_a_command_is_executed_if_a_fork_would_be_distinguishable(command, environ, why):
    answer = plan(command, **environ)
    assert isinstance(answer, Executed)
    assert why in answer.why


def test_a_variable_without_a_value_counts_as_absent():
    assert isinstance(plan("python train.py", ELASTRAIN_FORK_RANKS="", PYTHONINSPECT=""), Forked)


def test_the_interpreter_is_the_agents_own_only_in_the_same_environment(tmp_path):
    """The python of each virtual environment is a link to the same file."""
    other = tmp_path / "python"
    other.symlink_to(Path(sys.executable).resolve())
    path = {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    assert is_own_interpreter(sys.executable, {})
    assert not is_own_interpreter("python", path)
    assert not is_own_interpreter(str(other), {})
    assert not is_own_interpreter("no-such-command", path)


def test_the_first_path_entry_is_the_scripts_directory(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").touch()
    (tmp_path / "link.py").symlink_to(tmp_path / "code" / "train.py")
    assert first_path_entry(plan(f"python {tmp_path}/link.py")) == str(tmp_path / "code")
    assert first_path_entry(plan("python -m train")) == str(Path.cwd())


def test_the_command_fits_over_the_words_of_the_zygote():
    for command in (["python", "t.py"], ["python", "t.py", "é" * 500]):
        boot = ["python", "-c", "x" * 90]
        room = len("\0".join([*boot, padding(boot, command)]).encode()) + 1
        assert room > len("\0".join(command).encode())


def test_a_rank_sees_no_fixed_world():
    env = rank_environment({"RANK": "3", "MASTER_ADDR": "old", "HOME": "/h"}, 1, 2, Path("/s"))
    assert "RANK" not in env
    assert "MASTER_ADDR" not in env
    assert (env["HOME"], env["LOCAL_RANK"], env["OMP_NUM_THREADS"]) == ("/h", "1", "1")


@pytest.mark.parametrize(("name", "value"), [("OMP_NUM_THREADS", "4"), ("PYTHONUNBUFFERED", "0")])
def test_a_users_setting_is_kept(name, value):
    assert rank_environment({name: value}, 0, 2, Path("/s"))[name] == value
