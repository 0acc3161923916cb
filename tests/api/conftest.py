"""Helm, and a real API server: etcd and kube-apiserver on loopback, nothing else of a cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from elastrain.api.crd import crd

ROOT = Path(__file__).parents[2]
KUBERNETES = "1.31.0"  # `helm template` asks no cluster, and would take itself for talking to an ancient one
TOKEN = "of-the-test"
START_SECONDS = 60
CACHE = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain")) / "bin"


@dataclass(frozen=True)
class ApiServer:
    """A running API server with the CRD installed."""

    kubectl_program: str
    kubeconfig: Path

    def kubectl(self, *args: str, document: dict[str, Any] | str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, with ``document`` (as YAML) on its standard input."""
        text = document if isinstance(document, str) or document is None else yaml.safe_dump(document)
        return subprocess.run(
            [self.kubectl_program, f"--kubeconfig={self.kubeconfig}", "--request-timeout=20s", *args],
            input=text, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def _missing(reason: str, require: str) -> NoReturn:
    """Something is not to be had: a failure where the environment promises it, else the test is skipped."""
    if os.environ.get(require) == "1":
        pytest.fail(f"{require}=1, but {reason}", pytrace=False)
    pytest.skip(f"{reason} (e2e/cluster/build.sh builds it)")


def _program(name: str, variable: str, require: str = "ELASTRAIN_REQUIRE_APISERVER") -> str:
    """The program ``name``: named by the environment variable, else from the project's cache, else from PATH."""
    named = os.environ.get(variable)
    candidates = [named] if named else [str(CACHE / name), shutil.which(name)]
    found = next((c for c in candidates if c and os.access(c, os.X_OK)), None)
    if found is None:
        _missing(f"there is no {name}: neither ${variable}, {CACHE / name} nor PATH names one", require)
    return found


def _etcd_program() -> str:
    built = sorted(CACHE.glob("etcd-[0-9]*"))
    named = os.environ.get("ELASTRAIN_ETCD") or (str(built[-1]) if built else shutil.which("etcd"))
    if not named:
        reason = f"there is no etcd: neither $ELASTRAIN_ETCD, {CACHE}/etcd-* nor PATH names one"
        _missing(reason, "ELASTRAIN_REQUIRE_APISERVER")
    return named


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [int(s.getsockname()[1]) for s in sockets]


@contextlib.contextmanager
def _running(argv: list[str], log: Path, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process, ended when the block is left."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=cwd)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, context=unverified, timeout=2):
                return
        except (urllib.error.URLError, OSError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(
                    f"kube-apiserver is not ready after {START_SECONDS} s ({error}):\n{log.read_text()[-3000:]}"
                )
        time.sleep(0.1)


@pytest.fixture(scope="session")
def etcd_program() -> str:
    """Path of an etcd. Skips where there is none (fails if ELASTRAIN_REQUIRE_APISERVER=1)."""
    return _etcd_program()


@pytest.fixture
def free_ports() -> Callable[[int], list[int]]:
    """``free_ports(n)``: TCP ports of 127.0.0.1 that nobody listens on now."""
    return _free_ports


@pytest.fixture(scope="session")
def bare_apiserver(tmp_path_factory: pytest.TempPathFactory, etcd_program: str) -> Iterator[ApiServer]:
    """etcd and kube-apiserver, without the CRD. Skips where there are none (fails if ELASTRAIN_REQUIRE_APISERVER=1)."""
    apiserver = _program("kube-apiserver", "ELASTRAIN_KUBE_APISERVER")
    kubectl = _program("kubectl", "ELASTRAIN_KUBECTL")
    home = tmp_path_factory.mktemp("apiserver")
    client, peer, secure = _free_ports(3)
    key = home / "service-account.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (home / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
    kubeconfig = home / "kubeconfig"
    server = {"server": f"https://127.0.0.1:{secure}", "insecure-skip-tls-verify": True}
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "t", "cluster": server}],
        "users": [{"name": "t", "user": {"token": TOKEN}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "current-context": "t",
    }
    kubeconfig.write_text(yaml.safe_dump(access))
    etcd_argv = [
        etcd_program, "--data-dir", str(home / "etcd"), "--unsafe-no-fsync",
        "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
        "--initial-cluster", f"default=http://127.0.0.1:{peer}",
    ]  # fmt: skip
    apiserver_argv = [
        apiserver, f"--etcd-servers=http://127.0.0.1:{client}", f"--secure-port={secure}", "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1", f"--cert-dir={home / 'certs'}",
        "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}", f"--token-auth-file={home / 'tokens.csv'}",
        "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
    ]  # fmt: skip
    with (
        _running(etcd_argv, home / "etcd.log", home),
        _running(apiserver_argv, home / "apiserver.log", home) as process,
    ):
        _wait_until_ready(process, f"https://127.0.0.1:{secure}/readyz", home / "apiserver.log")
        yield ApiServer(kubectl, kubeconfig)


@pytest.fixture(scope="session")
def apiserver(bare_apiserver: ApiServer) -> ApiServer:
    """An API server that serves ``ElasticTrainingJob``."""
    applied = bare_apiserver.kubectl("create", "-f", "-", document=crd())
    assert applied.returncode == 0, applied.stderr
    waited = bare_apiserver.kubectl(
        "wait", "--for=condition=Established", f"crd/{crd()['metadata']['name']}", "--timeout=30s"
    )
    assert waited.returncode == 0, waited.stderr
    return bare_apiserver


@pytest.fixture(scope="session")
def helm() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``helm(*args)`` runs Helm at the repository's root; ``cluster`` names the API server that it talks to.

    Skips where there is no Helm (fails if ELASTRAIN_REQUIRE_HELM=1)."""
    program = _program("helm", "ELASTRAIN_HELM", require="ELASTRAIN_REQUIRE_HELM")

    def run(*args: str, cluster: ApiServer | None = None) -> subprocess.CompletedProcess[str]:
        where = [f"--kubeconfig={cluster.kubeconfig}"] if cluster else []
        return subprocess.run(
            [program, *where, *args], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture(scope="session")
def rendered(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[..., list[dict[str, Any]]]:
    """``rendered(*settings)``: the chart's manifests as release ``demo`` in namespace ``training``, to be read only."""

    @functools.cache
    def render(*settings: str) -> list[dict[str, Any]]:
        values = [option for setting in settings for option in ("--set", setting)]
        result = helm(
            "template", "demo", "charts/elastrain", "--namespace=training", f"--kube-version={KUBERNETES}", *values
        )
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]

    return render
