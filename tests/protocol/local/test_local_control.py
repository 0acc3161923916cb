"""The socket by which other terminals reach a local job."""

from __future__ import annotations

import socket
import stat

import pytest

from elastrain_cli.local.control import ControlError, ControlServer, ask, control_directory, running_jobs


def serve(request):
    if request["do"] == "fail":
        raise ValueError("replicas: 9: must be between minReplicas (1) and maxReplicas (4)")
    return {"echo": request}


@pytest.fixture
def server(tmp_path):
    server = ControlServer(tmp_path, "digits", serve)
    yield server
    server.close()


def test_a_request_is_answered(tmp_path, server):
    assert ask(tmp_path, "digits", {"do": "x"}) == {"echo": {"do": "x"}}
    assert running_jobs(tmp_path) == ["digits"]


def test_a_refusal_has_the_message(tmp_path, server):
    with pytest.raises(ControlError, match=r"replicas: 9: must be between"):
        ask(tmp_path, "digits", {"do": "fail"})


def test_the_message_names_the_running_jobs_if_there_is_none_of_that_name(tmp_path, server):
    with pytest.raises(ControlError, match=r"job other: not running on this machine \(running here: digits\)"):
        ask(tmp_path, "other", {"do": "x"})


def test_a_second_job_of_the_same_name_is_refused(tmp_path, server):
    with pytest.raises(ControlError, match="already runs"):
        ControlServer(tmp_path, "digits", serve)


def test_a_socket_that_a_killed_job_left_behind_is_replaced(tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "digits.sock"))
    assert running_jobs(tmp_path) == []
    server = ControlServer(tmp_path, "digits", serve)
    assert running_jobs(tmp_path) == ["digits"]
    server.close()
    assert running_jobs(tmp_path) == []


def test_only_the_user_may_enter_the_directory(tmp_path):
    directory = control_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
