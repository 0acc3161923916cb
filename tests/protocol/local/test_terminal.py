"""Closed pipes, limited encodings, and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elastrain_cli.local.view import View
from elastrain_cli.shell.terminal import ReaderGone, spell_out

PROGRAM = [sys.executable, "-c", "from elastrain.__main__ import main; main()"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(tmp_path / "no-cluster"), "XDG_RUNTIME_DIR": str(tmp_path), "COLUMNS": "80"}


def test_the_command_ends_quietly_if_its_reader_closes_the_pipe(environment) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        run = subprocess.run(
            [*PROGRAM, "--help"], stdout=closed, stderr=subprocess.PIPE, env=environment, text=True, timeout=30
        )
    assert (run.returncode, run.stderr) == (141, "")


def test_symbols_are_spelled_out_in_a_limited_encoding(environment) -> None:
    latin = {**environment, "PYTHONIOENCODING": "iso-8859-1", "NO_COLOR": "1"}
    run = subprocess.run([*PROGRAM, "ls"], capture_output=True, env=latin, timeout=30)
    assert run.returncode == 2
    assert "Did you mean 'list'?" in run.stderr.decode("iso-8859-1")
    assert "Traceback" not in run.stderr.decode("iso-8859-1")


def test_all_used_symbols_have_a_spelling() -> None:
    assert "a → b │ ✓ ✗".encode("ascii", "replace") != b"a -> b | + x"
    text = "a → b │ ✓ ✗ é"
    error = UnicodeEncodeError("ascii", text, 2, 3, "")
    assert spell_out(error) == ("->", 3)
    assert spell_out(UnicodeEncodeError("ascii", text, 12, 13, "")) == ("?", 13)


def test_ctrl_c_while_a_cluster_does_not_answer_is_no_traceback(environment, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cluster = {"server": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        config = tmp_path / "config"
        config.write_text(
            json.dumps(
                {
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "users": [{"name": "u", "user": {}}],
                    "current-context": "c",
                }
            )
        )
        here = {**environment, "KUBECONFIG": str(config)}
        # A process started in the background, as these tests may be, ignores the signal, and so do its children.
        command = ["env", "--default-signal=INT", *PROGRAM, "list"]
        run = subprocess.Popen(command, env=here, stderr=subprocess.PIPE, text=True)
        silent.settimeout(30)
        asking, _ = silent.accept()
        with asking:
            assert asking.recv(4).startswith(b"GET")
            run.send_signal(signal.SIGINT)
            _, errors = run.communicate(timeout=30)
    assert (run.returncode, errors) == (130, "")


def test_a_view_without_a_reader_reports_it_once() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise ReaderGone

    from rich.console import Console

    view = View(Console(file=Closed()), live=False)
    assert not view.reader_gone
    view.line("digits-0", "hello")  # in a thread that must continue to read the worker's output
    assert view.reader_gone
