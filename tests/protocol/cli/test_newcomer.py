"""First encounters of a new user: a misconfigured cluster, and mistyped words.

The cluster is a small HTTP server, so that it can fail in any way.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from elastrain.api import names
from elastrain_cli.cluster import app as plugin

JOBS = {"kind": "List", "metadata": {}, "items": []}


class FakeServer(ThreadingHTTPServer):
    """Answers every request with ``answer(path)``: a status code and a body."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(self.path)
        code, body = self.server.answer(self.path)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., FakeServer]]:
    servers: list[FakeServer] = []

    def start(answer: Callable[[str], tuple[int, str]] | tuple[int, str]) -> FakeServer:
        servers.append(FakeServer(answer if callable(answer) else lambda _path: answer))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if "PROXY" not in k.upper()}
    return {**clean, "KUBECONFIG": str(tmp_path / "config"), "XDG_RUNTIME_DIR": str(tmp_path), "NO_COLOR": "1"}


@pytest.fixture
def connect(tmp_path: Path) -> Callable[[str], None]:
    """``connect("http://...")``: a kubeconfig for that address."""

    def write(address: str, **cluster: Any) -> None:
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": address, **cluster}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "research"}}],
        }  # fmt: skip
        (tmp_path / "config").write_text(yaml.safe_dump(config))

    return write


def shown_job(name: str, status: dict[str, Any] | None = None) -> dict[str, Any]:
    container = {"name": "trainer", "image": "i", "command": ["python"]}
    metadata = {"name": name, "namespace": "research", "uid": "u", "generation": 1,
                "creationTimestamp": "2026-01-01T00:00:00Z", "resourceVersion": "1"}  # fmt: skip
    body = {
        "apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata,
        "spec": {"maxReplicas": 4, "template": {"spec": {"containers": [container]}}},
    }  # fmt: skip
    return body | ({"status": status} if status else {})


# ---- no cluster, or the wrong one ------------------------------------------------------------------------------------
def test_without_a_kubeconfig_both_alternatives_are_shown(elastrain) -> None:
    shown = elastrain("list")
    assert shown.exit_code == 3
    assert re.search(r"there is no kubeconfig: .*/config does not exist; .*elastrain run FILE", shown.stderr)


@pytest.mark.parametrize("text", ["clusters: [", "just words", "contexts: [{name: a}]\ncurrent-context: a\n", "[]", ""])
def test_a_broken_kubeconfig_is_no_traceback(elastrain, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    shown = elastrain("list")
    assert shown.exit_code == 3, shown.output
    assert str(tmp_path / "config") in shown.stderr
    assert shown.exception is None or isinstance(shown.exception, SystemExit)


def test_a_context_that_does_not_exist_is_compared_with_those_that_do(elastrain, connect) -> None:
    connect("http://127.0.0.1:1")
    assert "has no context hree; did you mean here?" in elastrain("list", "--context", "hree").stderr


def test_a_refused_connection_is_reported_with_the_address(elastrain, connect) -> None:
    connect("http://127.0.0.1:1")
    shown = elastrain("list")
    assert shown.exit_code == 3
    assert "http://127.0.0.1:1 refuses connections; is the cluster up?" in shown.stderr


def test_an_unresolvable_name_is_reported(elastrain, connect) -> None:
    connect("https://cluster.invalid:6443")
    assert "the name cluster.invalid does not resolve; is the VPN on?" in elastrain("list").stderr


def test_a_silent_server_is_reported_within_a_bound(elastrain, connect, serve, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    connect(serve(lambda _path: (hold.wait(10), (200, "{}"))[1]).address)
    monkeypatch.setattr("elastrain_cli.client.connection.REQUEST_SECONDS", 0.3)
    began = time.monotonic()
    shown = elastrain("list")
    hold.set()
    assert "no answer from" in shown.stderr, shown.stderr
    assert shown.exit_code == 3
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ((401, '{"kind": "Status", "message": "Unauthorized"}'), 3, "does not accept these credentials"),
        ((404, "404 page not found\n"), 3, "its operator is not installed; helm install elastrain"),
        ((200, "<html>please log in</html>"), 3, "not from a Kubernetes API server (<html>please log in</html>)"),
        ((200, "[1, 2]"), 3, "not from a Kubernetes API server ([1, 2])"),
        ((200, '{"hello": "world"}'), 3, 'not from a Kubernetes API server ({"hello": "world"})'),
        ((502, "<html>Bad Gateway</html>"), 3, "the API server is unhealthy: HTTP 502"),
    ],
)
def test_a_wrong_answer_is_no_traceback(elastrain, connect, serve, answer, code: int, words: str) -> None:
    connect(serve(answer).address)
    shown = elastrain("list")
    assert (shown.exit_code, words in shown.stderr) == (code, True), shown.output
    assert len(shown.stderr.splitlines()) == 1


def test_a_server_without_tls_is_reported(elastrain, connect, serve) -> None:
    connect(serve((200, "{}")).address.replace("http:", "https:"))
    assert "does not speak TLS as an API server does" in elastrain("list").stderr


def test_an_untrusted_certificate_is_reported(elastrain, connect, tmp_path: Path) -> None:
    import ssl

    import trustme

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    server = FakeServer(lambda _path: (200, "{}"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    try:
        connect(server.address.replace("http:", "https:"))
        shown = elastrain("list")
    finally:
        server.shutdown()
        server.server_close()
    assert shown.exit_code == 3
    assert re.search(
        r"the certificate of https://127.0.0.1:\d+ is not accepted: .*certificate-authority-data", shown.stderr
    )


# ---- a proxy ---------------------------------------------------------------------------------------------------------
def test_the_environments_proxy_is_used(elastrain, connect, serve) -> None:
    proxy = serve((200, json.dumps(JOBS)))
    connect("http://cluster.invalid:6443")
    shown = elastrain("list", HTTP_PROXY=proxy.address)
    assert shown.exit_code == 0, shown.stderr
    assert proxy.asked[0].startswith("http://cluster.invalid:6443/apis/")


def test_no_proxy_excludes_a_network_from_the_proxy(elastrain, connect, serve) -> None:
    proxy = serve((200, json.dumps(JOBS)))
    connect("http://127.1.0.1:1")
    shown = elastrain("list", HTTP_PROXY=proxy.address, NO_PROXY="127.0.0.0/8")
    assert shown.exit_code == 3
    assert not proxy.asked


def test_a_proxy_that_is_away_is_named_without_its_password(elastrain, connect) -> None:
    connect("https://cluster.invalid:6443")
    shown = elastrain("list", HTTPS_PROXY="http://me:secret@127.0.0.1:1")
    assert "the proxy http://127.0.0.1:1 cannot be reached" in shown.stderr
    assert "NO_PROXY=cluster.invalid" in shown.stderr
    assert "secret" not in shown.stderr


# ---- an operator that is not there -----------------------------------------------------------------------------------
def test_submit_warns_if_no_operator_observes_the_job(elastrain, connect, serve, tmp_path: Path, monkeypatch) -> None:
    connect(serve((200, json.dumps(shown_job("digits")))).address)
    monkeypatch.setattr("elastrain_cli.cluster.submit.NOTICE_SECONDS", 0.5)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(yaml.safe_dump({k: v for k, v in shown_job("digits").items() if k != "metadata"} | {
        "metadata": {"name": "digits"}
    }))  # fmt: skip
    shown = elastrain("submit", manifest)
    assert shown.exit_code == 0, "it was submitted"
    assert "digits: submitted to namespace research" in shown.stdout
    assert (
        "no operator has observed the job within 0.5 s; the job starts when an operator runs. elastrain doctor"
        in shown.stderr
    )


def test_status_shows_how_long_no_operator_has_observed_the_job(elastrain, connect, serve) -> None:
    def answer(path: str) -> tuple[int, str]:
        found = shown_job("digits") if "digits" in path.partition("?")[0] else JOBS
        return 200, json.dumps(found)

    connect(serve(answer).address)
    assert re.search(
        r"no operator has observed the job for \d+d; elastrain doctor", elastrain("status", "digits").stdout
    )


def test_status_shows_the_job_without_permission_to_read_its_pods(elastrain, connect, serve) -> None:
    denied = 'pods is forbidden: User "ada" cannot list resource "pods" in API group "" in the namespace "research"'

    def answer(path: str) -> tuple[int, str]:
        if "elastictrainingjobs" in path:
            return 200, json.dumps(shown_job("digits"))
        return 403, json.dumps({"kind": "Status", "message": denied})

    connect(serve(answer).address)
    shown = elastrain("status", "digits")
    assert shown.exit_code == 0
    assert "digits  Pending" in shown.stdout
    assert "user ada may not list pods in namespace research" in shown.stderr


# ---- words that are nearly right -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "meant"),
    [("stauts", "status"), ("ls", "list"), ("get", "list"), ("apply", "submit"), ("describe", "explain"),
     ("help", "--help"), ("rm", "delete"), ("stop", "suspend")],
)  # fmt: skip
def test_the_equivalent_of_another_tools_command_is_suggested(elastrain, given: str, meant: str) -> None:
    shown = elastrain(given)
    assert shown.exit_code == 2
    assert f"Did you mean '{meant}'" in shown.stderr


def test_an_option_that_is_nearly_right_is_suggested(elastrain) -> None:
    assert "--all-namespaces" in elastrain("list", "--all-namespace").stderr


def test_the_plugin_suggests_only_its_own_commands() -> None:
    shown = CliRunner().invoke(plugin.app, ["train"])
    assert shown.exit_code == 2
    assert "Did you mean" not in shown.stderr


def test_a_job_that_is_nearly_right_is_suggested(elastrain, connect, serve) -> None:
    def answer(path: str) -> tuple[int, str]:
        if "digist" in path:
            details = {"kind": "elastictrainingjobs"}
            return 404, json.dumps({"kind": "Status", "message": "not found", "details": details})
        return 200, json.dumps(JOBS | {"items": [shown_job("digits")]})

    connect(serve(answer).address)
    shown = elastrain("suspend", "digist")
    assert shown.exit_code == 2
    assert shown.stderr.rstrip().endswith("; did you mean digits?")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("research/digits", "digits -n research"),
        ("Digits!", "use lower-case letters, digits and '-'"),
        ("../x", "is not a job name"),
    ],
)
def test_an_invalid_name_is_refused(elastrain, given: str, words: str) -> None:
    shown = elastrain("delete", given)
    assert shown.exit_code == 2
    assert words in " ".join(shown.stderr.replace("│", " ").split())


def test_a_name_in_kubectls_format_is_accepted(elastrain, connect, serve) -> None:
    server = serve((200, json.dumps({"kind": "Status", "status": "Success"})))
    connect(server.address)
    assert elastrain("delete", "elastictrainingjob.elastrain.dev/digits").stdout == "digits: deleted\n"
    assert server.asked[0].endswith("/elastictrainingjobs/digits")


def test_the_version_is_also_an_option(elastrain) -> None:
    assert elastrain("--version").stdout == elastrain("version").stdout
