"""The shell completes commands, options, and names of objects in the cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from elastrain_cli.cluster import app as plugin
from elastrain_cli.main import app
from elastrain_cli.shell import completion


class Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        found = {
            "/apis/elastrain.dev/v1alpha1/namespaces/research/elastictrainingjobs": ["digits", "digits-2", "storm"],
            "/apis/elastrain.dev/v1alpha1/namespaces/other/elastictrainingjobs": ["elsewhere"],
            "/api/v1/namespaces": ["research", "other"],
        }[path]
        items = [{"metadata": {"name": name}} for name in found]
        body = json.dumps({"kind": "List", "metadata": {}, "items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(cluster: str, tmp_path: Path) -> dict[str, str]:
    """A shell's environment, with ``elastrain`` on PATH and a kubeconfig."""
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": cluster}}], "users": [{"name": "me", "user": {"token": "t"}}],
        "contexts": [{"name": n, "context": {"cluster": "c", "user": "me", "namespace": "research"}}
                     for n in ("here", "there")],
    }  # fmt: skip
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    program = tmp_path / "bin" / "elastrain"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom elastrain.__main__ import main\nmain()\n")
    program.chmod(0o755)
    own = {"KUBECONFIG": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path), "LC_ALL": "C.UTF-8"}
    return {**os.environ, **own, "PATH": f"{program.parent}:{os.environ['PATH']}"}


def in_bash(words: str, environment: dict[str, str], tmp_path: Path) -> tuple[list[str], str]:
    """bash's offers for the last of ``words``, and any other output."""
    script = tmp_path / "complete.bash"
    script.write_text(completion.script(completion.Shell.BASH))
    given = words.split(" ")
    drive = (
        f"source {script}; COMP_WORDS=({' '.join(repr(w) for w in given)}); COMP_CWORD={len(given) - 1}; "
        '_elastrain_completion elastrain; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    run = subprocess.run(
        ["bash", "--norc", "-c", drive], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    return run.stdout.split(), run.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("elastrain su", ["submit", "suspend"]),
        ("elastrain watch ", ["digits", "digits-2", "storm"]),
        ("elastrain watch -n other ", ["elsewhere"]),
        ("elastrain logs digits --namespace ", ["other", "research"]),
        ("elastrain logs digits --context t", ["there"]),
    ],
)
def test_bash_offers_matching_words(words: str, offered: list[str], environment, tmp_path: Path) -> None:
    assert in_bash(words, environment, tmp_path) == (offered, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_nothing_is_printed_without_a_cluster(environment, tmp_path: Path) -> None:
    nowhere = {**environment, "KUBECONFIG": str(tmp_path / "nowhere")}
    assert in_bash("elastrain watch ", nowhere, tmp_path) == ([], "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    shown = CliRunner().invoke(app, ["completion", shell])
    assert shown.exit_code == 0
    assert f"complete_{shell}" in shown.stdout


def test_an_unknown_shell_is_refused_with_the_known_ones() -> None:
    shown = CliRunner().invoke(app, ["completion", "tcsh"])
    assert shown.exit_code == 2
    assert all(shell in shown.stderr for shell in ("bash", "zsh", "fish"))


@pytest.mark.parametrize(("words", "printed"), [(["su"], "submit\nsuspend\n:4\n"), (["submit", "job."], ":0\n")])
def test_kubectls_completion_requests_are_answered(words: list[str], printed: str, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-etj", *words])
    plugin.complete()
    assert capsys.readouterr().out == printed
