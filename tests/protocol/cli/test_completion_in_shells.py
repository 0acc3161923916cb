"""Completion in real shells: a terminal, an incomplete line, and Tab.

bash is tested in CI; zsh and fish at night, where they are installed.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from elastrain_cli.main import app
from elastrain_cli.shell import completion

SECONDS = 60.0
"""Longest wait for a shell's answer; a busy machine takes seconds to start Python."""
PROMPT, FORGET_LINE = "at your service> ", "\x15\n"
PROGRAM = """#!{python}
from elastrain_cli.shell import completion
completion.SECONDS = 30.0  # of a busy machine
from elastrain.__main__ import main
main()
"""
LINES = [
    ("elastrain susp", "elastrain suspend"),
    ("elastrain logs digits --fol", "elastrain logs digits --follow"),
    ("elastrain watch digits --context th", "elastrain watch digits --context there"),
    ("elastrain run manif", "elastrain run manifest.yaml"),
]
"""What is typed, and what stands there after Tab: a command, an option, a name, a file."""


def shell(name: str) -> object:
    needed = pytest.mark.skipif(shutil.which(name) is None, reason=f"needs {name}")
    return pytest.param(name, marks=[needed] if name == "bash" else [needed, pytest.mark.nightly])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with the completions installed as described in the help, and a manifest."""
    home = tmp_path_factory.mktemp("home")
    program = home / "bin" / "elastrain"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    for shell, place in {"bash": "elastrain.bash", "zsh": "zsh/_elastrain", "fish": "elastrain.fish"}.items():
        shown = CliRunner().invoke(app, ["completion", shell])
        (home / place).parent.mkdir(exist_ok=True)
        (home / place).write_text(shown.stdout)
    (home / "manifest.yaml").touch()
    contexts = [{"name": name, "context": {"cluster": "c", "user": "me"}} for name in ("here", "there")]
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "here", "contexts": contexts}
    (home / "config").write_text(yaml.safe_dump(config))
    return home


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "KUBECONFIG": str(home / "config"), "XDG_RUNTIME_DIR": str(home), "TERM": "xterm"}
    return {**os.environ, **own, "LC_ALL": "C.UTF-8", "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


class Terminal:
    """A shell on a pseudo-terminal, and its output."""

    def __init__(self, command: list[str], environment: dict[str, str], where: Path) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(where)
            os.execvpe(command[0], command, environment)
        self.printed = ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until ``text`` has been printed since the last wait, without control sequences."""
        until = time.monotonic() + SECONDS
        while text not in self.printed:
            ready, _, _ = select.select([self.descriptor], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no {text!r} within {SECONDS:.0f} s in {self.printed!r}"
            more = os.read(self.descriptor, 65536).decode(errors="replace")
            self.printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|[\x07\r]|.\x08", "", self.printed + more)
        self.printed = self.printed.partition(text)[2]


@contextlib.contextmanager
def running(name: str, home: Path, environment: dict[str, str]) -> Iterator[Terminal]:
    """An interactive shell that has read the completions, as in a user's setup."""
    commands = {
        "bash": (["bash", "--norc", "--noprofile", "-i"], f"source {home}/elastrain.bash"),
        "zsh": (["zsh", "-f", "-i"], f"fpath=({home}/zsh $fpath); autoload -Uz compinit; compinit -u -D"),
    }
    command, set_up = commands[name]
    terminal = Terminal(command, environment, home)
    try:
        terminal.type(f"{set_up}; PS1='{PROMPT[:1]}''{PROMPT[1:]}'\n")
        terminal.wait_for(PROMPT)
        yield terminal
    finally:
        os.kill(terminal.pid, signal.SIGKILL)
        os.waitpid(terminal.pid, 0)
        os.close(terminal.descriptor)


@pytest.mark.parametrize("name", [shell("bash"), shell("zsh")])
def test_the_first_tab_of_a_shell_completes(name: str, home: Path, environment: dict[str, str]) -> None:
    with running(name, home, environment) as terminal:
        for typed, completed in LINES:
            terminal.type(f"{typed}\t")
            terminal.wait_for(completed)
            terminal.type(FORGET_LINE)
            terminal.wait_for(PROMPT)


@pytest.mark.parametrize("name", [shell("fish")])
@pytest.mark.parametrize(("typed", "completed"), LINES)
def test_fish_offers_completions_of_the_line(
    name: str, typed: str, completed: str, home: Path, environment: dict[str, str]
) -> None:
    asked = [name, "--no-config", "-c", f"source {home}/elastrain.fish; complete -C {typed!r}"]
    shown = subprocess.run(
        asked, env=environment, cwd=home, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert completed.rpartition(" ")[2] in [line.partition("\t")[0] for line in shown.stdout.splitlines()]


def test_zsh_sources_the_script_once() -> None:
    assert "compdef _elastrain_completion elastrain" in completion.script(completion.Shell.ZSH)
